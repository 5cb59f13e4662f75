#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/shape.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <numeric>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

bool names(const List& axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

Diagnostic refuse_axes(const InferContext& c, const List& axes) {
  return c.error("axes {} do not name distinct axes of {}", to_string(AttrValue(axes)),
                 c.describe(0));
}
Diagnostic refuse_axis(const InferContext& c, int64_t axis) {
  return c.error("axis {} is out of range for {}", axis, c.describe(0));
}

size_t axis_at(const Axis& axis, int64_t rank) {
  return static_cast<size_t>(*normalize_axis(axis.value, rank));
}

// A composite of one operand that costs what it moves.
struct Rearranging {
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
};

// ---- squeeze and unsqueeze

// Sorted; every axis of extent 1 when none is named.
std::optional<List> squeezed_axes(const SqueezeAttrs& a, const Shape& shape) {
  auto axes = normalize_axes(a.axes.value, static_cast<int64_t>(shape.size()));
  if (axes && axes->empty())
    for (size_t i = 0; i < shape.size(); ++i)
      if (shape[i] == 1) axes->push_back(static_cast<int64_t>(i));
  return axes;
}

struct Squeeze : Rearranging {
  static constexpr std::string_view name = "squeeze";
  static constexpr std::string_view doc =
      "x of any dtype without `axes`, each of extent 1; [] removes every axis of extent 1.";
  using Attrs = SqueezeAttrs;
  // The examples' axis must stay where there is one example.
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    auto axes = squeezed_axes(c.attrs<Attrs>(), c.shape(0));
    if (!axes) return refuse_axes(c, c.attrs<Attrs>().axes.value);
    TensorType type{c.type(0).dtype, {}};
    for (size_t i = 0; i < c.shape(0).size(); ++i) {
      int64_t extent = c.shape(0)[i];
      if (!names(*axes, static_cast<int64_t>(i)))
        type.shape.push_back(extent);
      else if (extent != 1)
        return c.error("axis {} of {} has extent {}, not 1", i, c.describe(0), extent);
    }
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) { return {reshape(c.grad(), c.operand(0).shape())}; }
  static std::vector<Value> expand(const Op& op) {
    return {reshape(op.operand(0), op.result().shape())};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[1]"}, {{"axes", List{-1}}}),
            sample({"f32[2,1,3,1]"}, {{"axes", List{1, 3}}}), sample({"bf16[1,4,1]"}),
            sample({"i32[0,1]"}, {{"axes", List{1}}}), sample({"f32[]"})};
  }
};

struct Unsqueeze : Rearranging {
  static constexpr std::string_view name = "unsqueeze";
  static constexpr std::string_view doc =
      "x of any dtype with axes of extent 1, which are the result's axes `axes`.";
  using Attrs = UnsqueezeAttrs;

  static Inferred infer(const InferContext& c) {
    const List& given = c.attrs<Attrs>().axes.value;
    int64_t rank = c.rank(0) + static_cast<int64_t>(given.size());
    auto axes = normalize_axes(given, rank);
    if (!axes)
      return c.error("axes {} do not name distinct axes of a result of rank {} made of {}",
                     to_string(AttrValue(given)), rank, c.describe(0));
    TensorType type = c.type(0);
    for (int64_t axis : *axes) type.shape.insert(type.shape.begin() + axis, 1);
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) { return {reshape(c.grad(), c.operand(0).shape())}; }
  static std::vector<Value> expand(const Op& op) {
    return {reshape(op.operand(0), op.result().shape())};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]"}), sample({"f32[3]"}, {{"axes", List{0}}}),
            sample({"f32[2,3]"}, {{"axes", List{0, -1}}}),
            sample({"bf16[2,0]"}, {{"axes", List{1}}}), sample({"bool[]"}, {{"axes", List{0, 1}}})};
  }
};

// ---- stack and split

struct Stack {
  static constexpr std::string_view name = "stack";
  static constexpr std::string_view doc =
      "The operands (one type, any dtype) side by side along the result's new axis `axis`.";
  static constexpr OperandSpec operands[] = {variadic("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = StackAttrs;

  static Inferred infer(const InferContext& c) {
    auto axis = normalize_axis(c.attrs<Attrs>().axis.value, c.rank(0) + 1);
    if (!axis)
      return c.error("axis {} is out of range for a stack of {}", c.attrs<Attrs>().axis.value,
                     c.describe(0));
    for (size_t i = 1; i < c.num_operands(); ++i)
      if (auto refused = detail::require_same(c, 0, i)) return *refused;
    TensorType type = c.type(0);
    type.shape.insert(type.shape.begin() + *axis, static_cast<int64_t>(c.num_operands()));
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    size_t axis = axis_at(c.attrs<Attrs>().axis, c.result().rank());
    Grads grads(c.op().operands().size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!c.needs(i)) continue;
      auto at = static_cast<int64_t>(i);
      Value part = slice_axis(c.grad(), static_cast<int64_t>(axis), at, at + 1);
      grads[i] = reshape(part, c.operand(i).shape());
    }
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Value> expand(const Op& op) {
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.result().rank());
    Shape shape = op.result().shape();
    shape[axis] = 1;
    std::vector<Value> parts;
    for (Value v : op.operands()) parts.push_back(reshape(v, shape));
    return {concat(std::move(parts), static_cast<int64_t>(axis))};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]", "f32[3]"}),
            sample({"f32[2,3]", "f32[2,3]", "f32[2,3]"}, {{"axis", int64_t{-1}}}),
            sample({"bf16[1,2,3]", "bf16[1,2,3]"}, {{"axis", int64_t{1}}}),
            sample({"i64[]", "i64[]"}), sample({"f32[0,2]", "f32[0,2]"})};
  }
};

struct Split : Rearranging {
  static constexpr std::string_view name = "split";
  static constexpr std::string_view doc =
      "x of any dtype cut along `axis` into as many results as `sizes` has extents.";
  using Attrs = SplitAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    auto axis = normalize_axis(a.axis.value, c.rank(0));
    if (!axis) return refuse_axis(c, a.axis.value);
    int64_t total = 0;
    std::vector<TensorType> types;
    for (int64_t size : a.sizes) {
      if (size < 0) return c.error("the size {} is negative", size);
      total += size;
      types.push_back(c.type(0));
      types.back().shape[static_cast<size_t>(*axis)] = size;
    }
    if (int64_t extent = c.shape(0)[static_cast<size_t>(*axis)]; types.empty() || total != extent)
      return c.error("sizes {} add up to {}, axis {} of {} has extent {}",
                     to_string(AttrValue(a.sizes)), total, *axis, c.describe(0), extent);
    return types;
  }
  static Grads vjp(const VjpContext& c) {
    std::vector<Value> parts;
    Value any;
    for (size_t i = 0; i < c.op().num_results(); ++i)
      if (c.grad(i)) any = c.grad(i);
    for (size_t i = 0; i < c.op().num_results(); ++i) {
      Value part = c.grad(i);
      if (!part) part = full(any.graph(), c.op().result(i).type(), 0.0);
      parts.push_back(part);
    }
    return {concat(std::move(parts), c.attrs<Attrs>().axis.value)};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    std::vector<Value> parts;
    int64_t at = 0;
    auto axis = static_cast<int64_t>(axis_at(a.axis, op.operand(0).rank()));
    for (int64_t size : a.sizes) {
      parts.push_back(slice_axis(op.operand(0), axis, at, at + size));
      at += size;
    }
    return parts;
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[5]"}, {{"sizes", List{2, 3}}, {"axis", int64_t{-1}}}),
            sample({"f32[2,6]"}, {{"sizes", List{1, 2, 3}}, {"axis", int64_t{1}}}),
            sample({"bf16[3,2,2]"}, {{"sizes", List{3}}}),
            sample({"f32[4,1]"}, {{"sizes", List{0, 4}}, {"axis", int64_t{0}}}),
            sample({"i32[1,2,1,4]"}, {{"sizes", List{2, 2}}, {"axis", int64_t{-1}}})};
  }
};

// ---- reverse and roll: index maps

// Calls f(index, linear) for each index of `shape` in row-major order.
template <typename F>
void for_each_index(const Shape& shape, F f) {
  Shape index(shape.size(), 0);
  int64_t count = num_elements(shape);
  for (int64_t linear = 0; linear < count; ++linear) {
    f(index, linear);
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

// Each axis permuted by itself: the operand's index along it is `map(axis, index)`.
template <typename Map>
void evaluate_map(EvaluateContext& c, Map map) {
  const ReferenceTensor& x = *c.operands[0];
  List strides = row_major_strides(x.type.shape);
  for_each_index(x.type.shape, [&](const Shape& at, int64_t i) {
    int64_t from = 0;
    for (size_t k = 0; k < at.size(); ++k) from += map(k, at[k]) * strides[k];
    c.results[0].data[static_cast<size_t>(i)] = x.data[static_cast<size_t>(from)];
  });
}

struct Permuting {
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
};

struct Reverse : Permuting {
  static constexpr std::string_view name = "reverse";
  static constexpr std::string_view doc =
      "x of any dtype with each of `axes` turned round: element i is x's element n - 1 - i.";
  using Attrs = ReverseAttrs;

  static List axes_of(const Op& op) {
    return *normalize_axes(op.attrs<Attrs>().axes.value, op.operand(0).rank());
  }
  static Inferred infer(const InferContext& c) {
    const List& axes = c.attrs<Attrs>().axes.value;
    if (!normalize_axes(axes, c.rank(0))) return refuse_axes(c, axes);
    return std::vector{c.type(0)};
  }
  static Grads vjp(const VjpContext& c) { return {reverse(c.grad(), c.attrs<Attrs>().axes.value)}; }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]"}, {{"axes", List{0}}}), sample({"f32[2,3]"}, {{"axes", List{0, -1}}}),
            sample({"bf16[2,1,4,3]"}, {{"axes", List{2}}}),
            sample({"i64[0,3]"}, {{"axes", List{1}}}), sample({"bool[]"})};
  }
  static void evaluate(EvaluateContext& c) {
    List axes = axes_of(c.op);
    const Shape& shape = c.operands[0]->type.shape;
    evaluate_map(c, [&](size_t k, int64_t at) {
      return names(axes, static_cast<int64_t>(k)) ? shape[k] - 1 - at : at;
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    std::vector<IndexExpr> in(at.begin(), at.end());
    for (int64_t axis : axes_of(op)) {
      auto k = static_cast<size_t>(axis);
      in[k] = IndexExpr(op.operand(0).shape()[k] - 1) - at[k];
    }
    return b.operand(0, std::move(in));
  }
};

struct Roll : Permuting {
  static constexpr std::string_view name = "roll";
  static constexpr std::string_view doc =
      "x of any dtype with its elements moved shift[i] places along axes[i]; those pushed out come "
      "in at the other end.";
  using Attrs = RollAttrs;

  // For each axis, how far in front of an element the one lies that takes its place.
  static List back(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    const Shape& shape = op.operand(0).shape();
    List out(shape.size(), 0);
    for (size_t i = 0; i < a.shift.size(); ++i) {
      size_t k = axis_at(Axis{a.axes.value[i]}, op.operand(0).rank());
      if (int64_t n = shape[k]; n > 0) out[k] = ((n - a.shift[i] % n) % n + n) % n;
    }
    return out;
  }
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (!normalize_axes(a.axes.value, c.rank(0))) return refuse_axes(c, a.axes.value);
    if (a.shift.size() != a.axes.value.size())
      return c.error("{} shifts for {} axes of {}", a.shift.size(), a.axes.value.size(),
                     c.describe(0));
    return std::vector{c.type(0)};
  }
  static Grads vjp(const VjpContext& c) {
    List shift = c.attrs<Attrs>().shift;
    for (int64_t& s : shift) s = -s;
    return {roll(c.grad(), std::move(shift), c.attrs<Attrs>().axes.value)};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[5]"}, {{"shift", List{2}}, {"axes", List{0}}}),
            sample({"f32[2,3]"}, {{"shift", List{1, -7}}, {"axes", List{0, 1}}}),
            sample({"bf16[2,4,3]"}, {{"shift", List{-1}}, {"axes", List{-2}}}),
            sample({"i32[0,1]"}, {{"shift", List{1, 1}}, {"axes", List{0, 1}}}),
            sample({"bool[]"})};
  }
  static void evaluate(EvaluateContext& c) {
    List offset = back(c.op);
    const Shape& shape = c.operands[0]->type.shape;
    evaluate_map(c, [&](size_t k, int64_t at) { return (at + offset[k]) % shape[k]; });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    List offset = back(op);
    std::vector<IndexExpr> in(at.begin(), at.end());
    for (size_t k = 0; k < in.size(); ++k)
      if (offset[k] != 0) in[k] = mod(at[k] + IndexExpr(offset[k]), op.operand(0).shape()[k]);
    return b.operand(0, std::move(in));
  }
};

// ---- repeat and tile

struct Repeat : Rearranging {
  static constexpr std::string_view name = "repeat";
  static constexpr std::string_view doc =
      "x of any dtype with each element `count` times in a row along `axis`.";
  using Attrs = RepeatAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    auto axis = normalize_axis(a.axis.value, c.rank(0));
    if (!axis) return refuse_axis(c, a.axis.value);
    if (a.count < 0) return c.error("count = {} is negative", a.count);
    TensorType type = c.type(0);
    type.shape[static_cast<size_t>(*axis)] *= a.count;
    return std::vector{type};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0);
    auto after = static_cast<int64_t>(axis_at(a.axis, x.rank())) + 1;
    Shape one = x.shape(), many;
    one.insert(one.begin() + after, 1);
    many = one;
    many[static_cast<size_t>(after)] = a.count;
    return {reshape(broadcast_to(reshape(x, one), many), op.result().shape())};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]"}),
            sample({"f32[2,3]"}, {{"count", int64_t{2}}, {"axis", int64_t{1}}}),
            sample({"bf16[2,1,3]"}, {{"count", int64_t{3}}, {"axis", int64_t{0}}}),
            sample({"i32[2,2,1,2]"}, {{"count", int64_t{2}}, {"axis", int64_t{-1}}}),
            sample({"f32[2]"}, {{"count", int64_t{0}}}),
            sample({"f32[0,2]"}, {{"count", int64_t{2}}})};
  }
};

struct Tile : Rearranging {
  static constexpr std::string_view name = "tile";
  static constexpr std::string_view doc =
      "x of any dtype laid out counts[i] times along axis i, one count for each axis.";
  using Attrs = TileAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;

  static Inferred infer(const InferContext& c) {
    const List& counts = c.attrs<Attrs>().counts;
    TensorType type = c.type(0);
    if (counts.size() != type.shape.size())
      return c.error("counts needs {} entries, one for each axis of {}", type.shape.size(),
                     c.describe(0));
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] < 0) return c.error("the count {} is negative", counts[i]);
      type.shape[i] *= counts[i];
    }
    return std::vector{type};
  }
  static Batched batch(const BatchContext& c) {
    List counts = c.attrs<Attrs>().counts;
    counts.insert(counts.begin(), 1);
    return Batched::all({tile(c.operand(0), std::move(counts))});
  }
  static std::vector<Value> expand(const Op& op) {
    const List& counts = op.attrs<Attrs>().counts;
    Shape one, many;
    for (size_t i = 0; i < counts.size(); ++i) {
      int64_t extent = op.operand(0).shape()[i];
      if (counts[i] != 1) {
        one.push_back(1);
        many.push_back(counts[i]);
      }
      one.push_back(extent);
      many.push_back(extent);
    }
    return {reshape(broadcast_to(reshape(op.operand(0), one), many), op.result().shape())};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]"}, {{"counts", List{2}}}),
            sample({"f32[2,3]"}, {{"counts", List{2, 1}}}),
            sample({"bf16[1,3,2]"}, {{"counts", List{3, 2, 2}}}),
            sample({"i64[2,0]"}, {{"counts", List{2, 3}}}),
            sample({"f32[2]"}, {{"counts", List{0}}}),
            sample({"bool[]"})};
  }
};

// ---- triangles and diagonals

template <bool kLower>
struct Triangle : Rearranging {
  static constexpr std::string_view name = kLower ? "tril" : "triu";
  static constexpr std::string_view doc =
      kLower ? "x (any dtype) where column - row <= `diagonal` in the last two axes, else 0."
             : "x (any dtype) where column - row >= `diagonal` in the last two axes, else 0.";
  using Attrs = TriangleAttrs;

  static Inferred infer(const InferContext& c) {
    if (c.rank(0) < 2) return c.error("{} has fewer than 2 axes", c.describe(0));
    return std::vector{c.type(0)};
  }
  static Value keep(Value v, int64_t diagonal) {
    return kLower ? tril(v, diagonal) : triu(v, diagonal);
  }
  static Grads vjp(const VjpContext& c) { return {keep(c.grad(), c.attrs<Attrs>().diagonal)}; }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    TensorType counters{DType::I64, {x.dim(-2), x.dim(-1)}};
    Value reach = iota(op.graph(), counters, 0) +
                  full(op.graph(), counters, Number(op.attrs<Attrs>().diagonal));
    Value column = iota(op.graph(), counters, 1);
    Value kept = kLower ? le(column, reach) : ge(column, reach);
    Value zero = full(op.graph(), x.type(), x.dtype() == DType::Bool ? Number(0) : Number(0.0));
    return {where(broadcast_to(kept, x.shape()), x, zero)};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3,3]"}),
            sample({"f32[2,3,4]"}, {{"diagonal", int64_t{1}}}),
            sample({"bf16[4,2]"}, {{"diagonal", int64_t{-1}}}),
            sample({"i32[1,1]"}),
            sample({"f32[2,1,2,3]"}, {{"diagonal", int64_t{-9}}}),
            sample({"bool[2,2]"}),
            sample({"f32[0,3]"})};
  }
};

struct Diagonal : Rearranging {
  static constexpr std::string_view name = "diagonal";
  static constexpr std::string_view doc =
      "The elements [i, i + offset] of axes axis1, axis2 of x (any dtype), as the result's last "
      "axis.";
  using Attrs = DiagonalAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    auto axes = normalize_axes({a.axis1.value, a.axis2.value}, c.rank(0));
    if (!axes) return refuse_axes(c, {a.axis1.value, a.axis2.value});
    int64_t rows = c.shape(0)[axis_at(a.axis1, c.rank(0))];
    int64_t columns = c.shape(0)[axis_at(a.axis2, c.rank(0))];
    if (a.offset != 0 && (a.offset <= -rows || a.offset >= columns))
      return c.error("diagonal {} lies outside the {} x {} matrices of {}", a.offset, rows, columns,
                     c.describe(0));
    TensorType type{c.type(0).dtype, {}};
    for (int64_t i = 0; i < c.rank(0); ++i)
      if (!names(*axes, i)) type.shape.push_back(c.shape(0)[static_cast<size_t>(i)]);
    type.shape.push_back(a.offset >= 0 ? std::min(rows, columns - a.offset)
                                       : std::min(rows + a.offset, columns));
    return std::vector{type};
  }
  // Matrices as one row: neighbours of a diagonal lie columns + 1 apart.
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0);
    auto row = static_cast<int64_t>(axis_at(a.axis1, x.rank()));
    auto column = static_cast<int64_t>(axis_at(a.axis2, x.rank()));
    List order;
    for (int64_t i = 0; i < x.rank(); ++i)
      if (i != row && i != column) order.push_back(i);
    order.push_back(row);
    order.push_back(column);
    if (!std::is_sorted(order.begin(), order.end())) x = permute(x, order);
    int64_t rows = x.dim(-2), columns = x.dim(-1), length = op.result().dim(-1);
    Shape flat(x.shape().begin(), x.shape().end() - 2);
    flat.push_back(rows * columns);
    int64_t start = length == 0 ? 0 : a.offset >= 0 ? a.offset : -a.offset * columns;
    int64_t limit = length == 0 ? 0 : start + (length - 1) * (columns + 1) + 1;
    return {slice_axis(reshape(x, flat), -1, start, limit, columns + 1)};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3,8]"}, {{"offset", int64_t{7}}}),
            sample({"f32[3,3]"}),
            sample({"f32[2,3,4]"}, {{"offset", int64_t{1}}}),
            sample({"bf16[4,2,3]"},
                   {{"offset", int64_t{-1}}, {"axis1", int64_t{0}}, {"axis2", int64_t{1}}}),
            sample({"f32[2,3,2,3]"}, {{"axis1", int64_t{3}}, {"axis2", int64_t{0}}}),
            sample({"i32[1,1]"}),
            sample({"f32[0,3]"})};
  }
};

// ---- one_hot

struct OneHot {
  static constexpr std::string_view name = "one_hot";
  static constexpr std::string_view doc =
      "1 where the annotated type's last axis counts what ids (i32 or i64) holds, else 0; an id "
      "outside that axis is an error when executed.";
  static constexpr OperandSpec operands[] = {required("ids")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = OneHotAttrs;
  static constexpr NonDifferentiable vjp{"integers have no derivative"};

  static Inferred infer(const InferContext& c) {
    if (auto refused = detail::require_index(c, 0)) return *refused;
    const TensorType& to = c.attrs<Attrs>().type.type;
    Shape want = c.shape(0);
    want.push_back(to.shape.empty() ? 1 : to.shape.back());
    if (to.shape != want || to.shape.back() < 1)
      return c.error("the result {} does not have the shape of {} and one more axis", to.str(),
                     c.describe(0));
    return std::vector{to};
  }
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Value> expand(const Op& op) {
    Value ids = op.operand(0);
    const Shape& shape = op.result().shape();
    Shape column = shape;
    column.back() = 1;
    ids = check_index(ids, 0, shape.back(), std::nullopt, "one_hot: index");
    Value counter = iota(op.graph(), {ids.dtype(), shape}, op.result().rank() - 1);
    return {cast(eq(broadcast_to(reshape(ids, column), shape), counter), op.result().dtype())};
  }
  static std::vector<Sample> samples() {
    return {sample({"i32[3]"}, {}, "f32[3,4]"), sample({"i64[2,3]"}, {}, "bf16[2,3,5]"),
            sample({"i32[]"}, {}, "f32[4]"), sample({"i32[0]"}, {}, "i32[0,4]"),
            sample({"i64[2,1,2]"}, {}, "bool[2,1,2,4]")};
  }
};

template <typename Attrs>
Value build(std::string_view op, Value x, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "x", x, loc);
  return build_op(graph, op, {x}, std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value squeeze(Value x, std::vector<int64_t> axes, SourceLocation loc) {
  return build("squeeze", x, SqueezeAttrs{{std::move(axes)}}, std::move(loc));
}

Value unsqueeze(Value x, std::vector<int64_t> axes, SourceLocation loc) {
  return build("unsqueeze", x, UnsqueezeAttrs{{std::move(axes)}}, std::move(loc));
}

Value stack(std::vector<Value> values, int64_t axis, SourceLocation loc) {
  if (values.empty()) throw Error(Diagnostic{loc, "stack: takes at least 1 operand, got 0"});
  Graph& graph = detail::graph_of("stack", "x", values[0], loc);
  return build_op(graph, "stack", std::move(values), StackAttrs{Axis{axis}}, std::move(loc))
      .result();
}

std::vector<Value> split(Value x, std::vector<int64_t> sizes, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of("split", "x", x, loc);
  SplitAttrs attrs{std::move(sizes), Axis{axis}};
  Op& op = build_op(graph, "split", {x}, std::move(attrs), std::move(loc));
  std::vector<Value> parts;
  for (size_t i = 0; i < op.num_results(); ++i) parts.push_back(op.result(i));
  return parts;
}

std::vector<Value> split_evenly(Value x, int64_t parts, int64_t axis, SourceLocation loc) {
  detail::graph_of("split", "x", x, loc);
  auto at = normalize_axis(axis, x.rank());
  if (!at || parts < 1 || x.dim(*at) % parts != 0)
    throw Error(
        Diagnostic{loc, fmt::format("split: axis {} of {} ({}) has no {} equal parts", axis,
                                    x.name().empty() ? "x" : x.name(), x.type().str(), parts)});
  List sizes(static_cast<size_t>(parts), x.dim(*at) / parts);
  return split(x, std::move(sizes), axis, std::move(loc));
}

Value reverse(Value x, std::vector<int64_t> axes, SourceLocation loc) {
  return build("reverse", x, ReverseAttrs{{std::move(axes)}}, std::move(loc));
}

Value roll(Value x, std::vector<int64_t> shift, std::vector<int64_t> axes, SourceLocation loc) {
  return build("roll", x, RollAttrs{std::move(shift), {std::move(axes)}}, std::move(loc));
}

Value repeat(Value x, int64_t count, int64_t axis, SourceLocation loc) {
  return build("repeat", x, RepeatAttrs{count, Axis{axis}}, std::move(loc));
}

Value tile(Value x, std::vector<int64_t> counts, SourceLocation loc) {
  return build("tile", x, TileAttrs{std::move(counts)}, std::move(loc));
}

Value tril(Value x, int64_t diagonal, SourceLocation loc) {
  return build("tril", x, TriangleAttrs{diagonal}, std::move(loc));
}

Value triu(Value x, int64_t diagonal, SourceLocation loc) {
  return build("triu", x, TriangleAttrs{diagonal}, std::move(loc));
}

Value diagonal(Value x, int64_t offset, int64_t axis1, int64_t axis2, SourceLocation loc) {
  return build("diagonal", x, DiagonalAttrs{offset, Axis{axis1}, Axis{axis2}}, std::move(loc));
}

Value one_hot(Value ids, int64_t depth, DType dtype, SourceLocation loc) {
  Graph& graph = detail::graph_of("one_hot", "ids", ids, loc);
  TensorType type{dtype, ids.shape()};
  type.shape.push_back(depth);
  return build_op(graph, "one_hot", {ids}, OneHotAttrs{{type}}, std::move(loc)).result();
}

void register_shape(OpRegistry& r) {
  r.add<Squeeze>();
  r.add<Unsqueeze>();
  r.add<Stack>();
  r.add<Split>();
  r.add<Reverse>();
  r.add<Roll>();
  r.add<Repeat>();
  r.add<Tile>();
  r.add<Triangle<true>>();
  r.add<Triangle<false>>();
  r.add<Diagonal>();
  r.add<OneHot>();
}

}  // namespace sinter
