#pragma once
// Losses of class indices. Those of targets like the prediction are in elementwise_loss.h.

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
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  std::string reduction = "mean";
  // The share of each target that is spread over all classes alike (Szegedy et al., 2016).
  double label_smoothing = 0;
  // Times the square of the log of the sum of exponentials, added in each valid row (as PaLM).
  double z_loss = 0;
  // [V], of each class: weighs the terms of its rows, and the mean divides by the valid targets'
  // weights in place of their count (0 where those add up to 0).
  Value weight;
};
CrossEntropy cross_entropy(Value z, Value t, CrossEntropyOptions options,
                           SourceLocation loc = SourceLocation::here());
// The cotangent of z, given that of the loss.
Value cross_entropy_backward(Value z, Value t, Value dloss, CrossEntropyOptions options,
                             SourceLocation loc = SourceLocation::here());

// -logp[t] of log-probabilities logp [..., V]: the cross-entropy of log_softmax's results, with
// the same targets, weights and means.
CrossEntropy nll(Value logp, Value t, int64_t ignore_index = -100, std::string reduction = "mean",
                 Value weight = {}, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
