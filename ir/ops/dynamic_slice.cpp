#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/index.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

// The refusal of a start that is not one index for each axis of operand 0.
std::optional<Diagnostic> refuse_start(const InferContext& c, size_t operand) {
  if (auto refused = detail::require_index(c, operand)) return refused;
  if (c.shape(operand) != Shape{c.rank(0)})
    return c.error("{} is not one index for each axis of {}", c.describe(operand), c.describe(0));
  return std::nullopt;
}

// `start` of one example for operands that carry all of them: no window moves along that axis.
Value carried_start(const BatchContext& c, size_t i) {
  Value start = c.operand(i);
  return concat({full(c.graph(), {start.dtype(), {1}}, 0), start}, 0);
}

// Where a window of these extents begins along each axis, moved to lie within `shape`.
List clamped(const ReferenceTensor& start, const Shape& shape, const Shape& window) {
  List out;
  for (size_t k = 0; k < shape.size(); ++k)
    out.push_back(std::clamp<int64_t>(start.data[k].i, 0, shape[k] - window[k]));
  return out;
}

// The same as an index expression; `start` is operand `i` of the op.
IndexExpr clamped(const Op& op, size_t i, size_t axis, int64_t most, BodyBuilder& b) {
  if (most == 0) return 0;
  ScalarBuilder s;
  DType type = op.operand(i).dtype();
  Expr at = min(max(s.param(type), 0), s.literal_integer(type, most));
  BodyNode start = b.operand(i, {IndexExpr(static_cast<int64_t>(axis))});
  return b.gathered(b.scalar(s.finish({&at, 1}), {&start, 1}), 0, most + 1);
}

// Calls f(element of the window, element of the whole) for a window at `start`.
template <typename F>
void for_each_in_window(const Shape& window, const Shape& whole, const List& start, F f) {
  List strides = row_major_strides(whole), at(window.size(), 0);
  int64_t count = num_elements(window);
  for (int64_t i = 0; i < count; ++i) {
    int64_t to = 0;
    for (size_t k = 0; k < at.size(); ++k) to += (start[k] + at[k]) * strides[k];
    f(static_cast<size_t>(i), static_cast<size_t>(to));
    for (size_t axis = window.size(); axis-- > 0;) {
      if (++at[axis] < window[axis]) break;
      at[axis] = 0;
    }
  }
}

struct DynamicSlice {
  static constexpr std::string_view name = "dynamic_slice";
  static constexpr std::string_view doc =
      "The window of x (any dtype) of extents `sizes` that begins at start (i32 or i64, one index "
      "for each axis), moved to lie within x.";
  static constexpr OperandSpec operands[] = {required("x"), required("start")};
  static constexpr OpKind kind = OpKind::Gather;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = DynamicSliceAttrs;

  static Inferred infer(const InferContext& c) {
    const List& sizes = c.attrs<Attrs>().sizes;
    if (auto refused = refuse_start(c, 1)) return *refused;
    if (sizes.size() != c.shape(0).size())
      return c.error("sizes needs {} entries, one for each axis of {}", c.rank(0), c.describe(0));
    for (size_t k = 0; k < sizes.size(); ++k)
      if (sizes[k] < 0 || sizes[k] > c.shape(0)[k])
        return c.error("a window of {} elements does not fit into axis {} of {}", sizes[k], k,
                       c.describe(0));
    return std::vector{TensorType{c.type(0).dtype, sizes}};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (c.needs(0))
      grads[0] = dynamic_update_slice(full_like(c.operand(0), 0.0), c.grad(), c.operand(1));
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    if (c.batched(1)) return detail::unroll(c);
    List sizes = c.attrs<Attrs>().sizes;
    sizes.insert(sizes.begin(), c.size());
    return Batched::all({dynamic_slice(c.operand(0), carried_start(c, 1), std::move(sizes))});
  }
  static Cost cost(const Op& op) {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(op.result().type().bytes());
    return cost;
  }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = {
        sample({"f32[5]", "i32[1]"}, {{"sizes", List{2}}}),
        sample({"f32[3,4]", "i64[2]"}, {{"sizes", List{2, 3}}}),
        sample({"bf16[2,1,3,2]", "i32[4]"}, {{"sizes", List{1, 1, 2, 2}}}),
        sample({"i64[4,2]", "i32[2]"}, {{"sizes", List{4, 1}}}),
        sample({"f32[3,2]", "i32[2]"}, {{"sizes", List{0, 1}}}),
        sample({"f32[]", "i32[0]"})};
    for (Sample& s : samples) s.integer_low = -3;  // some windows are moved
    return samples;
  }
  static void evaluate(EvaluateContext& c) {
    const Shape& whole = c.operands[0]->type.shape;
    const Shape& window = c.results[0].type.shape;
    for_each_in_window(
        window, whole, clamped(*c.operands[1], whole, window),
        [&](size_t i, size_t from) { c.results[0].data[i] = c.operands[0]->data[from]; });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& whole = op.operand(0).shape();
    const Shape& window = op.result().shape();
    std::vector<IndexExpr> in;
    for (size_t k = 0; k < at.size(); ++k)
      in.push_back(at[k] + clamped(op, 1, k, whole[k] - window[k], b));
    return b.operand(0, std::move(in));
  }
};

struct DynamicUpdateSlice {
  static constexpr std::string_view name = "dynamic_update_slice";
  static constexpr std::string_view doc =
      "x (any dtype) with update in place of the window that begins at start (i32 or i64, one "
      "index for each axis), moved to lie within x.";
  static constexpr OperandSpec operands[] = {required("x"), required("update"), required("start")};
  static constexpr OpKind kind = OpKind::Gather;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = refuse_start(c, 2)) return *refused;
    if (c.type(1).dtype != c.type(0).dtype)
      return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(1));
    if (c.rank(1) != c.rank(0))
      return c.error("the ranks of {} and {} differ", c.describe(0), c.describe(1));
    for (size_t k = 0; k < c.shape(0).size(); ++k)
      if (c.shape(1)[k] > c.shape(0)[k])
        return c.error("{} does not fit into axis {} of {}", c.describe(1), k, c.describe(0));
    return std::vector{c.type(0)};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(3);
    Value start = c.operand(2);
    if (c.needs(0)) grads[0] = dynamic_update_slice(c.grad(), full_like(c.operand(1), 0.0), start);
    if (c.needs(1)) grads[1] = dynamic_slice(c.grad(), start, c.operand(1).shape());
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    if (c.batched(2)) return detail::unroll(c);
    return Batched::all({dynamic_update_slice(c.carried(0), c.carried(1), carried_start(c, 2))});
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = {sample({"f32[5]", "f32[2]", "i32[1]"}),
                                   sample({"f32[3,4]", "f32[2,3]", "i64[2]"}),
                                   sample({"bf16[2,1,3,2]", "bf16[1,1,2,2]", "i32[4]"}),
                                   sample({"i64[4,2]", "i64[4,1]", "i32[2]"}),
                                   sample({"f32[3,2]", "f32[0,1]", "i32[2]"}),
                                   sample({"f32[]", "f32[]", "i32[0]"})};
    for (Sample& s : samples) s.integer_low = -3;
    return samples;
  }
  static void evaluate(EvaluateContext& c) {
    const Shape& whole = c.operands[0]->type.shape;
    const Shape& window = c.operands[1]->type.shape;
    c.results[0].data = c.operands[0]->data;
    for_each_in_window(
        window, whole, clamped(*c.operands[2], whole, window),
        [&](size_t i, size_t to) { c.results[0].data[to] = c.operands[1]->data[i]; });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& whole = op.operand(0).shape();
    const TensorType& window = op.operand(1).type();
    BodyNode x = b.operand(0, {at.begin(), at.end()});
    if (window.elements() == 0) return x;
    Guard inside;
    std::vector<IndexExpr> in;
    for (size_t k = 0; k < at.size(); ++k) {
      in.push_back(at[k] - clamped(op, 2, k, whole[k] - window.shape[k], b));
      inside.add(in.back(), 0, window.shape[k]);
    }
    if (inside.always()) return b.operand(1, std::move(in));
    BodyNode update = b.operand(1, std::move(in), inside);
    return detail::select_node(b, b.guard(inside), update, x, op.result().dtype());
  }
};

}  // namespace

Value dynamic_slice(Value x, Value start, std::vector<int64_t> sizes, SourceLocation loc) {
  Graph& graph = detail::graph_of("dynamic_slice", "x", x, loc);
  return build_op(graph, "dynamic_slice", {x, start}, DynamicSliceAttrs{std::move(sizes)},
                  std::move(loc))
      .result();
}

Value dynamic_update_slice(Value x, Value update, Value start, SourceLocation loc) {
  Graph& graph = detail::graph_of("dynamic_update_slice", "x", x, loc);
  return build_op(graph, "dynamic_update_slice", {x, update, start}, NoAttrs{}, std::move(loc))
      .result();
}

void register_dynamic_slice(OpRegistry& r) {
  r.add<DynamicSlice>();
  r.add<DynamicUpdateSlice>();
}

}  // namespace sinter
