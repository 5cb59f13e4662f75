#pragma once
// Asking for a training step: gradients of a loss and an optimizer's update of parameters.
//
// minimize() only writes down what is wanted, as attributes of the loss's graph (see
// passes/optimizer.h); the passes autodiff and optimizer do it. The optimizer's own state is
// declared in the module: `adamw.m.NAME`, `adamw.v.NAME`, and `adamw.t`, the count of updates.

#include <sinter/frontends/dsl/model.h>

namespace sinter {

// Weight matrices and embeddings decay; biases and gains, which have one axis, do not.
inline bool decays_matrices(std::string_view, const TensorType& type) {
  return type.rank() >= 2;
}

struct AdamW {
  Value lr;  // a float scalar of the graph; null: its input `lr`, f32[], added where missing
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  std::function<bool(std::string_view name, const TensorType& type)> decays = decays_matrices;
  std::string grad_norm;  // the name of an output: the 2-norm of all gradients; "": none
};

// Makes the graph of `loss` (a float scalar) a training step for `parameters`, inputs of that graph
// that are parameters: g.parameters() names them all.
void minimize(Value loss, const std::vector<Value>& parameters, const AdamW& optimizer = {},
              SourceLocation loc = SourceLocation::here());

}  // namespace sinter
