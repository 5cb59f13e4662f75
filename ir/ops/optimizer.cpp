#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/optimizer.h>
#include <sinter/ir/ops/registry.h>

#include <cmath>

namespace sinter {
namespace {

using detail::sample_of;

struct AdamWOp {
  static constexpr std::string_view name = "adamw";
  static constexpr std::string_view doc =
      "one AdamW step: decoupled weight decay, eps outside the root after bias correction";
  static constexpr std::array operands{required("p"), required("g"), required("m"),
                                       required("v"), required("t"), required("lr")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = AdamWAttrs;

  static Inferred infer(const InferContext& c) {
    TensorType p = c.type(0);
    if (p.dtype != DType::F32 && p.dtype != DType::F64)
      return c.error("{} must be f32 or f64", c.describe(0));
    if (auto refused = detail::require_float(c, 1)) return *refused;
    if (c.shape(1) != p.shape)
      return c.error("{} must have the shape of {}", c.describe(1), c.describe(0));
    for (size_t i : {2, 3})
      if (auto refused = detail::require_same(c, 0, i)) return *refused;
    if (c.type(4) != TensorType{DType::I32, {}}) return c.error("{} must be i32[]", c.describe(4));
    if (auto refused = detail::require_float(c, 5)) return *refused;
    if (c.rank(5) != 0) return c.error("{} must be a scalar", c.describe(5));
    const auto& a = c.attrs<AdamWAttrs>();
    for (double beta : {a.beta1, a.beta2})
      if (!(beta >= 0 && beta < 1)) return c.error("beta1 and beta2 must lie in [0, 1)");
    return std::vector{p, p, p};
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<AdamWAttrs>();
    Value p = op.operand(0);
    DType type = p.dtype();
    Value g = cast(op.operand(1), type);
    Value t = cast(op.operand(4), type), lr = cast(op.operand(5), type);
    // 1 - beta^t without cancellation.
    Value correction1 = neg(expm1(t * std::log(a.beta1)));
    Value correction2 = neg(expm1(t * std::log(a.beta2)));
    Value m = op.operand(2) * a.beta1 + g * (1 - a.beta1);
    Value v = op.operand(3) * a.beta2 + square(g) * (1 - a.beta2);
    Value step = (m / correction1) / (sqrt(v / correction2) + a.eps);
    return {p * (1.0 - lr * a.weight_decay) - lr * step, m, v};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 16.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples;
    auto add = [&](Shape shape, DType type, DType gradient, AttrMap attrs) {
      TensorType p{type, shape};
      Sample s = sample_of({p, {gradient, shape}, p, p, {DType::I32, {}}, {DType::F32, {}}},
                           std::move(attrs));
      s.low = 0.1;  // the mean square is positive
      s.high = 1;
      s.integer_low = 1;
      s.integer_high = 5;
      samples.push_back(std::move(s));
    };
    add({5}, DType::F32, DType::F32, {});
    add({2, 3}, DType::F32, DType::F32,
        {{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-3}, {"weight_decay", 0.1}});
    add({4}, DType::F32, DType::BF16, {{"weight_decay", 0.1}});
    add({3}, DType::F64, DType::F32, {});
    add({}, DType::F32, DType::F32, {});
    add({0}, DType::F32, DType::F32, {});
    return samples;
  }
};

}  // namespace

AdamWResult adamw(Value p, Value g, Value m, Value v, Value t, Value lr, AdamWAttrs attrs,
                  SourceLocation loc) {
  Graph& graph = detail::graph_of("adamw", "p", p, loc);
  Op& op = build_op(graph, "adamw", {p, g, m, v, t, lr}, attrs, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}

void register_optimizer(OpRegistry& r) {
  r.add<AdamWOp>();
}

}  // namespace sinter
