#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/normalization.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>

#include <limits>

namespace sinter {
namespace {

using detail::require_float, detail::require_same, detail::sample_of, detail::sum_rows,
    detail::widen;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct AxisAttrs {
  Axis axis;
  static constexpr auto fields() {
    return std::tuple{field("axis", &AxisAttrs::axis, "the axis of a row")};
  }
};
struct EpsAttrs {
  double eps = 1e-5;
  static constexpr auto fields() {
    return std::tuple{field("eps", &EpsAttrs::eps, "added to the mean square")};
  }
};

std::vector<int64_t> row_axis(const Op& op) {
  return {*normalize_axis(op.attrs<AxisAttrs>().axis.value, op.operand(0).rank())};
}

// What softmax and log_softmax share: x less its maximum along the axis (less nothing where the
// whole row is -inf), and the sum of exponentials, 1 for such a row.
struct ShiftedRow {
  Value shifted, exponentials, total;
};
ShiftedRow shift_row(Value x, const std::vector<int64_t>& axis) {
  Value largest = max(x, axis, true);
  Value shifted = x - where(eq(largest, -kInf), 0.0, largest);
  Value e = exp(shifted);
  Value total = sum(e, axis, true);
  return {shifted, e, where(eq(total, 0.0), 1.0, total)};
}

Cost row_cost(const Op& op, double flops_per_element) {
  Cost cost = Cost::bytes_moved(op);
  cost.flops = flops_per_element * static_cast<double>(op.operand(0).type().elements());
  return cost;
}

Inferred infer_row(const InferContext& c) {
  if (auto refused = require_float(c, 0)) return *refused;
  for (size_t i = 1; i < c.num_operands(); ++i)
    if (auto refused = require_same(c, 0, i)) return *refused;
  int64_t axis = c.attrs<AxisAttrs>().axis.value;
  if (!normalize_axis(axis, c.rank(0)))
    return c.error("axis {} is not an axis of {}", axis, c.describe(0));
  return std::vector{c.type(0)};
}

std::vector<Sample> row_samples(size_t operands) {
  std::vector<Sample> samples;
  auto add = [&](TensorType type, AttrMap attrs) {
    samples.push_back(sample_of(std::vector<TensorType>(operands, type), std::move(attrs)));
  };
  add({DType::F32, {5}}, {});
  add({DType::F32, {3, 4}}, {});
  add({DType::F32, {2, 3, 4}}, {{"axis", int64_t{1}}});
  add({DType::F32, {3, 2}}, {{"axis", int64_t{-2}}});
  add({DType::F32, {0, 3}}, {});
  add({DType::BF16, {3, 6}}, {});
  return samples;
}

struct Softmax {
  static constexpr std::string_view name = "softmax";
  static constexpr std::string_view doc =
      "exp(x) over its sum along an axis; a row of -inf alone gives 0";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AxisAttrs;

  static Inferred infer(const InferContext& c) { return infer_row(c); }
  static std::vector<Value> expand(const Op& op) {
    auto row = shift_row(widen(op.operand(0)), row_axis(op));
    return {cast(row.exponentials / row.total, op.operand(0).dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    return {softmax_backward(c.result(), c.grad(), c.attrs<AxisAttrs>().axis.value)};
  }
  // The Jacobian is symmetric.
  static std::vector<Value> jvp(const JvpContext& c) {
    return {softmax_backward(c.result(), c.tangent(), c.attrs<AxisAttrs>().axis.value)};
  }
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return row_cost(op, 5); }
  static std::vector<Sample> samples() { return row_samples(1); }
};

struct LogSoftmax {
  static constexpr std::string_view name = "log_softmax";
  static constexpr std::string_view doc = "log of softmax along an axis, without forming it";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AxisAttrs;

  static Inferred infer(const InferContext& c) { return infer_row(c); }
  static std::vector<Value> expand(const Op& op) {
    auto row = shift_row(widen(op.operand(0)), row_axis(op));
    return {cast(row.shifted - log(row.total), op.operand(0).dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    return {log_softmax_backward(c.result(), c.grad(), c.attrs<AxisAttrs>().axis.value)};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    Value y = widen(c.result()), dx = widen(c.tangent());
    Value inner = sum(grad_mul(exp(y), dx), row_axis(c.op()), true);
    return {cast(dx - inner, c.result().dtype())};
  }
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return row_cost(op, 5); }
  static std::vector<Sample> samples() { return row_samples(1); }
};

struct SoftmaxBackward {
  static constexpr std::string_view name = "softmax_backward";
  static constexpr std::string_view doc =
      "y (dy - sum(dy y)) along an axis: the gradient of softmax from its result y";
  static constexpr std::array operands{required("y"), required("dy")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AxisAttrs;

  static Inferred infer(const InferContext& c) { return infer_row(c); }
  static std::vector<Value> expand(const Op& op) {
    Value y = widen(op.operand(0)), dy = widen(op.operand(1));
    Value dx = y * (dy - sum(dy * y, row_axis(op), true));
    return {cast(dx, op.operand(0).dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    int64_t axis = c.attrs<AxisAttrs>().axis.value;
    Value g = c.grad();
    Grads grads(2);
    if (c.needs(0)) {
      Value y = widen(c.operand(0)), dy = widen(c.operand(1)), wide = widen(g);
      auto row = row_axis(c.op());
      Value gy = wide * (dy - sum(dy * y, row, true)) - dy * sum(wide * y, row, true);
      grads[0] = cast(gy, c.operand(0).dtype());
    }
    // Linear in dy, and symmetric.
    if (c.needs(1)) grads[1] = softmax_backward(c.operand(0), g, axis);
    return grads;
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return row_cost(op, 4); }
  static std::vector<Sample> samples() { return row_samples(2); }
};

struct LogSoftmaxBackward {
  static constexpr std::string_view name = "log_softmax_backward";
  static constexpr std::string_view doc =
      "dy - exp(y) sum(dy) along an axis: the gradient of log_softmax from its result y";
  static constexpr std::array operands{required("y"), required("dy")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = AxisAttrs;

  static Inferred infer(const InferContext& c) { return infer_row(c); }
  static std::vector<Value> expand(const Op& op) {
    Value y = widen(op.operand(0)), dy = widen(op.operand(1));
    Value dx = dy - exp(y) * sum(dy, row_axis(op), true);
    return {cast(dx, op.operand(0).dtype())};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return row_cost(op, 4); }
  static std::vector<Sample> samples() { return row_samples(2); }
};

// --- layer_norm and rms_norm -------------------------------------------------------------------

// x with rows along its last axis, and `parameters` operands after it of that axis's shape.
std::optional<Diagnostic> check_norm(const InferContext& c, size_t parameters) {
  if (auto refused = require_float(c, 0)) return refused;
  if (c.rank(0) == 0) return c.error("{} must have an axis to normalize", c.describe(0));
  DType type = c.type(0).dtype;
  Shape row{c.shape(0).back()};
  for (size_t i = 1; i <= parameters; ++i) {
    if (c.type(i).dtype != type && c.type(i).dtype != compute_type(type))
      return c.error("{} must have the dtype of {}, or f32", c.describe(i), c.describe(0));
    if (c.shape(i) != row)
      return c.error("{} must have shape {}, the last axis of {}", c.describe(i), to_string(row),
                     c.describe(0));
  }
  return std::nullopt;
}

double row_length(Value x) {
  return static_cast<double>(x.dim(-1));
}
// The mean along the last axis, kept.
Value row_mean(Value x) {
  return sum(x, {x.rank() - 1}, true) / row_length(x);
}

struct NormalizedRow {
  Value x_hat, rstd;
};
// Two passes: the variance is taken about the mean, so that a large mean does not cancel.
NormalizedRow normalize_row(Value x, double eps, bool centered) {
  Value d = centered ? x - row_mean(x) : x;
  Value rstd = rsqrt(row_mean(square(d)) + eps);
  return {d * rstd, rstd};
}

// The cotangent of x, given that of x_hat.
Value row_backward(const NormalizedRow& row, Value dx_hat, bool centered) {
  Value inner = centered ? dx_hat - row_mean(dx_hat) : dx_hat;
  return row.rstd * (inner - row.x_hat * row_mean(dx_hat * row.x_hat));
}

std::vector<Sample> norm_samples(size_t parameters, size_t cotangents) {
  std::vector<Sample> samples;
  auto add = [&](TensorType x, DType parameter, AttrMap attrs) {
    std::vector<TensorType> types{x};
    types.insert(types.end(), parameters, TensorType{parameter, {x.shape.back()}});
    types.insert(types.end(), cotangents, x);
    samples.push_back(sample_of(std::move(types), std::move(attrs)));
  };
  add({DType::F32, {7}}, DType::F32, {});
  add({DType::F32, {3, 5}}, DType::F32, {{"eps", 0.01}});
  add({DType::F32, {2, 3, 4}}, DType::F32, {});
  add({DType::F32, {0, 4}}, DType::F32, {});
  add({DType::BF16, {3, 6}}, DType::BF16, {});
  add({DType::BF16, {3, 6}}, DType::F32, {});
  return samples;
}

// The rows of all examples at once, where they share the parameters.
Batched batch_rows(const BatchContext& c) {
  if (!c.only(0)) return Batched::through_expand();
  std::vector<Value> operands;
  for (size_t i = 0; i < c.num_operands(); ++i) operands.push_back(c.operand(i));
  return Batched::all({rebuild(c.op(), c.graph(), std::move(operands)).result()});
}

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr std::string_view doc =
      "(x - mean) / sqrt(variance + eps) * gamma + beta over the last axis";
  static constexpr std::array operands{required("x"), required("gamma"), required("beta")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = EpsAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_norm(c, 2)) return *refused;
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    auto row = normalize_row(widen(x), op.attrs<EpsAttrs>().eps, true);
    return {cast(row.x_hat * widen(op.operand(1)) + widen(op.operand(2)), x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    auto g = layer_norm_backward(c.operand(0), c.operand(1), c.grad(), c.attrs<EpsAttrs>().eps);
    return {g.dx, g.dgamma, cast(g.dbeta, c.operand(2).dtype())};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static Batched batch(const BatchContext& c) { return batch_rows(c); }
  static Cost cost(const Op& op) { return row_cost(op, 8); }
  static std::vector<Sample> samples() { return norm_samples(2, 0); }
};

struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr std::string_view doc =
      "cotangents of x, gamma and beta; mean and variance are recomputed from x";
  static constexpr std::array operands{required("x"), required("gamma"), required("dy")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = EpsAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_norm(c, 1)) return *refused;
    if (auto refused = require_same(c, 0, 2)) return *refused;
    return std::vector{c.type(0), c.type(1), c.type(1)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), gamma = op.operand(1), dy = widen(op.operand(2));
    auto row = normalize_row(widen(x), op.attrs<EpsAttrs>().eps, true);
    Value dx = row_backward(row, dy * widen(gamma), true);
    Value dgamma = sum_rows(dy * row.x_hat), dbeta = sum_rows(dy);
    return {cast(dx, x.dtype()), cast(dgamma, gamma.dtype()), cast(dbeta, gamma.dtype())};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) { return row_cost(op, 16); }
  static std::vector<Sample> samples() { return norm_samples(1, 1); }
};

struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  static constexpr std::string_view doc = "x / sqrt(mean(x^2) + eps) * w over the last axis";
  static constexpr std::array operands{required("x"), required("w")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = EpsAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_norm(c, 1)) return *refused;
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    auto row = normalize_row(widen(x), op.attrs<EpsAttrs>().eps, false);
    return {cast(row.x_hat * widen(op.operand(1)), x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    auto g = rms_norm_backward(c.operand(0), c.operand(1), c.grad(), c.attrs<EpsAttrs>().eps);
    return {g.dx, g.dw};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static Batched batch(const BatchContext& c) { return batch_rows(c); }
  static Cost cost(const Op& op) { return row_cost(op, 5); }
  static std::vector<Sample> samples() { return norm_samples(1, 0); }
};

struct RmsNormBackward {
  static constexpr std::string_view name = "rms_norm_backward";
  static constexpr std::string_view doc =
      "cotangents of x and w; the mean square is recomputed from x";
  static constexpr std::array operands{required("x"), required("w"), required("dy")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = EpsAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_norm(c, 1)) return *refused;
    if (auto refused = require_same(c, 0, 2)) return *refused;
    return std::vector{c.type(0), c.type(1)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), w = op.operand(1), dy = widen(op.operand(2));
    auto row = normalize_row(widen(x), op.attrs<EpsAttrs>().eps, false);
    Value dx = row_backward(row, dy * widen(w), false);
    Value dw = sum_rows(dy * row.x_hat);
    return {cast(dx, x.dtype()), cast(dw, w.dtype())};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) { return row_cost(op, 12); }
  static std::vector<Sample> samples() { return norm_samples(1, 1); }
};

Op& row_op(std::string_view name, std::vector<Value> operands, int64_t axis, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "the first operand", operands[0], loc);
  return build_op(graph, name, std::move(operands), AxisAttrs{Axis{axis}}, std::move(loc));
}
Op& norm_op(std::string_view name, std::vector<Value> operands, double eps, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "the first operand", operands[0], loc);
  return build_op(graph, name, std::move(operands), EpsAttrs{eps}, std::move(loc));
}

}  // namespace

Value softmax(Value x, int64_t axis, SourceLocation loc) {
  return row_op("softmax", {x}, axis, std::move(loc)).result();
}
Value log_softmax(Value x, int64_t axis, SourceLocation loc) {
  return row_op("log_softmax", {x}, axis, std::move(loc)).result();
}
Value softmax_backward(Value y, Value dy, int64_t axis, SourceLocation loc) {
  return row_op("softmax_backward", {y, dy}, axis, std::move(loc)).result();
}
Value log_softmax_backward(Value y, Value dy, int64_t axis, SourceLocation loc) {
  return row_op("log_softmax_backward", {y, dy}, axis, std::move(loc)).result();
}
Value layer_norm(Value x, Value gamma, Value beta, double eps, SourceLocation loc) {
  return norm_op("layer_norm", {x, gamma, beta}, eps, std::move(loc)).result();
}
Value rms_norm(Value x, Value w, double eps, SourceLocation loc) {
  return norm_op("rms_norm", {x, w}, eps, std::move(loc)).result();
}
LayerNormGrads layer_norm_backward(Value x, Value gamma, Value dy, double eps, SourceLocation loc) {
  Op& op = norm_op("layer_norm_backward", {x, gamma, dy}, eps, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}
RmsNormGrads rms_norm_backward(Value x, Value w, Value dy, double eps, SourceLocation loc) {
  Op& op = norm_op("rms_norm_backward", {x, w, dy}, eps, std::move(loc));
  return {op.result(0), op.result(1)};
}

void register_normalization(OpRegistry& r) {
  r.add<Softmax>();
  r.add<LogSoftmax>();
  r.add<SoftmaxBackward>();
  r.add<LogSoftmaxBackward>();
  r.add<LayerNorm>();
  r.add<LayerNormBackward>();
  r.add<RmsNorm>();
  r.add<RmsNormBackward>();
}

}  // namespace sinter
