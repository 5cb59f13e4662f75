#pragma once
// Optimizer steps as ops, and the rules by which a pass applies them.
//
// Every step takes the parameter p (f32 or f64), its gradient g (of p's shape, any float dtype),
// the learning rate lr (a float scalar), where the formula counts the number t of this update
// (i32[], from 1), and its states, which start at 0. It gives the next p and the next states, and
// computes in p's dtype.

#include <sinter/ir/graph.h>

namespace sinter {

struct SgdAttrs {
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
  static constexpr auto fields() {
    return std::tuple{field("momentum", &SgdAttrs::momentum, "decay of m; 0: there is no m"),
                      field("weight_decay", &SgdAttrs::weight_decay, "weight_decay * p joins g"),
                      field("nesterov", &SgdAttrs::nesterov, "steps along g + momentum * m")};
  }
};
struct AdamAttrs {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  static constexpr auto fields() {
    return std::tuple{field("beta1", &AdamAttrs::beta1, "decay of the mean gradient"),
                      field("beta2", &AdamAttrs::beta2, "decay of the mean squared gradient"),
                      field("eps", &AdamAttrs::eps, "added to the root, after bias correction"),
                      field("weight_decay", &AdamAttrs::weight_decay, "weight_decay * p joins g")};
  }
};
struct AdamWAttrs {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  static constexpr auto fields() {
    return std::tuple{field("beta1", &AdamWAttrs::beta1, "decay of the mean gradient"),
                      field("beta2", &AdamWAttrs::beta2, "decay of the mean squared gradient"),
                      field("eps", &AdamWAttrs::eps, "added to the root, after bias correction"),
                      field("weight_decay", &AdamWAttrs::weight_decay,
                            "p is first scaled by 1 - lr * weight_decay")};
  }
};
struct LionAttrs {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;
  static constexpr auto fields() {
    return std::tuple{field("beta1", &LionAttrs::beta1, "weight of m in the step's direction"),
                      field("beta2", &LionAttrs::beta2, "decay of m"),
                      field("weight_decay", &LionAttrs::weight_decay,
                            "p is first scaled by 1 - lr * weight_decay")};
  }
};
struct AdafactorAttrs {
  double beta2_decay = -0.8, eps1 = 1.1920928955078125e-07, eps2 = 1e-3, clip_step = 1.0;
  double weight_decay = 0.0;
  static constexpr auto fields() {
    return std::tuple{
        field("beta2_decay", &AdafactorAttrs::beta2_decay, "a new square weighs t^beta2_decay"),
        field("eps1", &AdafactorAttrs::eps1, "the least root mean square"),
        field("eps2", &AdafactorAttrs::eps2, "the least root mean square of p as a scale"),
        field("clip_step", &AdafactorAttrs::clip_step, "the largest root mean square of the step"),
        field("weight_decay", &AdafactorAttrs::weight_decay,
              "p is first scaled by 1 - lr * weight_decay")};
  }
};
struct MuonAttrs {
  double momentum = 0.95, weight_decay = 0.0, eps = 1e-7;
  bool nesterov = true;
  int64_t iterations = 5;
  std::string adjust = "original";
  static constexpr auto fields() {
    return std::tuple{
        field("momentum", &MuonAttrs::momentum, "decay of the mean gradient"),
        field("weight_decay", &MuonAttrs::weight_decay,
              "p is first scaled by 1 - lr * weight_decay"),
        field("eps", &MuonAttrs::eps, "the least norm that the direction is divided by"),
        field("nesterov", &MuonAttrs::nesterov, "steps along (1 - momentum) g + momentum m"),
        field("iterations", &MuonAttrs::iterations, "of Newton and Schulz"),
        field("adjust", &MuonAttrs::adjust,
              "scale of lr for p [n,k]: original: sqrt(max(1, k/n)); match_rms_adamw: "
              "0.2 sqrt(max(n, k)); none: 1")};
  }
};

struct AdamWResult {
  Value p, m, v;
};
// One step of AdamW (Loshchilov and Hutter).
AdamWResult adamw(Value p, Value g, Value m, Value v, Value t, Value lr, AdamWAttrs attrs = {},
                  SourceLocation loc = SourceLocation::here());

// A state that an optimizer keeps of a parameter: the operand of that name.
struct OptimizerState {
  std::string_view name;
  TensorType type;
};
// One optimizer. Its op of the same name has operands `p`, `g`, `lr`, perhaps `t`, and the states;
// its results are the next p and the next states, in the order of the operands.
struct OptimizerRule {
  std::string_view name;
  // The states of a parameter of type p, under attributes of the op.
  std::vector<OptimizerState> (*states)(const TensorType& p, const void* attrs);
};
// Null when there is none.
const OptimizerRule* find_optimizer(std::string_view name);
// In order of registration.
std::vector<std::string_view> optimizer_names();

}  // namespace sinter
