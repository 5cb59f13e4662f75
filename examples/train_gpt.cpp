// Trains a GPT on bytes: sinter's own sources, or --data. `train_gpt --help` lists the flags.
//
// The model is sinter::nn::gpt, the graphs are in frontends/train/trainer.cpp, the loop in
// frontends/train/run.cpp.

#include "train_gpt/options.h"

#include <sinter/frontends/train/device.h>
#include <sinter/frontends/train/report.h>

#include <cstdio>

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

std::unique_ptr<train::GptTrainer> make_trainer(const train::TrainConfig& config,
                                                DeviceKind device) {
  CompileOptions options;
  options.device = device;
  auto trainer = std::make_unique<train::GptTrainer>(config, options);
  const CompileStats& stats = trainer->executable().stats();
  fmt::print(stderr, "{}: {} parameters; compiled in {:.1f} s ({} kernels, {} from the cache)\n",
             to_string(device), train::short_count(double(config.model.parameter_count())),
             stats.seconds, stats.kernels, stats.cached);
  return trainer;
}

void print_sample(train::GptTrainer& trainer, const data::ByteText& text, const Options& o) {
  if (o.sample == 0) return;
  std::string prompt = text.validation().substr(0, 64);
  fmt::print("{}\n", trainer.sample(prompt, o.sample, kTemperature, o.seed));
}

int evaluate(const Options& o) {
  std::string folder = train::latest_checkpoint(o.out);
  train::TrainState state = train::read_train_state(folder);
  std::string path = data_path(o.data.empty() ? state.data : o.data);
  data::ByteText text(data::read_text(path), state.config.model.context, state.config.model.vocab);
  auto run = [&](DeviceKind device) {
    auto trainer = make_trainer(state.config, device);
    train::load_checkpoint(folder, *trainer, false);
    fmt::print("val loss {:.4f}\n", trainer->validate(text));
  };
  train::on_device(o.device, run, stderr);
  return 0;
}

int train_and_sample(const Options& o) {
  std::string all = data::read_text(data_path(o.data));
  int status = 0;
  auto run = [&](DeviceKind device) {
    Plan plan = plan_for(o, device);
    data::ByteText text(all, plan.config.model.context, plan.config.model.vocab);
    auto trainer = make_trainer(plan.config, device);
    trainer->init();
    std::signal(SIGINT, [](int) { interrupted = 1; });
    train::RunResult result = run_training(*trainer, text,
                                           {.rate = plan.rate,
                                            .out = o.out,
                                            .data = o.data,
                                            .eval_every = o.eval_every,
                                            .save_every = o.save_every,
                                            .progress = stderr,
                                            .stop = &interrupted});
    std::signal(SIGINT, SIG_DFL);
    fmt::print(stderr, "{} steps in {:.1f} s{}\n", result.steps, result.seconds,
               result.checkpoint.empty() ? "" : "; saved " + result.checkpoint);
    if (result.stopped) {
      status = kInterruptedStatus;
      return;
    }
    fmt::print("val loss {:.4f}\n", result.val_loss);
    std::fflush(stdout);
    print_sample(*trainer, text, o);
  };
  train::on_device(o.device, run, stderr);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    if (!parse_options(argc, argv, options)) return 0;
    return options.eval ? evaluate(options) : train_and_sample(options);
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return 1;
  }
}
