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

Value relu(Value x, SourceLocation loc = SourceLocation::here());      // max(x, 0), slope 0 at 0
Value sigmoid(Value x, SourceLocation loc = SourceLocation::here());   // 1 / (1 + exp(-x))
Value silu(Value x, SourceLocation loc = SourceLocation::here());      // x * sigmoid(x)
Value softplus(Value x, SourceLocation loc = SourceLocation::here());  // log(1 + exp(x))
// x * Phi(x), Phi being the normal distribution's; approximate is "none" or "tanh".
Value gelu(Value x, std::string approximate = "none", SourceLocation loc = SourceLocation::here());

}  // namespace sinter
