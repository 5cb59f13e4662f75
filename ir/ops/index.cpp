#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/ir/ops/index.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <numeric>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;
using Places = std::vector<IndexExpr>;

namespace {

size_t axis_at(const Axis& axis, int64_t rank) {
  return static_cast<size_t>(*normalize_axis(axis.value, rank));
}

// x [outer, extent, inner] and ids [count]: gather reads, scatter writes [outer, count, inner].
struct Layout {
  size_t axis;
  int64_t outer = 1, extent, inner = 1, count;

  Layout(const Shape& x, const Shape& ids, const Axis& at)
      : axis(axis_at(at, static_cast<int64_t>(x.size()))),
        extent(x[axis]),
        count(num_elements(ids)) {
    for (size_t k = 0; k < axis; ++k) outer *= x[k];
    for (size_t k = axis + 1; k < x.size(); ++k) inner *= x[k];
  }
};

// The shape of gather's result.
Shape gathered_shape(const Shape& x, const Shape& ids, size_t axis) {
  auto at = x.begin() + static_cast<int64_t>(axis);
  Shape out(x.begin(), at);
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), at + 1, x.end());
  return out;
}

// `at` with its entry `axis` replaced by `middle`.
Places replace_axis(std::span<const IndexExpr> at, size_t axis, const Places& middle) {
  Places out(at.begin(), at.begin() + static_cast<int64_t>(axis));
  out.insert(out.end(), middle.begin(), middle.end());
  out.insert(out.end(), at.begin() + static_cast<int64_t>(axis) + 1, at.end());
  return out;
}

// What gather, scatter and scatter_add refuse: x is operand 0, ids operand 1.
std::optional<Diagnostic> refuse_indexing(const InferContext& c, const Axis& axis) {
  if (auto refused = detail::require_index(c, 1)) return refused;
  auto at = normalize_axis(axis.value, c.rank(0));
  if (!at) return c.error("axis {} is out of range for {}", axis.value, c.describe(0));
  if (c.shape(0)[static_cast<size_t>(*at)] == 0 && c.type(1).elements() > 0)
    return c.error("axis {} of {} has nothing to index", *at, c.describe(0));
  return std::nullopt;
}

// Whether node `id` of type `type` is the index `e`.
BodyNode equals(BodyBuilder& b, BodyNode id, const IndexExpr& e, DType type) {
  ScalarBuilder s;
  Expr first = s.param(type), second = s.param(type);
  Expr same = first == second;
  BodyNode pair[] = {id, b.index(e, type)};
  return b.scalar(s.finish({&same, 1}), pair);
}

// ---- Batching

// v with `count` axes from `from` on standing at `to` instead, as the result counts.
Value move_axes(Value v, size_t from, size_t count, size_t to) {
  List order(v.shape().size());
  std::iota(order.begin(), order.end(), int64_t{0});
  auto first = order.begin() + static_cast<int64_t>(from);
  List moved(first, first + static_cast<int64_t>(count));
  order.erase(first, first + static_cast<int64_t>(count));
  order.insert(order.begin() + static_cast<int64_t>(to), moved.begin(), moved.end());
  return std::is_sorted(order.begin(), order.end()) ? v : permute(v, order);
}

// All examples' x [N, …] with `axis` of one example in front and the examples one after another
// along it, ids that point there, and what it takes to get back.
struct Merged {
  Value x, ids;
  int64_t size, extent;
  size_t axis;

  Merged(const BatchContext& c, Value x_of_all, size_t axis_of_one)
      : size(c.size()), extent(c.op().operand(0).shape()[axis_of_one]), axis(axis_of_one) {
    Value front = move_axes(x_of_all, axis + 1, 1, 1);
    Shape rows(front.shape().begin() + 1, front.shape().end());
    rows[0] = size * extent;
    x = reshape(front, rows);
    std::string what(c.op().name());
    ids = check_index(c.carried(1), 0, extent, std::nullopt, what + ": index");
    DType type = size * extent > INT32_MAX ? DType::I64 : ids.dtype();
    Shape along(ids.shape().size(), 1);
    along[0] = size;
    Value first = iota(c.graph(), {type, along}, 0) * static_cast<double>(extent);
    ids = cast(ids, type) + first;
  }
  Value apart(Value y) const {
    Shape shape(y.shape().begin() + 1, y.shape().end());
    shape.insert(shape.begin(), {size, extent});
    return move_axes(reshape(y, shape), 1, 1, axis + 1);
  }
};

// ---- gather

struct Gather {
  static constexpr std::string_view name = "gather";
  static constexpr std::string_view doc =
      "x (any dtype) with ids (i32 or i64) in place of index `axis`: x.shape before the axis, "
      "ids.shape, x.shape behind it; an id outside the axis is an error when executed.";
  static constexpr OperandSpec operands[] = {required("x"), required("ids")};
  static constexpr OpKind kind = OpKind::Gather;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = GatherAttrs;

  static Inferred infer(const InferContext& c) {
    const Axis& axis = c.attrs<Attrs>().axis;
    if (auto refused = refuse_indexing(c, axis)) return *refused;
    size_t at = axis_at(axis, c.rank(0));
    return std::vector{TensorType{c.type(0).dtype, gathered_shape(c.shape(0), c.shape(1), at)}};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (!c.needs(0)) return grads;
    Value zeros = full_like(c.operand(0), 0.0);
    grads[0] = scatter_add(zeros, c.operand(1), c.grad(), c.attrs<Attrs>().axis.value);
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    size_t axis = axis_at(c.attrs<Attrs>().axis, c.op().operand(0).rank());
    size_t places = c.op().operand(1).shape().size();
    auto at = static_cast<int64_t>(axis);
    if (!c.batched(1)) return Batched::all({gather(c.operand(0), c.operand(1), at + 1)});
    if (!c.batched(0))
      return Batched::all({move_axes(gather(c.operand(0), c.operand(1), at), axis, 1, 0)});
    if (c.size() == 0)
      return Batched::all({full(c.graph(), c.carried_type(c.op().result().type()), 0)});
    Merged m(c, c.operand(0), axis);
    return Batched::all({move_axes(gather(m.x, m.ids), 1, places, axis + 1)});
  }
  static Cost cost(const Op& op) {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(op.result().type().bytes()) +
                 static_cast<double>(op.operand(1).type().bytes());
    return cost;
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[4]", "i32[3]"}),
            sample({"f32[2,4,3]", "i64[2]"}, {{"axis", int64_t{1}}}),
            sample({"bf16[2,5]", "i32[]"}, {{"axis", int64_t{-1}}}),
            sample({"i32[4,2]", "i64[2,3]"}),
            sample({"f32[2,4]", "i32[0]"}, {{"axis", int64_t{1}}}),
            sample({"bool[4]", "i32[1,2]"}),
            sample({"f32[4,0,2]", "i32[2]"})};
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& x = *c.operands[0];
    const ReferenceTensor& ids = *c.operands[1];
    Layout l(x.type.shape, ids.type.shape, c.op.attrs<Attrs>().axis);
    for (int64_t p = 0; p < l.count; ++p) {
      int64_t id = ids.data[static_cast<size_t>(p)].i;
      if (id < 0 || id >= l.extent) {
        c.bad_index(p, id, 0, l.extent);
        id = 0;
      }
      for (int64_t o = 0; o < l.outer; ++o)
        std::copy_n(x.data.begin() + (o * l.extent + id) * l.inner, l.inner,
                    c.results[0].data.begin() + (o * l.count + p) * l.inner);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& ids = op.operand(1).shape();
    if (op.operand(1).type().elements() == 0) return b.literal(op.result().dtype(), Cell{});
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    int64_t extent = op.operand(0).shape()[axis];
    auto first = at.begin() + static_cast<int64_t>(axis);
    Places place(first, first + static_cast<int64_t>(ids.size()));
    Places in(at.begin(), first);
    IndexExpr position = linearize(place, ids);
    BodyNode id = b.check(b.operand(1, std::move(place)), 0, extent, std::nullopt, position);
    in.push_back(b.gathered(id, 0, extent));
    in.insert(in.end(), first + static_cast<int64_t>(ids.size()), at.end());
    return b.operand(0, std::move(in));
  }
};

// ---- scatter and scatter_add

struct Scattering {
  static constexpr OperandSpec operands[] = {required("x"), required("ids"), required("updates")};
  static constexpr OpKind kind = OpKind::Scatter;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = GatherAttrs;

  static Inferred infer_with(const InferContext& c) {
    const Axis& axis = c.attrs<Attrs>().axis;
    if (auto refused = refuse_indexing(c, axis)) return *refused;
    TensorType want{c.type(0).dtype,
                    gathered_shape(c.shape(0), c.shape(1), axis_at(axis, c.rank(0)))};
    if (c.type(2) != want)
      return c.error("{} does not have the type {} of what is taken from {} by {}", c.describe(2),
                     want.str(), c.describe(0), c.describe(1));
    return std::vector{c.type(0)};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    cost.flops = static_cast<double>(op.operand(2).type().elements());
    return cost;
  }
  static std::vector<Sample> samples_of(bool floats) {
    std::vector<Sample> samples = {
        sample({"f32[4]", "i32[5]", "f32[5]"}),
        sample({"f32[2,4,3]", "i64[2,3]", "f32[2,2,3,3]"}, {{"axis", int64_t{1}}}),
        sample({"bf16[2,4]", "i32[7]", "bf16[2,7]"}, {{"axis", int64_t{-1}}}),
        sample({"f32[4,2]", "i32[]", "f32[2]"}),
        sample({"f32[4,2]", "i32[0]", "f32[0,2]"}),
        sample({"f32[4,0]", "i32[2]", "f32[2,0]"})};
    if (!floats) samples.push_back(sample({"i32[4,2]", "i32[3]", "i32[3,2]"}));
    return samples;
  }
  static Batched batch_with(const BatchContext& c,
                            Value (*op)(Value, Value, Value, int64_t, SourceLocation)) {
    size_t axis = axis_at(c.attrs<Attrs>().axis, c.op().operand(0).rank());
    size_t places = c.op().operand(1).shape().size();
    const SourceLocation& loc = c.op().loc();
    if (!c.batched(1)) {
      auto at = static_cast<int64_t>(axis) + 1;
      return Batched::all({op(c.carried(0), c.operand(1), c.carried(2), at, loc)});
    }
    if (c.size() == 0) return Batched::all({c.carried(0)});
    Merged m(c, c.carried(0), axis);
    Value updates = move_axes(c.carried(2), axis + 1, places, 1);
    return Batched::all({m.apart(op(m.x, m.ids, updates, 0, loc))});
  }
  // The id at position n, checked, and the operand `updates` there.
  static BodyNode id_at(const Op& op, const IndexExpr& n, BodyBuilder& b) {
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    BodyNode id = b.operand(1, delinearize(n, op.operand(1).shape()));
    return b.check(id, 0, op.operand(0).shape()[axis], std::nullopt, n);
  }
  static BodyNode update_at(const Op& op, std::span<const IndexExpr> at, const IndexExpr& n,
                            BodyBuilder& b) {
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    return b.operand(2, replace_axis(at, axis, delinearize(n, op.operand(1).shape())));
  }
};

struct Scatter : Scattering {
  static constexpr std::string_view name = "scatter";
  static constexpr std::string_view doc =
      "x (any dtype) where the slice of `axis` at each ids[p] (i32 or i64) is that of updates at "
      "p, the last p winning; an id outside the axis is an error when executed.";

  static Inferred infer(const InferContext& c) { return infer_with(c); }
  static Grads vjp(const VjpContext& c) {
    Value ids = c.operand(1), dy = c.grad();
    int64_t axis = c.attrs<Attrs>().axis.value;
    Grads grads(3);
    if (c.needs(0)) grads[0] = scatter(dy, ids, full_like(c.operand(2), 0.0), axis);
    if (!c.needs(2)) return grads;
    // An update counts where its position is the last that was written there.
    Graph& g = dy.graph();
    int64_t count = num_elements(ids.shape()), extent = c.operand(0).dim(axis);
    Value flat = reshape(ids, {count}), own = iota(g, {DType::I64, {count}}, 0);
    Value last = gather(scatter(full(g, {DType::I64, {extent}}, 0), flat, own), flat);
    Shape along(c.operand(2).shape().size(), 1);
    size_t first = axis_at(c.attrs<Attrs>().axis, c.operand(0).rank());
    std::copy(ids.shape().begin(), ids.shape().end(), along.begin() + static_cast<int64_t>(first));
    Value wins = broadcast_to(reshape(eq(last, own), along), c.operand(2).shape());
    grads[2] = where(wins, gather(dy, ids, axis), 0);
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) { return batch_with(c, scatter); }
  static std::vector<Sample> samples() { return samples_of(false); }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& ids = *c.operands[1];
    ReferenceTensor& y = c.results[0];
    y.data = c.operands[0]->data;
    Layout l(y.type.shape, ids.type.shape, c.op.attrs<Attrs>().axis);
    for (int64_t p = 0; p < l.count; ++p) {
      int64_t id = ids.data[static_cast<size_t>(p)].i;
      if (id < 0 || id >= l.extent) {
        c.bad_index(p, id, 0, l.extent);
        continue;
      }
      for (int64_t o = 0; o < l.outer; ++o)
        std::copy_n(c.operands[2]->data.begin() + (o * l.count + p) * l.inner, l.inner,
                    y.data.begin() + (o * l.extent + id) * l.inner);
    }
  }
  // The largest position with this id, or -1 when there is none.
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const TensorType& ids = op.operand(1).type();
    BodyNode x = b.operand(0, {at.begin(), at.end()});
    int64_t count = ids.elements();
    if (count == 0) return x;
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    Cell minus{};
    minus.i = -1;
    BodyNode none = b.literal(DType::I64, minus);
    auto element = [&](const IndexExpr& n) {
      BodyNode same = equals(b, id_at(op, n, b), at[axis], ids.dtype);
      return detail::select_node(b, same, b.index(n, DType::I64), none, DType::I64);
    };
    BodyNode last = b.reduce(Fn::Max, count, ReduceOrder{}, element);
    ScalarBuilder s, t;
    Expr position = max(s.param(DType::I64), 0), found = t.param(DType::I64) >= 0;
    BodyNode from = b.scalar(s.finish({&position, 1}), {&last, 1});
    BodyNode written = b.scalar(t.finish({&found, 1}), {&last, 1});
    BodyNode update = update_at(op, at, b.gathered(from, 0, count), b);
    return detail::select_node(b, written, update, x, op.result().dtype());
  }
};

struct ScatterAdd : Scattering {
  static constexpr std::string_view name = "scatter_add";
  static constexpr std::string_view doc =
      "x (float) plus, at each ids[p] (i32 or i64) of `axis`, the slice of updates at p: in rising "
      "p, then x, in f32 for bf16 and f16, rounded once; an id outside the axis is an error when "
      "executed.";

  static Inferred infer(const InferContext& c) {
    if (auto refused = detail::require_float(c, 0)) return *refused;
    return infer_with(c);
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(3);
    if (c.needs(0)) grads[0] = c.grad();
    if (c.needs(2)) grads[2] = gather(c.grad(), c.operand(1), c.attrs<Attrs>().axis.value);
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) { return batch_with(c, scatter_add); }
  static std::vector<Sample> samples() { return samples_of(true); }
  template <typename T>
  static void evaluate_as(EvaluateContext& c) {
    const ReferenceTensor& ids = *c.operands[1];
    ReferenceTensor& y = c.results[0];
    Layout l(y.type.shape, ids.type.shape, c.op.attrs<Attrs>().axis);
    std::vector<T> total(y.data.size(), T{0});
    for (int64_t p = 0; p < l.count; ++p) {
      int64_t id = ids.data[static_cast<size_t>(p)].i;
      if (id < 0 || id >= l.extent) {
        c.bad_index(p, id, 0, l.extent);
        continue;
      }
      for (int64_t o = 0; o < l.outer; ++o) {
        const Cell* from = c.operands[2]->data.data() + (o * l.count + p) * l.inner;
        T* to = total.data() + (o * l.extent + id) * l.inner;
        for (int64_t k = 0; k < l.inner; ++k) to[k] += static_cast<T>(from[k].f);
      }
    }
    for (size_t i = 0; i < total.size(); ++i) {
      Cell cell{};
      cell.f = static_cast<double>(total[i] + static_cast<T>(c.operands[0]->data[i].f));
      y.data[i] = canonical(y.type.dtype, cell);
    }
  }
  static void evaluate(EvaluateContext& c) {
    if (c.results[0].type.dtype == DType::F64)
      evaluate_as<double>(c);
    else
      evaluate_as<float>(c);
  }
  // A sum over all ids in which those of other places count as 0.
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const TensorType& ids = op.operand(1).type();
    DType dtype = op.result().dtype(), compute = compute_type(dtype);
    BodyNode x = b.operand(0, {at.begin(), at.end()});
    if (ids.elements() == 0) return x;
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    BodyNode zero = b.literal(compute, Cell{});
    auto element = [&](const IndexExpr& n) {
      BodyNode same = equals(b, id_at(op, n, b), at[axis], ids.dtype);
      BodyNode update = detail::cast_node(b, update_at(op, at, n, b), dtype, compute);
      return detail::select_node(b, same, update, zero, compute);
    };
    BodyNode parts[] = {b.reduce(Fn::Add, ids.elements(), ReduceOrder{}, element),
                        detail::cast_node(b, x, dtype, compute)};
    ScalarBuilder s;
    Expr first = s.param(compute), second = s.param(compute);
    Expr total = first + second;
    return detail::cast_node(b, b.scalar(s.finish({&total, 1}), parts), compute, dtype);
  }
};

// ---- take_along_axis

struct TakeAlongAxis {
  static constexpr std::string_view name = "take_along_axis";
  static constexpr std::string_view doc =
      "x (any dtype) at ids (i32 or i64) along `axis`, in the other axes at the same place: the "
      "shapes agree but for that axis; an id outside it is an error when executed.";
  static constexpr OperandSpec operands[] = {required("x"), required("ids")};
  static constexpr OpKind kind = OpKind::Gather;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = TakeAlongAxisAttrs;

  static Inferred infer(const InferContext& c) {
    const Axis& axis = c.attrs<Attrs>().axis;
    if (auto refused = refuse_indexing(c, axis)) return *refused;
    if (c.rank(0) != c.rank(1))
      return c.error("the ranks of {} and {} differ", c.describe(0), c.describe(1));
    for (size_t k = 0; k < c.shape(0).size(); ++k)
      if (k != axis_at(axis, c.rank(0)) && c.shape(0)[k] != c.shape(1)[k])
        return c.error("{} and {} disagree on axis {}: {} and {}", c.describe(0), c.describe(1), k,
                       c.shape(0)[k], c.shape(1)[k]);
    return std::vector{TensorType{c.type(0).dtype, c.shape(1)}};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    int64_t axis = c.attrs<Attrs>().axis.value;
    if (c.needs(0))
      grads[0] = take_along_axis_backward(c.operand(1), c.grad(), axis, c.operand(0).dim(axis));
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Gather::cost(op); }
  static std::vector<Sample> samples() {
    return {sample({"f32[4]", "i32[3]"}),
            sample({"f32[2,4]", "i64[2,2]"}),
            sample({"f32[4,2,3]", "i32[5,2,3]"}, {{"axis", int64_t{0}}}),
            sample({"bf16[2,4,1,2]", "i32[2,3,1,2]"}, {{"axis", int64_t{1}}}),
            sample({"i32[1,4]", "i32[1,0]"}),
            sample({"f32[2,0]", "i64[2,0]"}),
            sample({"f32[0,4]", "i32[0,2]"})};
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& x = *c.operands[0];
    const ReferenceTensor& ids = *c.operands[1];
    Layout l(x.type.shape, {}, c.op.attrs<Attrs>().axis);
    int64_t taken = ids.type.shape[l.axis];
    for (size_t i = 0; i < ids.data.size(); ++i) {
      int64_t id = ids.data[i].i, place = static_cast<int64_t>(i);
      if (id < 0 || id >= l.extent) {
        c.bad_index(place, id, 0, l.extent);
        id = 0;
      }
      int64_t outer = place / (taken * l.inner), inner = place % l.inner;
      c.results[0].data[i] = x.data[static_cast<size_t>((outer * l.extent + id) * l.inner + inner)];
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    if (op.operand(1).type().elements() == 0) return b.literal(op.result().dtype(), Cell{});
    size_t axis = axis_at(op.attrs<Attrs>().axis, op.operand(0).rank());
    int64_t extent = op.operand(0).shape()[axis];
    Places in(at.begin(), at.end());
    IndexExpr position = linearize(in, op.operand(1).shape());
    BodyNode id = b.check(b.operand(1, in), 0, extent, std::nullopt, position);
    in[axis] = b.gathered(id, 0, extent);
    return b.operand(0, std::move(in));
  }
};

struct TakeAlongAxisBackward {
  static constexpr std::string_view name = "take_along_axis_backward";
  static constexpr std::string_view doc =
      "The gradient of take_along_axis by x: at each place of `axis` the sum of the dy (float) "
      "whose id is that place, in rising order, in f32 for bf16 and f16, rounded once.";
  static constexpr OperandSpec operands[] = {required("ids"), required("dy")};
  static constexpr OpKind kind = OpKind::Scatter;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = TakeAlongAxisBackwardAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = detail::require_index(c, 0)) return *refused;
    if (auto refused = detail::require_float(c, 1)) return *refused;
    if (c.shape(0) != c.shape(1))
      return c.error("the shapes of {} and {} differ", c.describe(0), c.describe(1));
    auto axis = normalize_axis(a.axis.value, c.rank(0));
    if (!axis) return c.error("axis {} is out of range for {}", a.axis.value, c.describe(0));
    if (a.extent < 0 || (a.extent == 0 && c.type(0).elements() > 0))
      return c.error("extent = {} leaves nothing to index by {}", a.extent, c.describe(0));
    TensorType type = c.type(1);
    type.shape[static_cast<size_t>(*axis)] = a.extent;
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (c.needs(1)) grads[1] = take_along_axis(c.grad(), c.operand(0), c.attrs<Attrs>().axis.value);
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    cost.flops = static_cast<double>(op.operand(1).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() {
    AttrMap last{{"extent", int64_t{4}}};
    return {
        sample({"i32[3]", "f32[3]"}, last),
        sample({"i64[2,5]", "f32[2,5]"}, last),
        sample({"i32[5,2,3]", "f32[5,2,3]"}, {{"axis", int64_t{0}}, {"extent", int64_t{4}}}),
        sample({"i32[2,3,1,2]", "bf16[2,3,1,2]"}, {{"axis", int64_t{1}}, {"extent", int64_t{5}}}),
        sample({"i32[2,0]", "f32[2,0]"}, last),
        sample({"i32[0,2]", "f32[0,2]"}, last)};
  }
  template <typename T>
  static void evaluate_as(EvaluateContext& c) {
    const ReferenceTensor& ids = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    Layout l(y.type.shape, {}, c.op.attrs<Attrs>().axis);
    int64_t taken = ids.type.shape[l.axis];
    std::vector<T> total(y.data.size(), T{0});
    for (size_t i = 0; i < ids.data.size(); ++i) {
      int64_t id = ids.data[i].i, place = static_cast<int64_t>(i);
      if (id < 0 || id >= l.extent) continue;
      int64_t outer = place / (taken * l.inner), inner = place % l.inner;
      total[static_cast<size_t>((outer * l.extent + id) * l.inner + inner)] +=
          static_cast<T>(c.operands[1]->data[i].f);
    }
    for (size_t i = 0; i < total.size(); ++i) {
      Cell cell{};
      cell.f = static_cast<double>(total[i]);
      y.data[i] = canonical(y.type.dtype, cell);
    }
  }
  static void evaluate(EvaluateContext& c) {
    if (c.results[0].type.dtype == DType::F64)
      evaluate_as<double>(c);
    else
      evaluate_as<float>(c);
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const TensorType& ids = op.operand(0).type();
    size_t axis = axis_at(op.attrs<Attrs>().axis, ids.rank());
    DType dtype = op.result().dtype(), compute = compute_type(dtype);
    if (ids.elements() == 0) return b.literal(dtype, Cell{});
    BodyNode zero = b.literal(compute, Cell{});
    auto element = [&](const IndexExpr& n) {
      Places place = replace_axis(at, axis, {n});
      BodyNode same = equals(b, b.operand(0, place), at[axis], ids.dtype);
      BodyNode g = detail::cast_node(b, b.operand(1, std::move(place)), dtype, compute);
      return detail::select_node(b, same, g, zero, compute);
    };
    BodyNode total = b.reduce(Fn::Add, ids.shape[axis], ReduceOrder{}, element);
    return detail::cast_node(b, total, compute, dtype);
  }
};

// ---- masked_fill

struct MaskedFill {
  static constexpr std::string_view name = "masked_fill";
  static constexpr std::string_view doc =
      "`value` where mask (bool, of x's shape) holds, else x (any dtype).";
  static constexpr OperandSpec operands[] = {required("x"), required("mask")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = MaskedFillAttrs;

  static Inferred infer(const InferContext& c) {
    if (c.type(1) != TensorType{DType::Bool, c.shape(0)})
      return c.error("{} is not a mask of {}", c.describe(1), c.describe(0));
    if (const Number& value = c.attrs<Attrs>().value; !detail::fits(value, c.type(0).dtype))
      return c.error("value {} does not fit {}", to_string(detail::to_attr(value)), c.describe(0));
    return std::vector{c.type(0)};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (c.needs(0)) grads[0] = masked_fill(c.grad(), c.operand(1), 0.0);
    return grads;
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    return {masked_fill(c.tangent(), c.operand(1), 0.0)};
  }
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    return {where(op.operand(1), full_like(x, op.attrs<Attrs>().value), x)};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]", "bool[3]"}, {{"value", -1.5}}),
            sample({"f32[2,3]", "bool[2,3]"}),
            sample({"bf16[2,1,3]", "bool[2,1,3]"}, {{"value", int64_t{2}}}),
            sample({"i32[2]", "bool[2]"}, {{"value", int64_t{7}}}),
            sample({"f32[]", "bool[]"}),
            sample({"f32[0,2]", "bool[0,2]"})};
  }
};

}  // namespace

Value gather(Value x, Value ids, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of("gather", "x", x, loc);
  return build_op(graph, "gather", {x, ids}, GatherAttrs{Axis{axis}}, std::move(loc)).result();
}

Value scatter(Value x, Value ids, Value updates, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of("scatter", "x", x, loc);
  return build_op(graph, "scatter", {x, ids, updates}, GatherAttrs{Axis{axis}}, std::move(loc))
      .result();
}

Value scatter_add(Value x, Value ids, Value updates, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of("scatter_add", "x", x, loc);
  return build_op(graph, "scatter_add", {x, ids, updates}, GatherAttrs{Axis{axis}}, std::move(loc))
      .result();
}

Value take_along_axis(Value x, Value ids, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of("take_along_axis", "x", x, loc);
  detail::graph_of("take_along_axis", "ids", ids, loc);
  // Other axes of extent 1 are repeated to fit the other operand.
  auto at = normalize_axis(axis, x.rank());
  if (at && x.rank() == ids.rank()) {
    Shape wide_x = x.shape(), wide_ids = ids.shape();
    for (size_t k = 0; k < wide_x.size(); ++k) {
      if (static_cast<int64_t>(k) == *at) continue;
      if (wide_x[k] == 1) wide_x[k] = wide_ids[k];
      if (wide_ids[k] == 1) wide_ids[k] = wide_x[k];
    }
    x = broadcast_to(x, wide_x, loc);
    ids = broadcast_to(ids, wide_ids, loc);
  }
  return build_op(graph, "take_along_axis", {x, ids}, TakeAlongAxisAttrs{Axis{axis}},
                  std::move(loc))
      .result();
}

Value take_along_axis_backward(Value ids, Value dy, int64_t axis, int64_t extent,
                               SourceLocation loc) {
  Graph& graph = detail::graph_of("take_along_axis_backward", "ids", ids, loc);
  TakeAlongAxisBackwardAttrs attrs{Axis{axis}, extent};
  return build_op(graph, "take_along_axis_backward", {ids, dy}, attrs, std::move(loc)).result();
}

Value masked_fill(Value x, Value mask, Number value, SourceLocation loc) {
  Graph& graph = detail::graph_of("masked_fill", "x", x, loc);
  detail::graph_of("masked_fill", "mask", mask, loc);
  mask = broadcast_to(mask, x.shape(), loc);
  return build_op(graph, "masked_fill", {x, mask}, MaskedFillAttrs{value}, std::move(loc)).result();
}

void register_index(OpRegistry& r) {
  r.add<Gather>();
  r.add<Scatter>();
  r.add<ScatterAdd>();
  r.add<TakeAlongAxis>();
  r.add<TakeAlongAxisBackward>();
  r.add<MaskedFill>();
  register_dynamic_slice(r);
}

}  // namespace sinter
