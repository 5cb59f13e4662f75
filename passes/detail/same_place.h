#pragma once
// Kernels whose result may lie on an operand.

#include <sinter/ir/graph.h>

namespace sinter::detail {

// Whether the op is a pointwise kernel that reads the operand, element by element, nowhere but
// where it writes: then a result of as many bytes an element may take its storage over. An index
// that is seen too late to be the same counts as another.
bool reads_where_it_writes(const Op& op, size_t operand);

}  // namespace sinter::detail
