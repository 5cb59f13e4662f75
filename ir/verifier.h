#pragma once
// Checks that a module is well formed: definitions before uses, types as each op infers them, use
// lists that agree with operands, unique names, states and outputs that match.

#include <sinter/ir/graph.h>

namespace sinter {

// Throws Error at the first fault, with the op and its location.
void verify(const Module& module);
void verify(const Graph& graph);

}  // namespace sinter
