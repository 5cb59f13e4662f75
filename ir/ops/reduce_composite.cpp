#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/axes.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/reduce_composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/view.h>

#include <limits>

namespace sinter {
namespace {

using detail::AxesAttrs, detail::check_axes, detail::count_over, detail::is_narrow,
    detail::require_float, detail::sample_of, detail::widen;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Axes of an op that passed `infer`.
std::vector<int64_t> axes_of(const Op& op) {
  return *detail::axes_of(op.attrs<AxesAttrs>().axes.value, op.operand(0).rank());
}

struct FloatReduction {
  using Attrs = AxesAttrs;
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_float(c, 0)) return *refused;
    const auto& a = c.attrs<AxesAttrs>();
    if (auto refused = check_axes(c, a.axes.value)) return *refused;
    auto axes = *detail::axes_of(a.axes.value, c.rank(0));
    return std::vector{TensorType{c.type(0).dtype, reduced_shape(c.shape(0), axes, a.keep)}};
  }
  static constexpr auto batch = Batch::shift_reduced_axes;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 3.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() {
    using L = std::vector<int64_t>;
    const DType f = DType::F32;
    return {sample_of({{f, {5}}}, {{"axes", L{0}}}),
            sample_of({{f, {3, 4}}}, {{"axes", L{1}}, {"keep", true}}),
            sample_of({{f, {2, 3, 4}}}, {{"axes", L{0, 2}}}),
            sample_of({{f, {2, 3, 4}}}, {{"axes", L{-1, 1}}, {"keep", true}}),
            sample_of({{f, {2, 3}}}),
            sample_of({{f, {}}}),
            sample_of({{f, {0, 3}}}, {{"axes", L{1}}}),
            sample_of({{DType::BF16, {4, 6}}}, {{"axes", L{1}}})};
  }
};

struct Mean : FloatReduction {
  static constexpr std::string_view name = "mean";
  static constexpr std::string_view doc =
      "arithmetic mean over axes: the sum divided by the count; NaN of no elements";

  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    auto axes = axes_of(op);
    double count = static_cast<double>(count_over(x.shape(), axes));
    Value total = sum(widen(x), axes, op.attrs<AxesAttrs>().keep);
    return {cast(total / count, x.dtype())};
  }
  static constexpr auto jvp = Jvp::linear;
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    auto axes = axes_of(c.op());
    double count = static_cast<double>(count_over(x.shape(), axes));
    return {unreduce(cast(widen(c.grad()) / count, x.dtype()), x.shape(), axes)};
  }
};

struct Norm : FloatReduction {
  static constexpr std::string_view name = "norm";
  static constexpr std::string_view doc =
      "2-norm over axes, 0 of no elements; its gradient at zero is 0";

  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    auto axes = axes_of(op);
    Value wide = widen(x);
    // Squares are taken of x / max|x|: they neither underflow nor overflow. That of no elements is
    // -inf.
    Value largest = max(abs(wide), axes, true);
    Value scale = where(logical_and(gt(largest, 0.0), lt(largest, kInf)), largest, 1.0);
    Value length = scale * sqrt(sum(square(wide / scale), axes, true));
    return {cast(reshape(length, op.result().shape()), x.dtype())};
  }
  static constexpr auto jvp = Jvp::through_vjp;
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    auto axes = axes_of(c.op());
    Value wide = widen(x);
    // A length rounded to 8 bits would tilt the gradient.
    Value length = is_narrow(x) ? norm(wide, axes) : c.result();
    Value divisor = where(eq(length, 0.0), 1.0, length);
    Value direction = wide / unreduce(divisor, x.shape(), axes);
    Value dy = unreduce(widen(c.grad()), x.shape(), axes);
    return {cast(grad_mul(dy, direction), x.dtype())};
  }
};

struct LogSumExp : FloatReduction {
  static constexpr std::string_view name = "logsumexp";
  static constexpr std::string_view doc =
      "log of the sum of exponentials over axes, shifted by the maximum; -inf of no elements";

  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    auto axes = axes_of(op);
    Value wide = widen(x);
    Value largest = max(wide, axes, true);
    // inf - inf would be NaN: an infinite maximum shifts by nothing.
    Value shift = where(eq(abs(largest), kInf), 0.0, largest);
    Value y = shift + log(sum(exp(wide - shift), axes, true));
    return {cast(reshape(y, op.result().shape()), x.dtype())};
  }
  static constexpr auto jvp = Jvp::through_vjp;
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    auto axes = axes_of(c.op());
    Value wide = widen(x);
    Value y = is_narrow(x) ? logsumexp(wide, axes) : c.result();
    Value shift = where(eq(y, -kInf), 0.0, y);
    Value weight = exp(wide - unreduce(shift, x.shape(), axes));
    Value dy = unreduce(widen(c.grad()), x.shape(), axes);
    return {cast(grad_mul(dy, weight), x.dtype())};
  }
};

Value reduction(std::string_view name, Value v, std::vector<int64_t> axes, bool keep,
                SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "x", v, loc);
  return build_op(graph, name, {v}, AxesAttrs{{std::move(axes)}, keep}, std::move(loc)).result();
}

}  // namespace

Value mean(Value v, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return reduction("mean", v, std::move(axes), keep, std::move(loc));
}
Value norm(Value v, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return reduction("norm", v, std::move(axes), keep, std::move(loc));
}
Value logsumexp(Value v, std::vector<int64_t> axes, bool keep, SourceLocation loc) {
  return reduction("logsumexp", v, std::move(axes), keep, std::move(loc));
}

void register_reduce_composites(OpRegistry& r) {
  r.add<Mean>();
  r.add<Norm>();
  r.add<LogSumExp>();
}

}  // namespace sinter
