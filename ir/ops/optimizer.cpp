#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/optimizer.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <cmath>

namespace sinter {
namespace {

using States = std::vector<OptimizerState>;

// The type rule of every step: it follows from the operands' names and the states.
Inferred infer_step(const InferContext& c, const States& states) {
  const TensorType& p = c.type(0);
  if (p.dtype != DType::F32 && p.dtype != DType::F64)
    return c.error("{} must be f32 or f64", c.describe(0));
  std::vector<TensorType> results{p};
  const std::vector<OperandSpec>& specs = c.def().operands;
  for (size_t i = 1; i < specs.size(); ++i) {
    std::string_view name = specs[i].name;
    if (name == "g") {
      if (auto refused = detail::require_float(c, i)) return *refused;
      if (c.shape(i) != p.shape)
        return c.error("{} must have the shape of {}", c.describe(i), c.describe(0));
    } else if (name == "lr") {
      if (auto refused = detail::require_float(c, i)) return *refused;
      if (c.rank(i) != 0) return c.error("{} must be a scalar", c.describe(i));
    } else if (name == "t") {
      if (c.type(i) != TensorType{DType::I32, {}})
        return c.error("{} must be i32[]", c.describe(i));
    } else {
      auto state = std::find_if(states.begin(), states.end(),
                                [&](const OptimizerState& s) { return s.name == name; });
      if ((state != states.end()) != c.has(i))
        return c.error("{} {} an operand {}", c.describe(0),
                       state != states.end() ? "needs" : "takes not", name);
      if (state == states.end()) continue;
      if (c.type(i) != state->type)
        return c.error("{} must be {}", c.describe(i), state->type.str());
      results.push_back(state->type);
    }
  }
  return results;
}

std::string refuse_shares(std::initializer_list<std::pair<std::string_view, double>> named) {
  for (const auto& [name, value] : named)
    if (!(value >= 0 && value < 1))
      return fmt::format("{} must lie in [0, 1), not {}", name, value);
  return "";
}

// What every definition has besides its own part: states(p, attrs), refusal(p, attrs) ("" when the
// attributes fit), kFlops, expand, samples.
template <typename Derived>
struct StepOp {
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    const auto& attrs = c.attrs<typename Derived::Attrs>();
    std::string refused = Derived::refusal(c.type(0), attrs);
    if (!refused.empty()) return c.error_text(refused);
    return infer_step(c, Derived::states(c.type(0), attrs));
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, Derived::kFlops); }

  // A trial on a parameter of type p.
  static Sample sample(const TensorType& p, DType gradient, AttrMap attrs) {
    typename Derived::Attrs values;
    AttrSchema schema = make_schema<typename Derived::Attrs>();
    for (const auto& [name, value] : attrs)
      for (size_t i = 0; i < schema.items.size(); ++i)
        if (schema.items[i].name == name) schema.items[i].set(&values, i, value);
    States states = Derived::states(p, values);
    Sample s;
    for (const OperandSpec& spec : Derived::operands) {
      auto state = std::find_if(states.begin(), states.end(),
                                [&](const OptimizerState& one) { return one.name == spec.name; });
      if (spec.name == "g")
        s.operands.push_back({gradient, p.shape});
      else if (spec.name == "lr")
        s.operands.push_back({DType::F32, {}});
      else if (spec.name == "t")
        s.operands.push_back({DType::I32, {}});
      else if (spec.name != "p" && state != states.end())
        s.operands.push_back(state->type);
      else {
        if (spec.name != "p") s.absent.push_back(s.operands.size());
        s.operands.push_back(p);
      }
    }
    s.attrs = std::move(attrs);
    s.low = 0.1;  // a mean square is positive
    s.high = 1;
    s.integer_low =
        2;  // at t = 1 Adafactor's step has a root mean square of 1, where it is clipped
    s.integer_high = 6;
    return s;
  }
};

// The gradient and the learning rate in the type of p.
struct Inputs {
  Value p, g, lr;
};
Inputs inputs_of(const Op& op) {
  DType type = op.operand(0).dtype();
  Inputs in{op.operand(0), {}, {}};
  const std::vector<OperandSpec>& specs = op.def().operands;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == "g") in.g = cast(op.operand(i), type);
    if (specs[i].name == "lr") in.lr = cast(op.operand(i), type);
  }
  return in;
}

Value decayed(Value p, Value lr, double weight_decay) {
  return weight_decay == 0 ? p : p * (1.0 - lr * weight_decay);
}

// from + share (to - from): a running mean.
Value toward(Value from, Value to, double share) {
  return from * (1 - share) + to * share;
}

double count_of(Value v) {
  return std::max(1.0, static_cast<double>(v.type().elements()));
}
Value root_mean_square(Value v) {
  return sqrt(sum(square(v)) / count_of(v));
}

// --- sgd, adam, adamw, lion ----------------------------------------------------------------------

struct SgdOp : StepOp<SgdOp> {
  static constexpr std::string_view name = "sgd";
  static constexpr std::string_view doc =
      "one step of gradient descent; m = momentum m + g, decay joins the gradient (as PyTorch)";
  static constexpr std::array operands{required("p"), required("g"), required("lr"), optional("m")};
  static constexpr double kFlops = 3;
  using Attrs = SgdAttrs;

  static States states(const TensorType& p, const Attrs& a) {
    return a.momentum == 0 ? States{} : States{{"m", p}};
  }
  static std::string refusal(const TensorType&, const Attrs& a) {
    if (a.nesterov && a.momentum == 0) return "nesterov needs a momentum";
    return refuse_shares({{"momentum", a.momentum}});
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<Attrs>();
    auto [p, g, lr] = inputs_of(op);
    if (a.weight_decay != 0) g = g + p * a.weight_decay;
    if (a.momentum == 0) return {p - lr * g};
    Value m = op.operand(3) * a.momentum + g;
    return {p - lr * (a.nesterov ? g + m * a.momentum : m), m};
  }
  static std::vector<Sample> samples() {
    const TensorType p{DType::F32, {2, 3}};
    return {sample({DType::F32, {5}}, DType::F32, {}),
            sample(p, DType::F32, {{"momentum", 0.9}}),
            sample(p, DType::BF16, {{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.1}}),
            sample({DType::F64, {3}}, DType::F32, {{"weight_decay", 0.1}}),
            sample({DType::F32, {}}, DType::F32, {{"momentum", 0.5}}),
            sample({DType::F32, {0}}, DType::F32, {{"momentum", 0.5}})};
  }
};

// The moments of Adam and the step that follows from them.
struct Moments {
  Value m, v, step;
};
template <typename A>
Moments moments(const Op& op, Value g, const A& a) {
  // 1 - beta^t without cancellation; from f64, so that every device rounds it to the same bits.
  Value t = cast(op.operand(4), DType::F64);
  Value correction1 = cast(neg(expm1(t * std::log(a.beta1))), g.dtype());
  Value correction2 = cast(neg(expm1(t * std::log(a.beta2))), g.dtype());
  Value m = op.operand(2) * a.beta1 + g * (1 - a.beta1);
  Value v = op.operand(3) * a.beta2 + square(g) * (1 - a.beta2);
  return {m, v, (m / correction1) / (sqrt(v / correction2) + a.eps)};
}

// Adam and AdamW differ in where decay acts alone.
template <typename Derived, typename A>
struct AdamBase : StepOp<Derived> {
  static constexpr std::array operands{required("p"), required("g"), required("m"),
                                       required("v"), required("t"), required("lr")};
  static constexpr double kFlops = 16.0 / 3;  // an element of each of three results
  using Attrs = A;

  static States states(const TensorType& p, const A&) { return {{"m", p}, {"v", p}}; }
  static std::string refusal(const TensorType&, const A& a) {
    return refuse_shares({{"beta1", a.beta1}, {"beta2", a.beta2}});
  }
  static std::vector<Sample> samples() {
    auto sample = &StepOp<Derived>::sample;
    return {sample({DType::F32, {5}}, DType::F32, {}),
            sample({DType::F32, {2, 3}}, DType::F32,
                   {{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-3}, {"weight_decay", 0.1}}),
            sample({DType::F32, {4}}, DType::BF16, {{"weight_decay", 0.1}}),
            sample({DType::F64, {3}}, DType::F32, {}),
            sample({DType::F32, {}}, DType::F32, {}),
            sample({DType::F32, {0}}, DType::F32, {})};
  }
};

struct AdamOp : AdamBase<AdamOp, AdamAttrs> {
  static constexpr std::string_view name = "adam";
  static constexpr std::string_view doc =
      "one step of Adam (Kingma and Ba, 2015); decay joins the gradient";

  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<AdamAttrs>();
    auto [p, g, lr] = inputs_of(op);
    if (a.weight_decay != 0) g = g + p * a.weight_decay;
    Moments next = moments(op, g, a);
    return {p - lr * next.step, next.m, next.v};
  }
};

struct AdamWOp : AdamBase<AdamWOp, AdamWAttrs> {
  static constexpr std::string_view name = "adamw";
  static constexpr std::string_view doc =
      "one AdamW step: decoupled weight decay, eps outside the root after bias correction";

  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<AdamWAttrs>();
    auto [p, g, lr] = inputs_of(op);
    Moments next = moments(op, g, a);
    return {p * (1.0 - lr * a.weight_decay) - lr * next.step, next.m, next.v};
  }
};

struct LionOp : StepOp<LionOp> {
  static constexpr std::string_view name = "lion";
  static constexpr std::string_view doc =
      "one step of Lion (Chen et al., 2023): the sign of a running mean; decoupled weight decay";
  static constexpr std::array operands{required("p"), required("g"), required("m"), required("lr")};
  static constexpr double kFlops = 5;
  using Attrs = LionAttrs;

  static States states(const TensorType& p, const Attrs&) { return {{"m", p}}; }
  static std::string refusal(const TensorType&, const Attrs& a) {
    return refuse_shares({{"beta1", a.beta1}, {"beta2", a.beta2}});
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<Attrs>();
    auto [p, g, lr] = inputs_of(op);
    Value c = toward(op.operand(2), g, 1 - a.beta1);
    // 0 stays 0, and NaN stays NaN.
    Value sign = where(gt(c, 0), 1.0, where(lt(c, 0), -1.0, c));
    return {decayed(p, lr, a.weight_decay) - lr * sign, toward(op.operand(2), g, 1 - a.beta2)};
  }
  static std::vector<Sample> samples() {
    return {sample({DType::F32, {5}}, DType::F32, {}),
            sample({DType::F32, {2, 3}}, DType::BF16,
                   {{"beta1", 0.8}, {"beta2", 0.95}, {"weight_decay", 0.1}}),
            sample({DType::F64, {3}}, DType::F32, {}), sample({DType::F32, {}}, DType::F32, {}),
            sample({DType::F32, {0}}, DType::F32, {})};
  }
};

// --- adafactor -----------------------------------------------------------------------------------

struct AdafactorOp : StepOp<AdafactorOp> {
  static constexpr std::string_view name = "adafactor";
  static constexpr std::string_view doc =
      "one step of Adafactor (Shazeer and Stern, 2018): mean squares of rows r and columns c in "
      "place of those of elements v, which vectors have (as PyTorch)";
  static constexpr std::array operands{required("p"), required("g"), required("t"), required("lr"),
                                       optional("r"), optional("c"), optional("v")};
  static constexpr double kFlops = 12;
  using Attrs = AdafactorAttrs;

  static States states(const TensorType& p, const Attrs&) {
    if (p.rank() < 2) return {{"v", p}};
    TensorType rows = p, columns = p;
    rows.shape.back() = 1;
    columns.shape[columns.shape.size() - 2] = 1;
    return {{"r", rows}, {"c", columns}};
  }
  static std::string refusal(const TensorType&, const Attrs& a) {
    return a.clip_step > 0 ? "" : "clip_step must be positive";
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<Attrs>();
    const Inputs in = inputs_of(op);
    const Value p = in.p, g = in.g, lr = in.lr;  // clang 14 captures no structured binding
    Value t = cast(op.operand(2), p.dtype());
    Value share = exp(a.beta2_decay * log(t));
    auto next_mean = [&](Value old, Value now) { return old + share * (now - old); };
    Value scale = maximum(root_mean_square(p), a.eps2) * minimum(lr, rsqrt(t));

    Value squares = square(g), estimate;
    States names = states(p.type(), a);
    std::vector<Value> next;
    if (names.size() == 1) {
      next = {next_mean(op.operand(6), squares)};
      estimate = next[0];
    } else {
      auto mean_over = [&](int64_t axis) {
        return sum(squares, {axis}, true) / std::max(1.0, static_cast<double>(g.dim(axis)));
      };
      next = {next_mean(op.operand(4), mean_over(-1)), next_mean(op.operand(5), mean_over(-2))};
      Value all = sum(next[0], {-2}, true) / std::max(1.0, static_cast<double>(g.dim(-2)));
      estimate = next[0] * next[1] / maximum(all, a.eps1);
    }
    Value update = g * rsqrt(maximum(estimate, a.eps1 * a.eps1));
    Value excess = maximum(root_mean_square(update) / a.clip_step, 1.0);
    next.insert(next.begin(), decayed(p, lr, a.weight_decay) - update * (scale / excess));
    return next;
  }
  static std::vector<Sample> samples() {
    return {
        sample({DType::F32, {5}}, DType::F32, {}),
        sample({DType::F32, {2, 3}}, DType::F32, {}),
        sample({DType::F32, {2, 3, 4}}, DType::BF16, {{"weight_decay", 0.1}, {"clip_step", 0.5}}),
        sample({DType::F64, {3, 2}}, DType::F32, {{"beta2_decay", -0.5}}),
        sample({DType::F32, {}}, DType::F32, {}),
        sample({DType::F32, {0, 3}}, DType::F32, {})};
  }
};

// --- muon ----------------------------------------------------------------------------------------

// Towards U V^T of x = U S V^T by Newton and Schulz's iteration, with the coefficients of Jordan et
// al., 2024: singular values end near 1, not at it.
Value orthogonal(Value x, int64_t iterations, double eps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  bool tall = x.dim(0) > x.dim(1);
  x = x / maximum(sqrt(sum(square(x))), eps);
  for (int64_t i = 0; i < iterations; ++i) {
    // The smaller of x x^T and x^T x.
    Value gram = tall ? matmul(x, x, true, false) : matmul(x, x, false, true);
    Value poly = gram * kB + matmul(gram, gram) * kC;
    x = x * kA + (tall ? matmul(x, poly) : matmul(poly, x));
  }
  return x;
}

struct MuonOp : StepOp<MuonOp> {
  static constexpr std::string_view name = "muon";
  static constexpr std::string_view doc =
      "one step of Muon (Jordan et al., 2024) on a matrix [inputs, outputs]: the mean gradient "
      "made "
      "nearly orthogonal by Newton and Schulz's iteration; decoupled weight decay";
  static constexpr std::array operands{required("p"), required("g"), required("m"), required("lr")};
  static constexpr double kFlops = 8;
  using Attrs = MuonAttrs;

  static States states(const TensorType& p, const Attrs&) { return {{"m", p}}; }
  static std::string refusal(const TensorType& p, const Attrs& a) {
    if (p.rank() != 2) return fmt::format("p ({}) must be a matrix", p.str());
    if (a.iterations < 0 || a.iterations > 100) return "iterations must lie in 0..100";
    if (a.adjust != "original" && a.adjust != "match_rms_adamw" && a.adjust != "none")
      return fmt::format("adjust must be \"original\", \"match_rms_adamw\" or \"none\", not \"{}\"",
                         a.adjust);
    return refuse_shares({{"momentum", a.momentum}});
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<Attrs>();
    auto [p, g, lr] = inputs_of(op);
    Value m = toward(op.operand(2), g, 1 - a.momentum);
    Value direction = a.nesterov ? toward(g, m, a.momentum) : m;
    Value step = orthogonal(direction, a.iterations, a.eps);
    auto inputs = static_cast<double>(std::max<int64_t>(p.dim(0), 1));
    auto outputs = static_cast<double>(p.dim(1));
    double adjusted = a.adjust == "original"          ? std::sqrt(std::max(1.0, outputs / inputs))
                      : a.adjust == "match_rms_adamw" ? 0.2 * std::sqrt(std::max(inputs, outputs))
                                                      : 1.0;
    return {decayed(p, lr, a.weight_decay) - step * (lr * adjusted), m};
  }
  static Cost cost(const Op& op) {
    Cost cost = StepOp::cost(op);
    const Shape& s = op.operand(0).shape();
    double small = static_cast<double>(std::min(s[0], s[1]));
    double large = static_cast<double>(std::max(s[0], s[1]));
    cost.flops += static_cast<double>(op.attrs<Attrs>().iterations) *
                  (4 * small * small * large + 2 * small * small * small);
    return cost;
  }
  static std::vector<Sample> samples() {
    return {sample({DType::F32, {2, 3}}, DType::F32, {{"iterations", int64_t{2}}}),
            sample({DType::F32, {4, 2}}, DType::BF16,
                   {{"iterations", int64_t{1}}, {"nesterov", false}, {"weight_decay", 0.1}}),
            sample({DType::F64, {3, 3}}, DType::F32,
                   {{"iterations", int64_t{1}}, {"adjust", std::string("match_rms_adamw")}}),
            sample({DType::F32, {1, 3}}, DType::F32, {{"adjust", std::string("none")}}),
            sample({DType::F32, {0, 3}}, DType::F32, {})};
  }
};

template <typename T>
constexpr OptimizerRule rule_of() {
  return {T::name, [](const TensorType& p, const void* attrs) {
            return T::states(p, *static_cast<const typename T::Attrs*>(attrs));
          }};
}

template <typename... T>
struct Family {
  static constexpr OptimizerRule kRules[] = {rule_of<T>()...};
  static void add_to(OpRegistry& r) { (r.add<T>(), ...); }
};
using Optimizers = Family<SgdOp, AdamOp, AdamWOp, LionOp, AdafactorOp, MuonOp>;

}  // namespace

AdamWResult adamw(Value p, Value g, Value m, Value v, Value t, Value lr, AdamWAttrs attrs,
                  SourceLocation loc) {
  Graph& graph = detail::graph_of("adamw", "p", p, loc);
  Op& op = build_op(graph, "adamw", {p, g, m, v, t, lr}, attrs, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}

const OptimizerRule* find_optimizer(std::string_view name) {
  for (const OptimizerRule& rule : Optimizers::kRules)
    if (rule.name == name) return &rule;
  return nullptr;
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const OptimizerRule& rule : Optimizers::kRules) names.push_back(rule.name);
  return names;
}

void register_optimizer(OpRegistry& r) {
  Optimizers::add_to(r);
}

}  // namespace sinter
