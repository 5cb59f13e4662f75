#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/channel_norm.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/reduce_composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {
namespace {

using detail::count_over, detail::is_narrow, detail::require_float, detail::require_same,
    detail::sample_of, detail::widen;
using List = std::vector<int64_t>;

struct L2Attrs {
  Axis axis;
  double eps = 1e-12;
  static constexpr auto fields() {
    return std::tuple{field("axis", &L2Attrs::axis, "the axis of a vector"),
                      field("eps", &L2Attrs::eps, "the least divisor")};
  }
};
struct GroupAttrs {
  int64_t groups = 1;
  double eps = 1e-5;
  static constexpr auto fields() {
    return std::tuple{field("groups", &GroupAttrs::groups, "into how many runs channels fall"),
                      field("eps", &GroupAttrs::eps, "added to the variance")};
  }
};
struct BatchAttrs {
  double eps = 1e-5;
  static constexpr auto fields() {
    return std::tuple{field("eps", &BatchAttrs::eps, "added to the variance")};
  }
};

Cost norm_cost(const Op& op, double flops_per_element) {
  Cost cost = Cost::bytes_moved(op);
  cost.flops = flops_per_element * static_cast<double>(op.operand(0).type().elements());
  return cost;
}

// ---- What the normalizations share

// x [N,C,…] and `count` operands from `first` on that have an element a channel.
std::optional<Diagnostic> check_channels(const InferContext& c, size_t first, size_t count) {
  if (auto refused = require_float(c, 0)) return refused;
  if (c.rank(0) < 2) return c.error("{} must have shape [N,C,…]", c.describe(0));
  DType type = c.type(0).dtype;
  Shape channels{c.shape(0)[1]};
  for (size_t i = first; i < first + count; ++i) {
    if (c.type(i).dtype != type && c.type(i).dtype != compute_type(type))
      return c.error("{} must have the dtype of {}, or f32", c.describe(i), c.describe(0));
    if (c.shape(i) != channels)
      return c.error("{} must have shape {}, the channels of {}", c.describe(i),
                     to_string(channels), c.describe(0));
  }
  return std::nullopt;
}

std::optional<Diagnostic> check_groups(const InferContext& c) {
  int64_t groups = c.attrs<GroupAttrs>().groups;
  if (groups > 0 && c.shape(0)[1] % groups == 0) return std::nullopt;
  return c.error("{} groups do not divide the {} channels of {}", groups, c.shape(0)[1],
                 c.describe(0));
}

// [C] as it goes with [N,C,…].
Value per_channel(Value v, Value x) {
  Shape shape(static_cast<size_t>(x.rank()), 1);
  shape[1] = x.dim(1);
  return reshape(widen(v), shape);
}
List all_but_channels(Value x) {
  List axes{0};
  for (int64_t i = 2; i < x.rank(); ++i) axes.push_back(i);
  return axes;
}
// The mean over axes, which stay; 0 of nothing.
Value average(Value v, const List& axes) {
  double count = static_cast<double>(std::max<int64_t>(count_over(v.shape(), axes), 1));
  return sum(v, axes, true) / count;
}

struct Normalized {
  Value x_hat, rstd, mean, variance;
};
Normalized normalize(Value wide, const List& axes, double eps) {
  Value mean = average(wide, axes);
  Value d = wide - mean;
  Value variance = average(square(d), axes);
  Value rstd = rsqrt(variance + eps);
  return {d * rstd, rstd, mean, variance};
}
// The cotangent of what was normalized, given that of x_hat.
Value normalize_backward(const Normalized& n, Value dx_hat, const List& axes) {
  return n.rstd * (dx_hat - average(dx_hat, axes) - n.x_hat * average(dx_hat * n.x_hat, axes));
}

std::vector<Sample> channel_samples(size_t parameters, size_t cotangents,
                                    std::vector<AttrMap> attrs, bool positive = false) {
  std::vector<Sample> samples;
  auto add = [&](TensorType x, DType parameter, const AttrMap& with) {
    std::vector<TensorType> types{x};
    types.insert(types.end(), parameters, TensorType{parameter, {x.shape[1]}});
    types.insert(types.end(), cotangents, x);
    samples.push_back(sample_of(std::move(types), with));
    if (positive) samples.back().low = 0.3;
  };
  const DType f = DType::F32;
  add({f, {3, 4}}, f, attrs[0]);
  add({f, {2, 4, 3}}, f, attrs[1]);
  add({f, {2, 2, 3, 2}}, f, attrs[1]);
  add({f, {0, 4, 2}}, f, attrs[0]);
  add({f, {2, 4, 1, 3}}, f, attrs[0]);
  add({DType::BF16, {3, 4, 2}}, DType::BF16, attrs[0]);
  add({DType::BF16, {3, 4, 2}}, f, attrs[1]);
  return samples;
}

struct ChannelNorm {
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) { return norm_cost(op, 12); }
};

// ---- l2_normalize

struct L2Normalize {
  static constexpr std::string_view name = "l2_normalize";
  static constexpr std::string_view doc =
      "x over its 2-norm along an axis, or over eps where that is larger";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = L2Attrs;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::shift_axes;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_float(c, 0)) return *refused;
    const Attrs& a = c.attrs<Attrs>();
    if (!normalize_axis(a.axis.value, c.rank(0)))
      return c.error("axis {} is not an axis of {}", a.axis.value, c.describe(0));
    if (!(a.eps > 0)) return c.error("eps {} is not above 0", to_string(AttrValue(a.eps)));
    return std::vector{c.type(0)};
  }
  static List axes(const Op& op) {
    return {*normalize_axis(op.attrs<Attrs>().axis.value, op.operand(0).rank())};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = widen(op.operand(0));
    Value length = maximum(norm(x, axes(op), true), op.attrs<Attrs>().eps);
    return {cast(x / length, op.operand(0).dtype())};
  }
  // What lies along y changes nothing; below eps the divisor is constant.
  static Grads vjp(const VjpContext& c) {
    Value x = widen(c.operand(0)), dy = widen(c.grad());
    List over = axes(c.op());
    double eps = c.attrs<Attrs>().eps;
    Value length = norm(x, over, true);
    Value y = x / maximum(length, eps);
    Value along = where(gt(length, eps), sum(dy * y, over, true), 0.0);
    return {cast((dy - y * along) / maximum(length, eps), c.operand(0).dtype())};
  }
  static Cost cost(const Op& op) { return norm_cost(op, 6); }
  static std::vector<Sample> samples() {
    const DType f = DType::F32;
    std::vector<Sample> samples = {sample_of({{f, {5}}}),
                                   sample_of({{f, {3, 4}}}),
                                   sample_of({{f, {2, 3, 4}}}, {{"axis", int64_t{1}}}),
                                   sample_of({{f, {3, 2}}}, {{"axis", int64_t{-2}}, {"eps", 0.5}}),
                                   sample_of({{f, {1, 3, 1, 2}}}, {{"axis", int64_t{1}}}),
                                   sample_of({{f, {0, 3}}}),
                                   sample_of({{DType::BF16, {3, 6}}})};
    for (Sample& s : samples) s.gap = 0.02;
    return samples;
  }
};

// ---- group_norm

// [N,C,…] as [N,groups,…].
Value grouped(Value x, int64_t groups) {
  int64_t n = x.dim(0), rest = 1;
  for (int64_t i = 1; i < x.rank(); ++i) rest *= x.dim(i);
  return reshape(x, {n, groups, rest / groups});
}

struct GroupNorm : ChannelNorm {
  static constexpr std::string_view name = "group_norm";
  static constexpr std::string_view doc =
      "(x - mean) / sqrt(variance + eps) * gamma + beta over each of `groups` runs of channels of "
      "x "
      "[N,C,…] and all that follows them (Wu and He, 2018); gamma and beta [C]";
  static constexpr std::array operands{required("x"), required("gamma"), required("beta")};
  using Attrs = GroupAttrs;
  static Inferred infer(const InferContext& c) {
    if (auto refused = check_channels(c, 1, 2)) return *refused;
    if (auto refused = check_groups(c)) return *refused;
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    const Attrs& a = op.attrs<Attrs>();
    Value x_hat = normalize(grouped(widen(x), a.groups), {2}, a.eps).x_hat;
    x_hat = reshape(x_hat, x.shape());
    Value y = x_hat * per_channel(op.operand(1), x) + per_channel(op.operand(2), x);
    return {cast(y, x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    auto g = group_norm_backward(c.operand(0), c.operand(1), c.grad(), a.groups, a.eps);
    return {g.dx, g.dgamma, cast(g.dbeta, c.operand(2).dtype())};
  }
  static std::vector<Sample> samples() {
    return channel_samples(2, 0, {{{"groups", int64_t{2}}}, {{"eps", 0.01}}});
  }
};

struct GroupNormBackward : ChannelNorm {
  static constexpr std::string_view name = "group_norm_backward";
  static constexpr std::string_view doc =
      "cotangents of x, gamma and beta of group_norm; statistics are recomputed from x";
  static constexpr std::array operands{required("x"), required("gamma"), required("dy")};
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = GroupAttrs;
  static Inferred infer(const InferContext& c) {
    if (auto refused = check_channels(c, 1, 1)) return *refused;
    if (auto refused = check_groups(c)) return *refused;
    if (auto refused = require_same(c, 0, 2)) return *refused;
    return std::vector{c.type(0), c.type(1), c.type(1)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), gamma = op.operand(1), dy = widen(op.operand(2));
    const Attrs& a = op.attrs<Attrs>();
    Normalized n = normalize(grouped(widen(x), a.groups), {2}, a.eps);
    Value dx_hat = grouped(dy * per_channel(gamma, x), a.groups);
    Value dx = reshape(normalize_backward(n, dx_hat, {2}), x.shape());
    List rest = all_but_channels(x);
    Value dgamma = sum(dy * reshape(n.x_hat, x.shape()), rest), dbeta = sum(dy, rest);
    return {cast(dx, x.dtype()), cast(dgamma, gamma.dtype()), cast(dbeta, gamma.dtype())};
  }
  static std::vector<Sample> samples() {
    return channel_samples(1, 1, {{{"groups", int64_t{2}}}, {{"eps", 0.01}}});
  }
};

// ---- batch_norm

struct BatchNormOp : ChannelNorm {
  static constexpr std::string_view name = "batch_norm";
  static constexpr std::string_view doc =
      "(x - mean) / sqrt(var + eps) * gamma + beta of each channel of x [N,C,…] over the batch and "
      "all that follows the channels (Ioffe and Szegedy, 2015); also mean and var [C], divisor N·…";
  static constexpr std::array operands{required("x"), required("gamma"), required("beta")};
  using Attrs = BatchAttrs;
  static Inferred infer(const InferContext& c) {
    if (auto refused = check_channels(c, 1, 2)) return *refused;
    TensorType statistic{compute_type(c.type(0).dtype), {c.shape(0)[1]}};
    return std::vector{c.type(0), statistic, statistic};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    Normalized n = normalize(widen(x), all_but_channels(x), op.attrs<Attrs>().eps);
    Value y = n.x_hat * per_channel(op.operand(1), x) + per_channel(op.operand(2), x);
    Shape channels{x.dim(1)};
    return {cast(y, x.dtype()), reshape(n.mean, channels), reshape(n.variance, channels)};
  }
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0), wide = widen(x);
    Grads grads(3);
    Value dx;
    if (c.grad(0)) {
      auto g = batch_norm_backward(x, c.operand(1), c.grad(0), c.attrs<Attrs>().eps);
      grads = {g.dx, g.dgamma, cast(g.dbeta, c.operand(2).dtype())};
      dx = g.dx;
    }
    double count =
        static_cast<double>(std::max<int64_t>(count_over(x.shape(), all_but_channels(x)), 1));
    auto add_part = [&](Value part) {
      part = cast(part, x.dtype());
      dx = dx ? dx + part : part;
    };
    if (c.grad(1)) add_part(broadcast_to(per_channel(c.grad(1), x) / count, x.shape()));
    if (c.grad(2))
      add_part((wide - per_channel(c.result(1), x)) * (per_channel(c.grad(2), x) * (2 / count)));
    grads[0] = dx;
    return grads;
  }
  static std::vector<Sample> samples() { return channel_samples(2, 0, {{}, {{"eps", 0.01}}}); }
};

struct BatchNormBackward : ChannelNorm {
  static constexpr std::string_view name = "batch_norm_backward";
  static constexpr std::string_view doc =
      "cotangents of x, gamma and beta of batch_norm; statistics are recomputed from x";
  static constexpr std::array operands{required("x"), required("gamma"), required("dy")};
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = BatchAttrs;
  static Inferred infer(const InferContext& c) {
    if (auto refused = check_channels(c, 1, 1)) return *refused;
    if (auto refused = require_same(c, 0, 2)) return *refused;
    return std::vector{c.type(0), c.type(1), c.type(1)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), gamma = op.operand(1), dy = widen(op.operand(2));
    List over = all_but_channels(x);
    Normalized n = normalize(widen(x), over, op.attrs<Attrs>().eps);
    Value dx = normalize_backward(n, dy * per_channel(gamma, x), over);
    Value dgamma = sum(dy * n.x_hat, over), dbeta = sum(dy, over);
    return {cast(dx, x.dtype()), cast(dgamma, gamma.dtype()), cast(dbeta, gamma.dtype())};
  }
  static std::vector<Sample> samples() { return channel_samples(1, 1, {{}, {{"eps", 0.01}}}); }
};

struct BatchNormInference : ChannelNorm {
  static constexpr std::string_view name = "batch_norm_inference";
  static constexpr std::string_view doc =
      "(x - mean) / sqrt(var + eps) * gamma + beta of each channel of x [N,C,…] with statistics "
      "given; gamma, beta, mean and var [C]";
  static constexpr std::array operands{required("x"), required("gamma"), required("beta"),
                                       required("mean"), required("var")};
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = BatchAttrs;
  static Inferred infer(const InferContext& c) {
    if (auto refused = check_channels(c, 1, 4)) return *refused;
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    Value rstd = rsqrt(per_channel(op.operand(4), x) + op.attrs<Attrs>().eps);
    Value x_hat = (widen(x) - per_channel(op.operand(3), x)) * rstd;
    Value y = x_hat * per_channel(op.operand(1), x) + per_channel(op.operand(2), x);
    return {cast(y, x.dtype())};
  }
  static std::vector<Sample> samples() {
    return channel_samples(4, 0, {{}, {{"eps", 0.01}}}, true);
  }
};

template <typename Attrs>
Op& norm_op(std::string_view name, std::vector<Value> operands, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "x", operands[0], loc);
  return build_op(graph, name, std::move(operands), attrs, std::move(loc));
}

}  // namespace

Value l2_normalize(Value x, int64_t axis, double eps, SourceLocation loc) {
  return norm_op("l2_normalize", {x}, L2Attrs{Axis{axis}, eps}, std::move(loc)).result();
}
Value group_norm(Value x, Value gamma, Value beta, int64_t groups, double eps, SourceLocation loc) {
  return norm_op("group_norm", {x, gamma, beta}, GroupAttrs{groups, eps}, std::move(loc)).result();
}
BatchNorm batch_norm(Value x, Value gamma, Value beta, double eps, SourceLocation loc) {
  Op& op = norm_op("batch_norm", {x, gamma, beta}, BatchAttrs{eps}, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}
Value batch_norm_inference(Value x, Value gamma, Value beta, Value mean, Value var, double eps,
                           SourceLocation loc) {
  return norm_op("batch_norm_inference", {x, gamma, beta, mean, var}, BatchAttrs{eps},
                 std::move(loc))
      .result();
}
ChannelNormGrads group_norm_backward(Value x, Value gamma, Value dy, int64_t groups, double eps,
                                     SourceLocation loc) {
  Op& op = norm_op("group_norm_backward", {x, gamma, dy}, GroupAttrs{groups, eps}, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}
ChannelNormGrads batch_norm_backward(Value x, Value gamma, Value dy, double eps,
                                     SourceLocation loc) {
  Op& op = norm_op("batch_norm_backward", {x, gamma, dy}, BatchAttrs{eps}, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}

void register_channel_norm(OpRegistry& r) {
  r.add<L2Normalize>();
  r.add<GroupNorm>();
  r.add<GroupNormBackward>();
  r.add<BatchNormOp>();
  r.add<BatchNormBackward>();
  r.add<BatchNormInference>();
}

}  // namespace sinter
