#pragma once
// Reverse-mode differentiation on the graph itself.

#include <sinter/ir/graph.h>

#include <span>
#include <vector>

namespace sinter {

// Appends to `graph` the ops that compute d of / d wrt[i], with cotangent 1 (`of` has rank 0), and
// gives those values; a value that does not depend on an entry gives zeros. Fan-out becomes one
// add_n. Every new op carries the location of the op it differentiates, and that op's location as
// `from`. Throws Error that lists every op on the path without a derivative, with its line.
std::vector<Value> gradients(Graph& graph, Value of, std::span<const Value> wrt);

}  // namespace sinter
