#pragma once
// Graphs for ops that call one: every input has an output of its own type, so that a loop can carry
// it. What comes out is made by arithmetic, and by moving elements about, over and over where the
// graph is a loop's: stacks and chains of views are what unrolled loops consist of.

#include <sinter/ir/graph.h>

#include <span>
#include <string>

namespace sinter::test {

// The same graph for the same types and `variant`; smooth in its float inputs.
Graph& add_moving_callee(Module& module, std::span<const TensorType> inputs,
                         const std::string& name, uint64_t variant);

// Beside it in its module, a graph that gives the gradients of the callee's float inputs from its
// inputs, its outputs, and a cotangent for each float output: what custom_vjp asks for.
Graph& add_gradient_of(const Graph& callee);

}  // namespace sinter::test
