#pragma once
// Normalizations over channels and batches, and of a vector's length. x is [N,C,…] or, for
// l2_normalize, of any shape. f32 inside for bf16 and f16, rounded once; variances in two passes.

#include <sinter/ir/graph.h>

namespace sinter {

// x over its 2-norm along `axis`, or over eps where that is larger.
Value l2_normalize(Value x, int64_t axis = -1, double eps = 1e-12,
                   SourceLocation loc = SourceLocation::here());

// Each example's channels in `groups` runs of C / groups, normalized together with all that follows
// the channels; then * gamma + beta, of shape [C] and of x's dtype or f32.
Value group_norm(Value x, Value gamma, Value beta, int64_t groups, double eps = 1e-5,
                 SourceLocation loc = SourceLocation::here());

struct BatchNorm {
  Value y;
  Value mean, var;  // [C], f32 (f64 for f64): of the batch, var with divisor N·…
};
// Each channel normalized over all axes but the second; then * gamma + beta. Running statistics are
// the caller's state: mix `mean` and `var` into them, and give them to the inference form.
BatchNorm batch_norm(Value x, Value gamma, Value beta, double eps = 1e-5,
                     SourceLocation loc = SourceLocation::here());
// (x - mean) / sqrt(var + eps) * gamma + beta with statistics given, [C] like gamma and beta.
Value batch_norm_inference(Value x, Value gamma, Value beta, Value mean, Value var,
                           double eps = 1e-5, SourceLocation loc = SourceLocation::here());

// Cotangents of x, gamma and beta, given that of y.
struct ChannelNormGrads {
  Value dx, dgamma, dbeta;
};
ChannelNormGrads group_norm_backward(Value x, Value gamma, Value dy, int64_t groups,
                                     double eps = 1e-5,
                                     SourceLocation loc = SourceLocation::here());
ChannelNormGrads batch_norm_backward(Value x, Value gamma, Value dy, double eps = 1e-5,
                                     SourceLocation loc = SourceLocation::here());

}  // namespace sinter
