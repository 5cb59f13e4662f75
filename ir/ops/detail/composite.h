#pragma once
// What the definitions of composite ops share: refusals, widening to the type in which one op
// computes, and the sums over rows.

#include <sinter/ir/op_def.h>

namespace sinter::detail {

// The refusal of an operand that is no float; nullopt when it is one.
std::optional<Diagnostic> require_float(const InferContext& c, size_t operand);
// The refusal of an operand that is not i32 or i64.
std::optional<Diagnostic> require_index(const InferContext& c, size_t operand);
// The refusal of operand `b` where its type is not that of `a`.
std::optional<Diagnostic> require_same(const InferContext& c, size_t a, size_t b);

// `v` in the type in which one op computes: f32 for bf16 and f16.
Value widen(Value v);
// Whether that is another type than its own.
bool is_narrow(Value v);

// The product of the extents of `axes`.
int64_t count_over(const Shape& shape, const std::vector<int64_t>& axes);
// The sum over every axis but the last.
Value sum_rows(Value v);

// One trial.
Sample sample_of(std::vector<TensorType> operands, AttrMap attrs = {});

}  // namespace sinter::detail
