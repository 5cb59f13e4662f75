#pragma once
// Whole matrices of derivatives, for functions of few numbers: every entry is formed.

#include <sinter/ir/graph.h>

namespace sinter {

enum class JacobianMode : uint8_t {
  Auto,     // forward where `wrt` has no more elements than `of`
  Forward,  // one tangent for each element of `wrt`, all at once
  Reverse,  // one cotangent for each element of `of`, all at once
};
// Which of the two Auto stands for.
JacobianMode chosen_mode(JacobianMode mode, Value of, Value wrt);

// d of / d wrt, of shape of.shape + wrt.shape: appended to the graph as one derivative, batched
// over the elements of `wrt` or `of`.
Value jacobian(Graph& graph, Value of, Value wrt, JacobianMode mode = JacobianMode::Auto);

// The second derivatives of the scalar `of`, of shape wrt.shape + wrt.shape: forward over reverse.
Value hessian(Graph& graph, Value of, Value wrt);

}  // namespace sinter
