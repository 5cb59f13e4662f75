#pragma once
// What the pass layout decides: which ops move no bytes.

#include <sinter/ir/graph.h>

namespace sinter {

// Whether the op's result is its operand's storage under another shape: a reshape, since every
// value is dense and row-major. False for all ops of a graph on which layout was switched off
// (graph attribute `layout = "dense"`): there a reshape is a copy.
bool is_free_view(const Op& op);

}  // namespace sinter
