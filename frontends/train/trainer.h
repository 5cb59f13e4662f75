#pragma once
// Training, judging and sampling a GPT on bytes: one model, four graphs, one set of weights.
//
//   step    ids, targets [batch, context] -> loss, grad_norm, skipped_steps, and the update
//   eval    the same inputs -> sum of losses and count of targets
//   sample  ids [1, context], position [1] -> logits of what follows that position
//   init    the first weights
//
// Where a step accumulates, `accumulate_first` and `accumulate` take the batch in parts [rows,
// context] in place of `step`, `update` has its results, and `eval` takes as many rows.

#include <sinter/frontends/data/text.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/nn/gpt.h>

namespace sinter::train {

struct TrainConfig {
  nn::GptConfig model;
  int64_t batch = 16;  // sequences of a step
  // Parts of the batch, one after another: less memory, and the gradients of the whole.
  int64_t accumulate = 1;
  double clip = 0;                  // of the gradients' 2-norm; 0: none
  std::string optimizer = "adamw";  // one of optimizer_names()
  double weight_decay = 0.1;
  // none; block: each block's inside is computed again for the backward pass; sqrt: that of about
  // sqrt(layers) blocks at a time; or the bytes of activations to keep.
  std::string recompute = "none";

  // auto, composed or flash; see runtime/attention.h.
  std::string attention = "auto";

  // Throws Error where sizes do not fit together.
  void check() const;
  int64_t rows() const { return batch / accumulate; }  // sequences at once
  // f32, or what contractions compute in: bf16, f16 (with a loss scale that adapts) or tf32.
  std::string dtype = "f32";
  uint64_t seed = 1;
};

// adamw, adam, sgd, momentum, lion, adafactor, muon.
std::span<const std::string_view> optimizer_names();

// Lr as a function of the step: linear warm-up, then the schedule from the peak to a tenth of it.
enum class Schedule : uint8_t {
  Constant,
  Cosine,
  Linear,
  Wsd,  // constant, then linear over the last `decay_steps`
};
std::optional<Schedule> parse_schedule(std::string_view name);
std::string_view to_string(Schedule schedule);

struct LearningRate {
  double peak = 1e-3;
  Schedule schedule = Schedule::Cosine;
  int64_t steps = 1000, warmup = 0;
  int64_t decay_steps = 0;  // 0: up to the end; Wsd: a fifth of the steps
  double at(int64_t step) const;
};

// The module of such a model.
std::unique_ptr<Model> build_gpt(const TrainConfig& config);

class GptTrainer {
 public:
  // Compiles. Throws DeviceError where the device or its compiler is missing.
  GptTrainer(const TrainConfig& config, const CompileOptions& options);

  const TrainConfig& config() const { return config_; }
  const Executable& executable() const { return program_.executable(); }

  void init() { program_.init(config_.seed); }
  struct StepResult {
    double loss = 0, grad_norm = 0;
    int64_t skipped = 0;  // steps so far that were not applied, as a gradient was not finite
  };
  StepResult step(const data::Batch& batch, int64_t step, double lr);
  // Mean loss over the text's validation part, nats a token.
  double validate(const data::ByteText& text);
  // `prompt` continued by `count` bytes drawn at `temperature`; only the new bytes.
  std::string sample(std::string_view prompt, int64_t count, double temperature, uint64_t seed);

  // States that are parameters, and the optimizer's.
  std::vector<std::string> weight_names() const { return model_->parameters(); }
  std::vector<std::string> optimizer_names() const;
  // How many updates were applied, where the optimizer counts; and how many were not.
  std::optional<int64_t> updates() const;
  int64_t skipped() const;
  double loss_scale() const;  // 1 unless the dtype is f16
  Tensor state(std::string_view name) const { return program_.state(name); }
  void set_state(std::string_view name, const Tensor& v) { program_.set_state(name, v); }

 private:
  TrainConfig config_;
  std::unique_ptr<Model> model_;
  Program program_;
};

}  // namespace sinter::train
