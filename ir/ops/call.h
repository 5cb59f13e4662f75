#pragma once
// Calls of sub-graphs: graphs of the same module, isolated, that are part of their caller and are
// not run by name.

#include <sinter/ir/graph.h>

namespace sinter {

struct CustomVjpAttrs {
  std::string backward;
  static constexpr auto fields() {
    return std::tuple{field("backward", &CustomVjpAttrs::backward,
                            "the graph of the gradients: takes the operands, the results and a "
                            "cotangent for each float result, gives a gradient for each float "
                            "operand")};
  }
};

// Runs `callee`, whose inputs have the types of `operands`, as one kernel; its outputs are the
// results. Made by the pass fuse.
Op& fusion(Graph& graph, const Graph& callee, std::vector<Value> operands,
           SourceLocation loc = SourceLocation::here());

// The outputs of `callee`, whose inputs have the types of `operands`. Its meaning and its
// derivative are those of the ops of `callee`, in whose place they go: by the pass inline.
std::vector<Value> call(Graph& callee, std::vector<Value> operands,
                        SourceLocation loc = SourceLocation::here());

// The outputs of `forward`, whose inputs have the types of `operands`, with a gradient of its own:
// `backward` takes operands, results and a cotangent for each float result, and gives a gradient
// for each float operand, of its type. That is checked here. The tangents of forward mode are those
// of the transposed `backward` (as a function of the cotangents, at zero).
std::vector<Value> custom_vjp(Graph& forward, Graph& backward, std::vector<Value> operands,
                              SourceLocation loc = SourceLocation::here());

}  // namespace sinter
