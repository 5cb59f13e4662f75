#pragma once
// Asking for a training step: gradients of a loss and an optimizer's update of parameters.
//
// minimize() only writes down what is wanted, as attributes of the loss's graph (see
// passes/optimizer.h); the passes autodiff and optimizer do it. The optimizer's own state is
// declared in the module: `RULE.STATE.NAME`, and for rules that count `RULE.t`, the number of
// updates: adamw.m.NAME, adamw.v.NAME, adamw.t. Formulas are those of the ops (ir/ops/optimizer.h).
//
//   minimize(loss, g.parameters(), AdamW{.weight_decay = 0.1}, {.clip = 1.0});
//
// In each rule `lr` is a float scalar of the graph; null: its input `lr`, f32[], added where
// missing. `decays` says which parameters weight_decay acts on.

#include <sinter/frontends/dsl/model.h>

namespace sinter {

using ParameterFilter = std::function<bool(std::string_view name, const TensorType& type)>;

// Weight matrices and embeddings decay; biases and gains, which have one axis, do not.
inline bool decays_matrices(std::string_view, const TensorType& type) {
  return type.rank() >= 2;
}

// A rule with its settings, whichever it is: what those below convert to.
class Optimizer {
 public:
  Optimizer(std::string rule, AttrMap attrs, Value lr, ParameterFilter decays)
      : rule_(std::move(rule)), attrs_(std::move(attrs)), lr_(lr), decays_(std::move(decays)) {}
  // `other` updates the parameters that `takes` refuses.
  Optimizer& otherwise(ParameterFilter takes, Optimizer other) {
    takes_ = std::move(takes);
    other_ = std::make_shared<const Optimizer>(std::move(other));
    return *this;
  }

  const std::string& rule() const { return rule_; }
  const AttrMap& attrs() const { return attrs_; }  // of the rule's op
  Value lr() const { return lr_; }
  // What updates this parameter.
  const Optimizer& of(std::string_view name, const TensorType& type) const {
    return other_ == nullptr || takes_(name, type) ? *this : other_->of(name, type);
  }
  const Optimizer* other() const { return other_.get(); }
  bool decays(std::string_view name, const TensorType& type) const { return decays_(name, type); }

 private:
  std::string rule_;
  AttrMap attrs_;
  Value lr_;
  ParameterFilter decays_, takes_;
  std::shared_ptr<const Optimizer> other_;
};

struct Sgd {
  Value lr;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;  // joins the gradient
  ParameterFilter decays = decays_matrices;
  operator Optimizer() const;
};
struct Adam {
  Value lr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // joins the gradient
  ParameterFilter decays = decays_matrices;
  operator Optimizer() const;
};
struct AdamW {
  Value lr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  ParameterFilter decays = decays_matrices;
  operator Optimizer() const;
};
struct Lion {
  Value lr;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  ParameterFilter decays = decays_matrices;
  operator Optimizer() const;
};
struct Adafactor {
  Value lr;
  double beta2_decay = -0.8, eps1 = 1.1920928955078125e-07, eps2 = 1e-3, clip_step = 1;
  double weight_decay = 0;
  ParameterFilter decays = decays_matrices;
  operator Optimizer() const;
};
// For matrices; `others` updates what `takes` refuses. Embeddings and heads are better refused too.
struct Muon {
  Value lr;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  double eps = 1e-7;
  int64_t iterations = 5;
  std::string adjust = "original";  // or "match_rms_adamw", with which lr is that of AdamW
  ParameterFilter decays = decays_matrices;
  ParameterFilter takes = [](std::string_view, const TensorType& t) { return t.rank() == 2; };
  AdamW others = {};
  operator Optimizer() const;
};

struct MinimizeOptions {
  // The gradients of all parameters together are scaled down to at most this 2-norm; 0: they stay.
  double clip = 0;
  std::string grad_norm;  // the name of an output: that norm before it is clipped; "": none
  // A step whose gradients are not finite is not taken. The name of an output: how many there were
  // so far, which is the state `skipped`; "": every step is taken.
  std::string skipped;
  // A float scalar of the graph: gradients are divided by it before all else. Null: they are not.
  Value divisor;
  // What loss_scale() gives: the loss was multiplied by it, gradients are divided by it, and it
  // adapts. Needs `skipped`.
  Value loss_scale;
};

// Mixed precision for a graph: contractions in `type` (bf16, f16 or "tf32"), f32 in between, and
// f32 parameters; see passes/autocast.h. "f32": none.
void autocast(const Scope& scope, std::string_view type);

// The state `loss_scale`: f32[], from 65536, for gradients that f16 could not hold:
//   Value scale = loss_scale(g);
//   minimize(loss * scale, g.parameters(), AdamW{}, {.skipped = "skipped", .loss_scale = scale});
Value loss_scale(const Scope& scope);

// Makes the graph of `loss` (a float scalar) a training step for `parameters`, inputs of that graph
// that are parameters: g.parameters() names them all.
void minimize(Value loss, const std::vector<Value>& parameters, const Optimizer& optimizer,
              const MinimizeOptions& options = {}, SourceLocation loc = SourceLocation::here());
void minimize(Value loss, const std::vector<Value>& parameters, const AdamW& optimizer = {},
              const MinimizeOptions& options = {}, SourceLocation loc = SourceLocation::here());

// --- A step in parts, for batches whose activations do not fit at once
//
//   Scope part = model.graph("accumulate", Mode::TrainingPart);
//   ... a loss summed over the part's valid targets, and their count
//   accumulate(loss, part.parameters(), {{"loss", loss}, {"count", count}});
//   Scope update = model.graph("update");
//   Value count = accumulated(update, "count", i32({}));
//   minimize_accumulated(update, part, AdamW{}, {.divisor = cast(maximum(count, 1), DType::F32)});
//
// The host runs @accumulate_first, then @accumulate for each other part, then @update. See
// passes/accumulate.h for the states between them.

// Makes the graph of `loss` (a float scalar, a sum over a part) such a part, in two graphs: NAME
// and NAME_first. The values named in `sums` are summed over the parts, as the gradients are.
void accumulate(Value loss, const std::vector<Value>& parameters,
                const std::vector<std::pair<std::string, Value>>& sums,
                SourceLocation loc = SourceLocation::here());
// One of those sums, read by another graph.
Value accumulated(const Scope& scope, std::string_view name, const TensorType& type);
// Makes `update` the update of the parameters of `part`, from their accumulated gradients.
void minimize_accumulated(const Scope& update, const Scope& part, const Optimizer& optimizer,
                          const MinimizeOptions& options = {},
                          SourceLocation loc = SourceLocation::here());

}  // namespace sinter
