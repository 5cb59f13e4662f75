// Trains a GPT on bytes: sinter's own sources, or --data. `train_gpt --help` lists the flags.
//
// The model is sinter::nn::gpt, the graphs are in frontends/train/trainer.cpp, the loop in
// frontends/train/run.cpp.

#include "train_gpt/options.h"

#include <sinter/frontends/train/device.h>
#include <sinter/frontends/train/memory.h>
#include <sinter/frontends/train/report.h>
#include <sinter/runtime/memory.h>

#include <cstdio>
#include <filesystem>

using namespace sinter;

namespace {

volatile std::sig_atomic_t interrupted = 0;

constexpr double kTemperature = 0.8;
constexpr int kInterruptedStatus = 130;

std::string data_path(const std::string& given) {
  if (!given.empty()) return given;
  std::string tree = data::sinter_tree();
  if (tree.empty()) throw Error("sinter's sources are not here; name the text with --data PATH");
  return tree;
}

std::string cuda_target_name() {
  for (const DeviceEntry& d : list_devices())
    if (d.kind == DeviceKind::Cuda && d.unavailable.empty())
      return d.name.substr(d.name.rfind(' ') + 1);
  return "sm_90a";
}

// For a card of each size, what the run takes as it was asked for, and what would fit.
void print_plans(const train::TrainConfig& config) {
  struct Card {
    int64_t gib;
    const char* target;
  };
  for (Card card : {Card{24, "sm_89"}, Card{40, "sm_80"}, Card{80, "sm_90a"}}) {
    // The driver and its context take a part of each card.
    int64_t limit = (card.gib << 30) - (int64_t{1} << 29);
    int64_t asked = train::planned_bytes(config, card.target);
    std::optional<train::Fit> fit;
    if (asked <= limit)
      fit = train::Fit{config, asked};
    else
      fit = train::find_fit(config, card.target, limit);
    fmt::print("{} GiB ({}): {} as asked for; {}\n", card.gib, card.target, byte_text(asked),
               fit ? fmt::format("{} with {}", byte_text(fit->bytes), train::flags_of(fit->config))
                   : "nothing fits");
    std::fflush(stdout);
  }
}

// Of the model that was named, or of each preset.
int plan_memory(Options o) {
  bool named = !o.model.empty() || o.layers || o.heads || o.kv_heads || o.width || o.head_dim ||
               o.vocab || o.context;
  if (named) {
    print_plans(plan_for(o, DeviceKind::Cuda).config);
    return 0;
  }
  for (std::string_view preset : nn::gpt_preset_names()) {
    o.model = preset;
    train::TrainConfig config = plan_for(o, DeviceKind::Cuda).config;
    fmt::print("{}, {} parameters, --batch {} --dtype {}\n", preset,
               train::short_count(double(config.model.parameter_count())), config.batch,
               config.dtype);
    print_plans(config);
  }
  return 0;
}

std::unique_ptr<train::GptTrainer> make_trainer(const train::TrainConfig& config, DeviceKind device,
                                                const Options& o, const TuningRecord& tuning) {
  CompileOptions options;
  options.device = device;
  options.memory = o.memory;
  options.tune = o.tune;
  options.tuning = tuning;
  std::unique_ptr<train::GptTrainer> trainer;
  try {
    trainer = std::make_unique<train::GptTrainer>(config, options);
  } catch (const OutOfMemory& e) {
    // What the compiler cannot know: how the run could be cut.
    std::string target = device == DeviceKind::Cuda ? cuda_target_name() : "host";
    auto fit = train::find_fit(config, target, e.limit());
    throw Error(fmt::format(
        "{}\n{}", e.diagnostic().message,
        fit ? fmt::format("It fits with {}: {} bytes", train::flags_of(fit->config), fit->bytes)
            : "Not even one sequence at a time fits"));
  }
  const CompileStats& stats = trainer->executable().stats();
  fmt::print(stderr, "{}: {} parameters; compiled in {:.1f} s ({} kernels, {} from the cache)\n",
             to_string(device), train::short_count(double(config.model.parameter_count())),
             stats.seconds, stats.kernels, stats.cached);
  if (o.tune && device != DeviceKind::Cuda)
    fmt::print(stderr, "--tune: there is nothing to choose from on {}\n", to_string(device));
  return trainer;
}

void print_sample(train::GptTrainer& trainer, const data::ByteText& text, const Options& o,
                  uint64_t seed) {
  if (o.sample == 0) return;
  std::string prompt = text.validation().substr(0, 64);
  fmt::print("{}\n", trainer.sample(prompt, o.sample, kTemperature, seed));
}

int evaluate(const Options& o) {
  std::string folder = train::latest_checkpoint(o.out);
  train::TrainState state = train::read_train_state(folder);
  std::string path = data_path(o.data.empty() ? state.data : o.data);
  data::ByteText text(data::read_text(path), state.config.model.context, state.config.model.vocab);
  auto run = [&](DeviceKind device) {
    auto trainer = make_trainer(state.config, device, o, state.tuning);
    train::load_checkpoint(folder, state, *trainer, false);
    fmt::print("val loss {:.4f}\n", trainer->validate(text));
  };
  train::on_device(o.device, run, stderr);
  return 0;
}

// The checkpoint that --resume goes on from; "" where a run has begun and saved nothing yet.
std::string checkpoint_to_resume(const Options& o) {
  try {
    return train::latest_checkpoint(o.out);
  } catch (const Error&) {
    if (!std::filesystem::exists(std::filesystem::path(o.out) / "metrics.jsonl")) throw;
    fmt::print(stderr, "'{}' has no checkpoint yet: starting at step 0\n", o.out);
    return "";
  }
}

int train_and_sample(const Options& o) {
  std::string folder = o.resume ? checkpoint_to_resume(o) : "";
  std::optional<train::TrainState> state;
  if (!folder.empty()) state = train::read_train_state(folder);
  std::string data = o.data.empty() && state ? state->data : o.data;
  std::string all = data::read_text(data_path(data));
  int status = 0;
  auto run = [&](DeviceKind device) {
    Plan plan = state ? plan_for(o, folder, *state) : plan_for(o, device);
    data::ByteText text(all, plan.config.model.context, plan.config.model.vocab);
    if (state && text.checksum() != state->data_checksum)
      fmt::print(stderr, "the data is not what '{}' was trained on: the batches are others\n",
                 folder);
    auto trainer = make_trainer(plan.config, device, o, state ? state->tuning : TuningRecord{});
    if (state)
      train::load_checkpoint(folder, *state, *trainer, true);
    else
      trainer->init();
    if (!o.init.empty()) train::load_weights(o.init, *trainer);
    if (state) fmt::print(stderr, "going on from {}\n", folder);
    std::signal(SIGINT, [](int) { interrupted = 1; });
    train::RunResult result = run_training(*trainer, text,
                                           {.rate = plan.rate,
                                            .out = o.out,
                                            .data = data,
                                            .eval_every = o.eval_every,
                                            .save_every = o.save_every,
                                            .stop_after = o.stop_after,
                                            .resumed = state,
                                            .progress = stderr,
                                            .stop = &interrupted});
    std::signal(SIGINT, SIG_DFL);
    fmt::print(stderr, "{} steps in {:.1f} s{}\n", result.steps - (state ? state->step : 0),
               result.seconds, result.checkpoint.empty() ? "" : "; saved " + result.checkpoint);
    if (result.stopped) {
      status = interrupted != 0 ? kInterruptedStatus : 0;
      return;
    }
    fmt::print("val loss {:.4f}\n", result.val_loss);
    std::fflush(stdout);
    print_sample(*trainer, text, o, plan.config.seed);
  };
  train::on_device(o.device, run, stderr);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    if (!parse_options(argc, argv, options)) return 0;
    if (options.plan_memory) return plan_memory(options);
    return options.eval ? evaluate(options) : train_and_sample(options);
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return 1;
  }
}
