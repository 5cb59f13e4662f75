#pragma once
// Losses of predictions against targets of the same shape.
//
// Prediction and target are floats of one type; the loss is f32 (f64 for f64), all of it computed
// in that type. `reduction` is "mean" over all elements (0 for no elements), "sum" or "none", which
// keeps the shape. Gradients reach targets as well.

#include <sinter/ir/graph.h>

namespace sinter {

// (x - y)^2.
Value mse(Value x, Value y, std::string reduction = "mean",
          SourceLocation loc = SourceLocation::here());
// |x - y|, slope 0 at 0.
Value l1(Value x, Value y, std::string reduction = "mean",
         SourceLocation loc = SourceLocation::here());
// (x - y)^2 / 2 up to |x - y| = delta > 0, from there delta (|x - y| - delta / 2).
Value huber(Value x, Value y, double delta = 1, std::string reduction = "mean",
            SourceLocation loc = SourceLocation::here());
// y (log y - x) of log-probabilities x and probabilities y, 0 where y is 0; with `log_target` y is
// a log-probability too. "batchmean" divides the sum by the first extent, which is the divergence.
Value kl_div(Value x, Value y, bool log_target = false, std::string reduction = "mean",
             SourceLocation loc = SourceLocation::here());

struct BinaryCrossEntropyOptions {
  std::string reduction = "mean";
  Value weight;      // of each element
  Value pos_weight;  // of the part of y, such as the negatives per positive of each class
};
// -(pos_weight y log s(z) + (1 - y) log(1 - s(z))) weight, s being the sigmoid, from logits z and
// targets y in [0, 1]. The weights are broadcast to the shape of z (right-aligned).
Value binary_cross_entropy_with_logits(Value z, Value y, BinaryCrossEntropyOptions options = {},
                                       SourceLocation loc = SourceLocation::here());

}  // namespace sinter
