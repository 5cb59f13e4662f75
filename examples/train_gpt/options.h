#pragma once
// The command line of train_gpt.

#include <sinter/frontends/train/run.h>

#include <optional>
#include <string>

struct Options {
  // What was given; what was not depends on the device, or on the checkpoint for --eval.
  std::string model;
  std::optional<int64_t> layers, heads, kv_heads, width, head_dim, vocab, context;
  std::optional<int64_t> batch, steps, warmup;
  std::optional<double> lr, dropout;
  std::optional<int64_t> accumulate, decay_steps;
  std::optional<double> clip, weight_decay;
  std::optional<std::string> schedule, recompute, dtype, attention, optimizer;
  std::optional<uint64_t> seed;

  std::string data, device = "auto", out;
  std::string init;    // weights to start from, safetensors
  int64_t memory = 0;  // bytes; 0: what the device has
  bool plan_memory = false;
  int64_t eval_every = 0, save_every = 0, stop_after = 0;
  bool eval = false, resume = false, tune = false;
  int64_t sample = 1000;
};

// Throws sinter::Error for what is refused. False: --help was asked for, and shown.
bool parse_options(int argc, const char* const* argv, Options& options);

// Model, batch, steps and learning rate, with defaults that suit the device.
struct Plan {
  sinter::train::TrainConfig config;
  sinter::train::LearningRate rate;
};
Plan plan_for(const Options& options, sinter::DeviceKind device);
// The same for a run that goes on: what was not given is that of the checkpoint. Throws Error where
// shape, seed or batch differ.
Plan plan_for(const Options& options, const std::string& checkpoint,
              const sinter::train::TrainState& state);
