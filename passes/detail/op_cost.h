#pragma once
// What an element of an elementwise op costs beside the memory that it reads, for fuse: whether it
// is made again by each reader, or stored. False for every other op.

#include <sinter/ir/graph.h>

namespace sinter::detail {

// Whether an element costs little beside reading it from memory.
bool is_cheap(const Op& op);
// Whether an element costs less than to be written, kept for the backward pass and read again.
bool is_cheaper_than_kept(const Op& op);
// Whether there is a division or a square root in it. On CUDA both have branches, and the loads
// that stand behind a branch are not on their way before it.
bool has_division(const Op& op);

}  // namespace sinter::detail
