#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/prefix.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

std::vector<int64_t> reduced_axes(const ReduceAttrs& attrs, int64_t rank) {
  auto axes = normalize_axes(attrs.axes.value, rank);
  SINTER_CHECK(axes.has_value(), "axes {} of a tensor of rank {}",
               to_string(AttrValue(attrs.axes.value)), rank);
  if (axes->empty())
    for (int64_t i = 0; i < rank; ++i) axes->push_back(i);
  return *axes;
}

Shape reduced_shape(const Shape& shape, const std::vector<int64_t>& axes, bool keep) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i) {
    bool reduced = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i));
    if (!reduced)
      out.push_back(shape[i]);
    else if (keep)
      out.push_back(1);
  }
  return out;
}

Fn combine_of(const Op& op) {
  if (op.is("max")) return Fn::Max;
  if (op.is("min")) return Fn::Min;
  if (op.is("prod")) return Fn::Mul;
  SINTER_CHECK(op.is("sum"), "{} is not a plain reduction", op.name());
  return Fn::Add;
}

Value unreduce(Value reduced, const Shape& shape, const std::vector<int64_t>& axes,
               SourceLocation loc) {
  return broadcast_to(reshape(reduced, reduced_shape(shape, axes, true), loc), shape, loc);
}

namespace {

// ---- What the three reductions share

// A block of threads on a GPU; the elements that 16 bytes hold.
constexpr int64_t kMostLanes = 1024, kMostSlots = 16;

Inferred infer_reduce(const InferContext& c) {
  const auto& a = c.attrs<ReduceAttrs>();
  TensorType type = c.type(0);
  if (type.dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
  if (!normalize_axes(a.axes.value, type.rank()))
    return c.error("axes {} do not fit {}: each must be in {}..{} and named once",
                   to_string(AttrValue(a.axes.value)), c.describe(0), -type.rank(),
                   type.rank() - 1);
  if (a.lanes < 0 || a.lanes > kMostLanes || (a.lanes & (a.lanes - 1)) != 0)
    return c.error("lanes = {} is not a power of two up to {}", a.lanes, kMostLanes);
  if (a.vector < 0 || a.vector > kMostSlots)
    return c.error("vector = {} is not in 0..{}", a.vector, kMostSlots);
  type.shape = reduced_shape(type.shape, reduced_axes(a, type.rank()), a.keep);
  return std::vector{type};
}

std::vector<Sample> reduce_samples() {
  std::vector<Sample> samples = {
      sample({"f32[5]"}, {{"axes", List{0}}}),
      sample({"f32[2,3]"}, {{"axes", List{-1}}}),
      sample({"f32[2,3]"}, {{"axes", List{0}}, {"keep", true}}),
      sample({"f32[2,3,4]"}, {{"axes", List{0, 2}}}),
      sample({"f32[2,3,4]"}),
      sample({"bf16[3,20]"}, {{"axes", List{1}}, {"lanes", int64_t{4}}, {"vector", int64_t{2}}}),
      sample({"f32[37,2]"}, {{"axes", List{0}}, {"lanes", int64_t{8}}, {"vector", int64_t{3}}}),
      sample({"i32[2,3]"}, {{"axes", List{1}}}),
      sample({"f32[1,4]"}, {{"axes", List{0}}}),
      sample({"f32[0,3]"}, {{"axes", List{0}}}),
      sample({"f32[0,3]"}, {{"axes", List{1}}}),
      sample({"f32[]"})};
  for (Sample& s : samples) s.gap = 0.01;  // ties are kinks of max and min
  return samples;
}

// Folds `at(r)` for r in 0..count-1 in the order of `order`; `room` keeps the accumulators.
template <typename T, typename At, typename Combine>
T fold(int64_t count, ReduceOrder order, T start, std::vector<T>& room, At at, Combine combine) {
  if (order == ReduceOrder{}) {
    T total = start;
    for (int64_t r = 0; r < count; ++r) total = combine(total, at(r));
    return total;
  }
  room.assign(static_cast<size_t>(order.lanes * order.vector), start);
  int64_t slot = 0;
  for (int64_t r = 0; r < count; ++r) {
    T& total = room[static_cast<size_t>(slot)];
    total = combine(total, at(r));
    // (r / vector) % lanes, r % vector: slots in this order are consecutive.
    if (++slot == order.lanes * order.vector) slot = 0;
  }
  for (int64_t lane = 0; lane < order.lanes; ++lane) {
    T total = room[static_cast<size_t>(lane * order.vector)];
    for (int64_t v = 1; v < order.vector; ++v)
      total = combine(total, room[static_cast<size_t>(lane * order.vector + v)]);
    room[static_cast<size_t>(lane)] = total;
  }
  for (int64_t width = 1; width < order.lanes; width *= 2)
    for (int64_t lane = 0; lane < order.lanes; lane += 2 * width)
      room[static_cast<size_t>(lane)] =
          combine(room[static_cast<size_t>(lane)], room[static_cast<size_t>(lane + width)]);
  return room[0];
}

// Offsets in the operand of each result element and, from there, of each reduced one.
struct Offsets {
  List outer, inner;
};

List offsets_over(const Shape& shape, const List& axes) {
  List strides = row_major_strides(shape), out{0};
  for (int64_t axis : axes) {
    auto k = static_cast<size_t>(axis);
    List next;
    next.reserve(out.size() * static_cast<size_t>(shape[k]));
    for (int64_t base : out)
      for (int64_t i = 0; i < shape[k]; ++i) next.push_back(base + i * strides[k]);
    out = std::move(next);
  }
  return out;
}

Offsets offsets(const Shape& shape, const List& axes) {
  List kept;
  for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), i)) kept.push_back(i);
  return {offsets_over(shape, kept), offsets_over(shape, axes)};
}

template <Fn kCombine, typename T>
T combine_two(T a, T b) {
  if constexpr (kCombine == Fn::Add) {
    // Integers wrap.
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
      return a + b;
  } else if constexpr (kCombine == Fn::Mul) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else
      return a * b;
  } else {
    if constexpr (!std::is_integral_v<T>)
      if (a != a || b != b) return a + b;
    if constexpr (kCombine == Fn::Max)
      return a > b ? a : b;
    else
      return a < b ? a : b;
  }
}

template <Fn kCombine, typename T>
void evaluate_as(EvaluateContext& c) {
  const auto& attrs = c.op.attrs<ReduceAttrs>();
  const ReferenceTensor& x = *c.operands[0];
  ReferenceTensor& y = c.results[0];
  Offsets at = offsets(x.type.shape, reduced_axes(attrs, x.type.rank()));
  auto count = static_cast<int64_t>(at.inner.size());
  Cell first = identity_element(kCombine, y.type.dtype);
  T start = std::is_integral_v<T> ? static_cast<T>(first.i) : static_cast<T>(first.f);
  std::vector<T> room;
  for (size_t i = 0; i < y.data.size(); ++i) {
    const Cell* base = x.data.data() + at.outer[i];
    auto element = [&](int64_t r) {
      const Cell& cell = base[at.inner[static_cast<size_t>(r)]];
      return std::is_integral_v<T> ? static_cast<T>(cell.i) : static_cast<T>(cell.f);
    };
    T total = fold<T>(count, attrs.order(), start, room, element, combine_two<kCombine, T>);
    Cell cell{};
    if constexpr (std::is_integral_v<T>)
      cell.i = total;
    else
      cell.f = static_cast<double>(total);
    y.data[i] = canonical(y.type.dtype, cell);
  }
}

template <Fn kCombine>
void evaluate_reduce(EvaluateContext& c) {
  DType type = c.results[0].type.dtype;
  if (type == DType::F64)
    evaluate_as<kCombine, double>(c);
  else if (is_float(type))
    evaluate_as<kCombine, float>(c);
  else
    evaluate_as<kCombine, int64_t>(c);
}

BodyNode reduce_body(Fn combine, const Op& op, std::span<const IndexExpr> at, BodyBuilder& b) {
  const auto& attrs = op.attrs<ReduceAttrs>();
  const TensorType& type = op.operand(0).type();
  DType compute = compute_type(type.dtype);
  List axes = reduced_axes(attrs, type.rank());
  Shape extents;
  for (int64_t axis : axes) extents.push_back(type.shape[static_cast<size_t>(axis)]);
  int64_t count = num_elements(extents);
  if (count == 0) return b.literal(type.dtype, identity_element(combine, type.dtype));
  auto element = [&](const IndexExpr& r) {
    std::vector<IndexExpr> inner = delinearize(r, extents), in;
    size_t next_inner = 0, next_outer = 0;
    for (size_t k = 0; k < type.shape.size(); ++k) {
      bool reduced = next_inner < axes.size() && axes[next_inner] == static_cast<int64_t>(k);
      in.push_back(reduced ? inner[next_inner++] : at[next_outer]);
      if (!reduced || attrs.keep) ++next_outer;
    }
    return detail::cast_node(b, b.operand(0, std::move(in)), type.dtype, compute);
  };
  return detail::cast_node(b, b.reduce(combine, count, attrs.order(), element), compute,
                           type.dtype);
}

Cost reduce_cost(const Op& op) {
  Cost cost = Cost::bytes_moved(op, 0);
  cost.flops = static_cast<double>(op.operand(0).type().elements());
  return cost;
}

// Each element equal to the result gets the same share, so that the total is preserved.
Grads extremum_vjp(const VjpContext& c) {
  Value x = c.operand(0), y = c.result();
  List axes = reduced_axes(c.attrs<ReduceAttrs>(), x.rank());
  DType compute = compute_type(x.dtype());
  Value winner = eq(x, unreduce(y, x.shape(), axes));
  Value count = reshape(sum(cast(winner, compute), axes), y.shape());
  Value share = cast(div(cast(c.grad(), compute), count), x.dtype());
  return {where(winner, unreduce(share, x.shape(), axes), full_like(x, 0.0))};
}

// The mean of the tangents of those elements.
std::vector<Value> extremum_jvp(const JvpContext& c) {
  Value x = c.operand(0), y = c.result();
  List axes = reduced_axes(c.attrs<ReduceAttrs>(), x.rank());
  DType compute = compute_type(x.dtype());
  Value winner = eq(x, unreduce(y, x.shape(), axes));
  Value count = sum(cast(winner, compute), axes);
  Value total = sum(where(winner, cast(c.tangent(), compute), 0.0), axes);
  return {reshape(cast(div(total, count), x.dtype()), y.shape())};
}

// For each element of x the product of the others that are multiplied with it, in the compute type:
// those before it times those behind it. Nothing is divided, so zeros do no harm.
Value product_of_others(Value x, const List& axes) {
  Value wide = cast(x, compute_type(x.dtype()));
  List order, back(static_cast<size_t>(x.rank()));
  for (int64_t i = 0; i < x.rank(); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), i)) order.push_back(i);
  order.insert(order.end(), axes.begin(), axes.end());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  Value last = x.rank() > 0 ? permute(wide, order) : wide;
  int64_t count = 1;
  for (int64_t axis : axes) count *= x.dim(axis);
  int64_t rows = count == 0 ? 0 : x.type().elements() / count;
  Value row = reshape(last, {rows, count});
  Value others = cumprod(row, 1, false, true) * cumprod(row, 1, true, true);
  others = reshape(others, last.shape());
  return x.rank() > 0 ? permute(others, back) : others;
}

// ---- The ops

struct Sum {
  static constexpr std::string_view name = "sum";
  static constexpr std::string_view doc =
      "The sum of x (numeric) over `axes`; bf16 and f16 add up in f32 and round once, integers "
      "wrap; 0 of no elements.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Reduce;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReduceAttrs;
  static Inferred infer(const InferContext& c) { return infer_reduce(c); }
  static Grads vjp(const VjpContext& c) {
    const Shape& shape = c.operand(0).shape();
    List axes = reduced_axes(c.attrs<Attrs>(), c.operand(0).rank());
    return {unreduce(c.grad(), shape, axes)};
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_reduced_axes;
  static Cost cost(const Op& op) { return reduce_cost(op); }
  static std::vector<Sample> samples() { return reduce_samples(); }
  static void evaluate(EvaluateContext& c) { evaluate_reduce<Fn::Add>(c); }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return reduce_body(Fn::Add, op, at, b);
  }
};

struct Prod {
  static constexpr std::string_view name = "prod";
  static constexpr std::string_view doc =
      "The product of x (numeric) over `axes`; bf16 and f16 multiply in f32 and round once, "
      "integers wrap; 1 of no elements. Its gradient is right with zeros.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Reduce;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReduceAttrs;
  static Inferred infer(const InferContext& c) { return infer_reduce(c); }
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    List axes = reduced_axes(c.attrs<Attrs>(), x.rank());
    Value dy = unreduce(cast(c.grad(), compute_type(x.dtype())), x.shape(), axes);
    return {cast(grad_mul(dy, product_of_others(x, axes)), x.dtype())};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    Value x = c.operand(0);
    const auto& a = c.attrs<Attrs>();
    List axes = reduced_axes(a, x.rank());
    Value dx = cast(c.tangent(), compute_type(x.dtype()));
    Value terms = grad_mul(dx, product_of_others(x, axes));
    return {cast(sum(terms, axes, a.keep), x.dtype())};
  }
  static constexpr auto batch = Batch::shift_reduced_axes;
  static Cost cost(const Op& op) { return reduce_cost(op); }
  static std::vector<Sample> samples() { return reduce_samples(); }
  static void evaluate(EvaluateContext& c) { evaluate_reduce<Fn::Mul>(c); }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return reduce_body(Fn::Mul, op, at, b);
  }
};

template <Fn kCombine>
struct Extremum {
  static constexpr bool kLargest = kCombine == Fn::Max;
  static constexpr std::string_view name = kLargest ? "max" : "min";
  static constexpr std::string_view doc =
      kLargest
          ? "The largest element of x (numeric) over `axes`, NaN if there is one, the lower end of "
            "the type's range if there are none; ties share the gradient evenly."
          : "The smallest element of x (numeric) over `axes`, NaN if there is one, the upper end "
            "of "
            "the type's range if there are none; ties share the gradient evenly.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Reduce;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReduceAttrs;
  static Inferred infer(const InferContext& c) { return infer_reduce(c); }
  static Grads vjp(const VjpContext& c) { return extremum_vjp(c); }
  static std::vector<Value> jvp(const JvpContext& c) { return extremum_jvp(c); }
  static constexpr auto batch = Batch::shift_reduced_axes;
  static Cost cost(const Op& op) { return reduce_cost(op); }
  static std::vector<Sample> samples() { return reduce_samples(); }
  static void evaluate(EvaluateContext& c) { evaluate_reduce<kCombine>(c); }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return reduce_body(kCombine, op, at, b);
  }
};

Value build_reduce(std::string_view op, Value x, List axes, bool keep, SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "x", x, loc);
  ReduceAttrs attrs;
  attrs.keep = keep;
  attrs.axes.value = axes;
  // Spelt out, so that equal reductions have equal attributes; what does not fit is refused below.
  if (normalize_axes(axes, x.rank())) attrs.axes.value = reduced_axes(attrs, x.rank());
  return build_op(graph, op, {x}, std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value sum(Value x, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return build_reduce("sum", x, std::move(axes), keep, std::move(loc));
}
Value prod(Value x, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return build_reduce("prod", x, std::move(axes), keep, std::move(loc));
}
Value max(Value x, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return build_reduce("max", x, std::move(axes), keep, std::move(loc));
}
Value min(Value x, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return build_reduce("min", x, std::move(axes), keep, std::move(loc));
}

void register_reduce(OpRegistry& r) {
  r.add<Sum>();
  r.add<Prod>();
  r.add<Extremum<Fn::Max>>();
  r.add<Extremum<Fn::Min>>();
  register_reduce_composites(r);
}

}  // namespace sinter
