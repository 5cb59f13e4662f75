#pragma once
// Whole matrices of derivatives, for functions of few numbers: every entry is formed.

#include <sinter/ir/graph.h>

namespace sinter {

enum class DerivativeMode : uint8_t {
  Forward,  // one tangent for each element of `wrt`
  Reverse,  // one cotangent for each element of `of`
};

// d of / d wrt, of shape of.shape + wrt.shape: appended to the graph as one derivative, batched
// over the elements of `wrt` or `of`.
Value jacobian(Graph& graph, Value of, Value wrt, DerivativeMode mode = DerivativeMode::Reverse);

// The second derivatives of the scalar `of`, of shape wrt.shape + wrt.shape: forward over reverse.
Value hessian(Graph& graph, Value of, Value wrt);

}  // namespace sinter
