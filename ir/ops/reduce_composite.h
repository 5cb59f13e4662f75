#pragma once
// Reductions made of smaller ones: mean, norm, logsumexp. No axes named means all of
// them. f32 inside for bf16 and f16, rounded once.

#include <sinter/ir/graph.h>

namespace sinter {

// The sum divided by the count, so that the mean of ones is exactly 1.
Value mean(Value v, std::vector<int64_t> axes = {}, bool keep = false,
           SourceLocation loc = SourceLocation::here());
// The 2-norm. Its gradient at zero is 0; tiny and huge entries neither underflow nor overflow.
Value norm(Value v, std::vector<int64_t> axes = {}, bool keep = false,
           SourceLocation loc = SourceLocation::here());
// log(sum(exp(v))), shifted by the maximum; -inf with gradient 0 where every entry is -inf.
Value logsumexp(Value v, std::vector<int64_t> axes = {}, bool keep = false,
                SourceLocation loc = SourceLocation::here());

}  // namespace sinter
