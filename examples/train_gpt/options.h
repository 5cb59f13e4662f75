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
  double weight_decay = 0.1;
  std::string schedule = "cosine";
  int64_t decay_steps = 0;
  uint64_t seed = 1;
  bool recompute_blocks = false;

  std::string data, device = "auto", out;
  int64_t eval_every = 0, save_every = 0;
  bool eval = false;
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
