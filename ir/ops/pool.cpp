#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/detail/window.h>
#include <sinter/ir/ops/pool.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

namespace sinter {

using detail::sample, detail::Window, detail::WindowAxis;
using List = std::vector<int64_t>;

namespace {

template <typename Attrs>
detail::WindowLists lists_of(const Attrs& a) {
  return {a.stride.empty() ? &a.kernel : &a.stride, &a.padding, nullptr};
}

template <typename Attrs>
Window window_over(Value x, const Attrs& a) {
  return detail::window_of(x.shape(), a.kernel, lists_of(a));
}

template <typename Attrs>
Inferred infer_pool(const InferContext& c) {
  const Attrs& a = c.attrs<Attrs>();
  TensorType type = c.type(0);
  if (type.dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
  if (a.kernel.empty() || type.shape.size() != a.kernel.size() + 2)
    return c.error("{} does not have 2 axes and those of the kernel {}", c.describe(0),
                   to_string(AttrValue(a.kernel)));
  if (auto refused = detail::refuse_window(c, type.shape, a.kernel, lists_of(a))) return *refused;
  Window window = detail::window_of(type.shape, a.kernel, lists_of(a));
  for (size_t i = 0; i < window.size(); ++i) {
    if (2 * window[i].padding > window[i].kernel)
      return c.error("the padding {} is more than half of the kernel's {}", window[i].padding,
                     window[i].kernel);
    type.shape[2 + i] = window[i].outputs();
  }
  return std::vector{type};
}

int64_t taps(const Window& window) {
  int64_t count = 1;
  for (const WindowAxis& a : window) count *= a.kernel;
  return count;
}

// [N, C, H, W] as [N, C, H / kernel, kernel, W / kernel, kernel], for windows side by side.
Shape tiled_shape(const Shape& shape, const Window& window) {
  Shape out(shape.begin(), shape.begin() + 2);
  for (const WindowAxis& a : window) {
    out.push_back(a.outputs());
    out.push_back(a.kernel);
  }
  return out;
}
// The axes that count within a window.
List inner_axes(const Window& window) {
  List axes;
  for (size_t i = 0; i < window.size(); ++i) axes.push_back(static_cast<int64_t>(3 + 2 * i));
  return axes;
}

std::vector<Value> values_of_taps(Value x, const Window& window, Number padding) {
  std::vector<Value> values;
  detail::for_each_tap(
      window, [&](const List& tap) { values.push_back(detail::tap_of(x, window, tap, padding)); });
  return values;
}

Number lowest(DType type) {
  Cell cell = identity_element(Fn::Max, type);
  return is_float(type) ? Number(cell.f) : Number(cell.i);
}

std::vector<Sample> pool_samples() {
  std::vector<Sample> samples = {
      sample({"f32[1,2,5]"}, {{"kernel", List{2}}}),
      sample({"f32[2,1,4,6]"}, {{"kernel", List{2, 3}}}),
      sample({"f32[1,2,5,4]"},
             {{"kernel", List{3, 2}}, {"stride", List{2, 1}}, {"padding", List{1, 1}}}),
      sample({"bf16[1,1,4,4]"}, {{"kernel", List{2, 2}}}),
      sample({"f32[1,1,1]"}, {{"kernel", List{1}}}),
      sample({"f32[0,2,4]"}, {{"kernel", List{2}}, {"stride", List{1}}})};
  for (Sample& s : samples) s.gap = 0.01;  // ties are kinks
  return samples;
}

// ---- max_pool

struct MaxPool {
  static constexpr std::string_view name = "max_pool";
  static constexpr std::string_view doc =
      "The largest element of each window over x [N, C, spatial…] (numeric), NaN if there is one; "
      "ties share the gradient evenly.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = PoolAttrs;

  static Inferred infer(const InferContext& c) { return infer_pool<Attrs>(c); }
  static Grads vjp(const VjpContext& c) {
    return {max_pool_backward(c.operand(0), c.result(), c.grad(), c.attrs<Attrs>())};
  }
  static constexpr auto jvp = Jvp::through_vjp;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), y;
    Window window = window_over(x, op.attrs<Attrs>());
    for (Value v : values_of_taps(x, window, lowest(x.dtype()))) y = y ? maximum(y, v) : v;
    return {y};
  }
  static std::vector<Sample> samples() {
    auto samples = pool_samples();
    samples.push_back(sample({"i32[1,1,3,3]"}, {{"kernel", List{3, 3}}, {"padding", List{1, 1}}}));
    return samples;
  }
};

struct MaxPoolBackward {
  static constexpr std::string_view name = "max_pool_backward";
  static constexpr std::string_view doc =
      "The gradient of max_pool by x: each window's dy, shared evenly by its elements that equal "
      "y; in f32 for bf16 and f16, rounded once.";
  static constexpr OperandSpec operands[] = {required("x"), required("y"), required("dy")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = PoolAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    if (auto refused = detail::require_float(c, 0)) return *refused;
    Inferred pooled = infer_pool<Attrs>(c);
    if (!pooled.ok()) return pooled;
    for (size_t i = 1; i < 3; ++i)
      if (c.type(i) != pooled.value()[0])
        return c.error("{} is not of the pooled type {}", c.describe(i), pooled.value()[0].str());
    return std::vector{c.type(0)};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 2); }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), y = op.operand(1), dy = detail::widen(op.operand(2));
    Window window = window_over(x, op.attrs<Attrs>());
    DType compute = dy.dtype();
    // An element of the padding never equals y, unless all of a window is -inf.
    std::vector<Value> winners, counts;
    for (Value v : values_of_taps(x, window, std::numeric_limits<double>::quiet_NaN())) {
      winners.push_back(eq(v, y));
      counts.push_back(cast(winners.back(), compute));
    }
    Value share = dy / (counts.size() == 1 ? counts[0] : add_n(counts));
    Value dx;
    if (detail::tiles_exactly(window)) {
      Shape tiled = tiled_shape(x.shape(), window);
      List inner = inner_axes(window);
      auto spread = [&](Value v) { return unreduce(v, tiled, inner); };
      Value zero = full(op.graph(), {compute, tiled}, 0.0);
      dx = reshape(where(eq(reshape(x, tiled), spread(y)), spread(share), zero), x.shape());
    } else {
      std::vector<Value> terms;
      size_t at = 0;
      Value zero = full_like(share, 0.0);
      if (x.type().elements() > 0)
        detail::for_each_tap(window, [&](const List& tap) {
          Value won = where(winners[at++], share, zero);
          if (Value term = detail::spread_tap(won, window, tap)) terms.push_back(term);
        });
      dx = terms.empty() ? full(op.graph(), {compute, x.shape()}, 0.0) : add_n(terms);
    }
    return {cast(dx, x.dtype())};
  }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples;
    for (const Sample& s : pool_samples()) {
      const Shape& x = s.operands[0].shape;
      PoolAttrs a;
      auto list = [&](const char* name) {
        auto it = s.attrs.find(name);
        return it == s.attrs.end() ? List{} : std::get<List>(it->second);
      };
      a.kernel = list("kernel");
      a.stride = list("stride");
      a.padding = list("padding");
      TensorType pooled = s.operands[0];
      Window window = detail::window_of(x, a.kernel, lists_of(a));
      for (size_t i = 0; i < window.size(); ++i) pooled.shape[2 + i] = window[i].outputs();
      Sample with = s;
      with.operands = {s.operands[0], pooled, pooled};
      samples.push_back(std::move(with));
    }
    return samples;
  }
};

// ---- avg_pool

struct AveragePool {
  static constexpr std::string_view name = "avg_pool";
  static constexpr std::string_view doc =
      "The mean of each window over x [N, C, spatial…] (float), in f32 for bf16 and f16, rounded "
      "once; the zeros of the padding count as elements unless count_padding is false.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AveragePoolAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    if (auto refused = detail::require_float(c, 0)) return *refused;
    return infer_pool<Attrs>(c);
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 1); }
  static Value total(Value x, const Window& window) {
    if (detail::tiles_exactly(window))
      return sum(reshape(x, tiled_shape(x.shape(), window)), inner_axes(window));
    std::vector<Value> values = values_of_taps(x, window, 0.0);
    return values.size() == 1 ? values[0] : add_n(std::move(values));
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0), wide = detail::widen(x);
    Window window = window_over(x, a);
    Value sums = total(wide, window);
    bool padded = false;
    for (const WindowAxis& w : window) padded = padded || w.padding > 0;
    if (a.count_padding || !padded)
      return {cast(sums / static_cast<double>(taps(window)), x.dtype())};
    Shape one = x.shape();
    one[0] = one[1] = 1;
    Value count = total(full(op.graph(), {wide.dtype(), one}, 1.0), window);
    return {cast(sums / count, x.dtype())};
  }
  static std::vector<Sample> samples() {
    auto samples = pool_samples();
    Sample inside = samples[2];
    inside.attrs["count_padding"] = false;
    samples.push_back(inside);
    return samples;
  }
};

template <typename Attrs>
Value build(std::string_view op, std::vector<Value> operands, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "x", operands[0], loc);
  return build_op(graph, op, std::move(operands), std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value max_pool(Value x, PoolAttrs attrs, SourceLocation loc) {
  return build("max_pool", {x}, std::move(attrs), std::move(loc));
}

Value avg_pool(Value x, AveragePoolAttrs attrs, SourceLocation loc) {
  return build("avg_pool", {x}, std::move(attrs), std::move(loc));
}

Value max_pool_backward(Value x, Value y, Value dy, PoolAttrs attrs, SourceLocation loc) {
  return build("max_pool_backward", {x, y, dy}, std::move(attrs), std::move(loc));
}

void register_pool(OpRegistry& r) {
  r.add<MaxPool>();
  r.add<MaxPoolBackward>();
  r.add<AveragePool>();
}

}  // namespace sinter
