#pragma once
// Softmax and the normalizations of a row. f32 inside for bf16 and f16, rounded once.

#include <sinter/ir/graph.h>

namespace sinter {

// exp(x) over its sum along `axis`. A row of -inf gives 0, gradient 0 (log_softmax: -inf, dy).
Value softmax(Value x, int64_t axis = -1, SourceLocation loc = SourceLocation::here());
Value log_softmax(Value x, int64_t axis = -1, SourceLocation loc = SourceLocation::here());

// Over the last axis, variance in two passes. gamma, beta and w have the shape of that axis, and
// x's dtype or f32; the result has x's dtype.
Value layer_norm(Value x, Value gamma, Value beta, double eps = 1e-5,
                 SourceLocation loc = SourceLocation::here());
Value rms_norm(Value x, Value w, double eps = 1e-5, SourceLocation loc = SourceLocation::here());

// Cotangents of x, from the result y (softmax, log_softmax) or the operands.
Value softmax_backward(Value y, Value dy, int64_t axis = -1,
                       SourceLocation loc = SourceLocation::here());
Value log_softmax_backward(Value y, Value dy, int64_t axis = -1,
                           SourceLocation loc = SourceLocation::here());
struct LayerNormGrads {
  Value dx, dgamma, dbeta;
};
LayerNormGrads layer_norm_backward(Value x, Value gamma, Value dy, double eps = 1e-5,
                                   SourceLocation loc = SourceLocation::here());
struct RmsNormGrads {
  Value dx, dw;
};
RmsNormGrads rms_norm_backward(Value x, Value w, Value dy, double eps = 1e-5,
                               SourceLocation loc = SourceLocation::here());

}  // namespace sinter
