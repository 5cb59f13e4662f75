#pragma once
// Which views fuse stores, and does not have every reader read through.

#include <sinter/passes/pass.h>

#include <functional>

namespace sinter::detail {

// Whether the op can be part of a kernel.
bool fusible(const Op& op);

// A slice of neighbours of what is stored anyway stays a view: kernels that read the rows of one
// value are then equal, whichever row each reads.
bool is_part_of_stored(const Op& op);

struct CopiedViews {
  std::function<bool(const Op&)> is_kernel, is_copied;
  // Stores a copied view after all; false where it was stored already.
  std::function<bool(Op&)> store;
};

// Stores the views that an op alone cannot read through: unrolled loops make stacks of hundreds of
// values, and chains of views as long as the loop. Afterwards every op has an iteration space,
// together with what it reads through. Remarks say what was stored, and why.
void store_unreadable(Graph& graph, const CopiedViews& views, PassContext& context);

}  // namespace sinter::detail
