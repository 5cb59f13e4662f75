#pragma once
// Losses.

#include <sinter/ir/graph.h>

namespace sinter {

struct CrossEntropy {
  Value loss;   // f32 (f64 for f64 logits): a scalar, or t's shape for reduction "none"
  Value count;  // i32[]: targets that are not ignored
};
// Softmax cross-entropy of logits z [..., V] against class indices t [...] (i32 or i64). Targets
// equal to `ignore_index` count nowhere; other targets outside 0..V-1 are an error when run. The
// mean is over valid targets, and 0 when there is none. `reduction` is "mean", "sum" or "none".
CrossEntropy cross_entropy(Value z, Value t, int64_t ignore_index = -100,
                           std::string reduction = "mean",
                           SourceLocation loc = SourceLocation::here());
// The cotangent of z, given that of the loss.
Value cross_entropy_backward(Value z, Value t, Value dloss, int64_t ignore_index = -100,
                             std::string reduction = "mean",
                             SourceLocation loc = SourceLocation::here());

}  // namespace sinter
