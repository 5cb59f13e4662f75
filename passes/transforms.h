#pragma once
// The transformations of graphs, as one table: for the rules of ops with sub-graphs, and for
// whoever transforms a graph from C++.

#include <sinter/ir/derivative.h>

namespace sinter {

// Reverse mode, forward mode and batching, of the passes autodiff, jvp and vmap.
const GraphTransforms& graph_transforms();

}  // namespace sinter
