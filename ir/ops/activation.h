#pragma once
// Pointwise activations. Forward and derivative are finite for every finite input.

#include <sinter/ir/graph.h>

namespace sinter {

struct GeluAttrs {
  std::string approximate = "none";
  static constexpr auto fields() {
    return std::tuple{
        field("approximate", &GeluAttrs::approximate, "\"none\": by erf; \"tanh\": by tanh")};
  }
};

struct LeakyReluAttrs {
  double slope = 0.01;
  static constexpr auto fields() {
    return std::tuple{field("slope", &LeakyReluAttrs::slope, "the slope below 0")};
  }
};
struct EluAttrs {
  double alpha = 1;
  static constexpr auto fields() {
    return std::tuple{field("alpha", &EluAttrs::alpha, "the limit at -inf is -alpha")};
  }
};
struct HardtanhAttrs {
  double min = -1, max = 1;
  static constexpr auto fields() {
    return std::tuple{field("min", &HardtanhAttrs::min, "the smallest result"),
                      field("max", &HardtanhAttrs::max, "the largest result")};
  }
};

Value relu(Value x, SourceLocation loc = SourceLocation::here());         // max(x, 0), slope 0 at 0
Value sigmoid(Value x, SourceLocation loc = SourceLocation::here());      // 1 / (1 + exp(-x))
Value silu(Value x, SourceLocation loc = SourceLocation::here());         // x * sigmoid(x)
Value softplus(Value x, SourceLocation loc = SourceLocation::here());     // log(1 + exp(x))
Value logsigmoid(Value x, SourceLocation loc = SourceLocation::here());   // log(sigmoid(x))
Value softsign(Value x, SourceLocation loc = SourceLocation::here());     // x / (1 + |x|)
Value mish(Value x, SourceLocation loc = SourceLocation::here());         // x * tanh(softplus(x))
Value relu6(Value x, SourceLocation loc = SourceLocation::here());        // min(max(x, 0), 6)
Value hardsigmoid(Value x, SourceLocation loc = SourceLocation::here());  // relu6(x + 3) / 6
Value hardswish(Value x, SourceLocation loc = SourceLocation::here());    // x * hardsigmoid(x)
// min(max(x, min), max), slope 1 strictly between.
Value hardtanh(Value x, double min = -1, double max = 1,
               SourceLocation loc = SourceLocation::here());
// x above 0, else slope * x.
Value leaky_relu(Value x, double slope = 0.01, SourceLocation loc = SourceLocation::here());
// x above 0, else alpha * (exp(x) - 1).
Value elu(Value x, double alpha = 1, SourceLocation loc = SourceLocation::here());
// elu with the alpha and scale that keep mean 0 and variance 1.
Value selu(Value x, SourceLocation loc = SourceLocation::here());
// x * Phi(x), Phi being the normal distribution's; approximate is "none" or "tanh".
Value gelu(Value x, std::string approximate = "none", SourceLocation loc = SourceLocation::here());

}  // namespace sinter
