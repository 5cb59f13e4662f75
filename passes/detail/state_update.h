#pragma once
// What an op must be like to write the next value of a state over the value that the state has.

#include <sinter/ir/graph.h>

#include <span>
#include <string>

namespace sinter::detail {

// Whether running the op may find an index out of range.
bool checks_indices(const Op& op);

// Why `result` cannot be stored where the `operands`, values of its size, lie; "" where it can: the
// op is a kernel, and each of its elements of the result depends on the same element of those
// operands alone, so that it is read before it is written, by whoever writes it. Without operands
// nothing is read, and any kernel will do.
std::string why_not_in_place(const Op& op, size_t result, std::span<const size_t> operands);

}  // namespace sinter::detail
