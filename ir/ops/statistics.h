#pragma once
// Reductions that find places, spread and truth. No axes named means all of them.

#include <sinter/ir/graph.h>

namespace sinter {

// The place of the largest element of x (numeric), the first of equal ones, as i32; NaN counts as
// larger than any number. Over several axes: the row-major index among them. No elements are
// refused.
Value argmax(Value x, std::vector<int64_t> axes = {}, bool keep = false,
             SourceLocation loc = SourceLocation::here());
// The place of the smallest; NaN counts as smaller than any number.
Value argmin(Value x, std::vector<int64_t> axes = {}, bool keep = false,
             SourceLocation loc = SourceLocation::here());

// The sum of squared distances from the mean over count - correction: 1 for the estimate from a
// sample (as PyTorch has it), 0 for the population; NaN where that is not above 0. In two passes,
// f32 inside for bf16 and f16.
Value var(Value x, std::vector<int64_t> axes = {}, bool keep = false, int64_t correction = 1,
          SourceLocation loc = SourceLocation::here());
// Its square root; where that is 0, so is the gradient. Neither squares over- nor underflow.
Value std_dev(Value x, std::vector<int64_t> axes = {}, bool keep = false, int64_t correction = 1,
              SourceLocation loc = SourceLocation::here());

// Whether some element of x (bool) is true; false for no elements.
Value any(Value x, std::vector<int64_t> axes = {}, bool keep = false,
          SourceLocation loc = SourceLocation::here());
// Whether every one is; true for no elements.
Value all(Value x, std::vector<int64_t> axes = {}, bool keep = false,
          SourceLocation loc = SourceLocation::here());

}  // namespace sinter
