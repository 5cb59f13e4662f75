#pragma once
// Calls of sub-graphs.

#include <sinter/ir/graph.h>

namespace sinter {

// Runs `callee`, whose inputs have the types of `operands`, as one kernel; its outputs are the
// results. Made by the pass fuse.
Op& fusion(Graph& graph, const Graph& callee, std::vector<Value> operands,
           SourceLocation loc = SourceLocation::here());

}  // namespace sinter
