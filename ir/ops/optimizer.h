#pragma once
// Optimizer steps as ops.

#include <sinter/ir/graph.h>

namespace sinter {

struct AdamWAttrs {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  static constexpr auto fields() {
    return std::tuple{field("beta1", &AdamWAttrs::beta1, "decay of the mean gradient"),
                      field("beta2", &AdamWAttrs::beta2, "decay of the mean squared gradient"),
                      field("eps", &AdamWAttrs::eps, "added to the root, after bias correction"),
                      field("weight_decay", &AdamWAttrs::weight_decay,
                            "p is first scaled by 1 - lr * weight_decay")};
  }
};

struct AdamWResult {
  Value p, m, v;
};
// One step of AdamW (Loshchilov and Hutter). p, m and v have one type, f32 or f64; g their shape
// and any float dtype. t (i32[]) is the number of this update, starting at 1; lr a float scalar.
AdamWResult adamw(Value p, Value g, Value m, Value v, Value t, Value lr, AdamWAttrs attrs = {},
                  SourceLocation loc = SourceLocation::here());

}  // namespace sinter
