#include "options.h"

#include <fmt/ranges.h>
#include <sinter/frontends/cli/numbers.h>
#include <CLI/CLI.hpp>

#include <utility>

using namespace sinter;

namespace {

const CLI::Validator kPositive = cli::above_zero(), kNotNegative = cli::zero_or_above();

void add_flags(CLI::App& app, Options& o) {
  app.add_option("--model", o.model,
                 fmt::format("a preset: {}", fmt::join(nn::gpt_preset_names(), ", ")))
      ->group("Model");
  auto size = [&](const char* flag, std::optional<int64_t>& value, const char* text) {
    app.add_option(flag, value, text)->group("Model")->check(kPositive);
  };
  size("--layers", o.layers, "transformer blocks");
  size("--heads", o.heads, "attention heads");
  size("--kv-heads", o.kv_heads, "key and value heads; a divisor of --heads");
  size("--width", o.width, "of the residual stream");
  size("--head-dim", o.head_dim, "of one head; width / heads if not given");
  size("--vocab", o.vocab, "tokens; a byte is one");
  size("--context", o.context, "tokens of a sequence");
  app.add_option("--dropout", o.dropout, "share of activations dropped")
      ->group("Model")
      ->check(CLI::Range(0.0, 0.99));

  auto training = [&](const char* flag, auto& value, const char* text) {
    return app.add_option(flag, value, text)->group("Training");
  };
  training("--data", o.data, "a file, or a folder of sources; sinter's own sources if not given");
  training("--init", o.init, "a safetensors file of weights to start from; drawn if not given");
  training("--batch", o.batch, "sequences a step")->check(kPositive);
  training("--accumulate", o.accumulate, "equal parts of the batch, taken one after another")
      ->check(kPositive);
  training("--steps", o.steps, "training steps")->check(kPositive);
  training("--lr", o.lr, "peak learning rate")->check(kPositive);
  training("--schedule", o.schedule, "constant, cosine, linear or wsd")
      ->check(CLI::IsMember({"constant", "cosine", "linear", "wsd"}));
  training("--warmup", o.warmup, "steps up to the peak")->check(kNotNegative);
  training("--decay-steps", o.decay_steps, "steps of the schedule's descent")->check(kPositive);
  training("--optimizer", o.optimizer,
           fmt::format("one of {}", fmt::join(train::optimizer_names(), ", ")).c_str());
  training("--weight-decay", o.weight_decay, "decoupled, of weights with two axes")
      ->check(kNotNegative);
  training("--clip", o.clip, "largest 2-norm of the gradients; 0: any")->check(kNotNegative);
  training("--dtype", o.dtype, "of products: f32, tf32, bf16 or f16; all else is f32")
      ->check(CLI::IsMember({"f32", "tf32", "bf16", "f16"}));
  training("--recompute", o.recompute,
           "none; block or sqrt: less memory, more work; or bytes of activations to keep");
  training("--attention", o.attention,
           "auto; composed: products and a softmax; flash: an error where that is all there is")
      ->check(CLI::IsMember({"auto", "composed", "flash"}));
  training("--memory", o.memory, "bytes that the run may take of the device; 0: what is free")
      ->check(kNotNegative);
  app.add_flag("--plan-memory", o.plan_memory,
               "print what the run would take of cards of 24, 40 and 80 GiB, and stop")
      ->group("Training");
  app.add_flag("--tune", o.tune,
               "time the ways to carry out each product, and keep the fastest; on CUDA alone")
      ->group("Training");
  training("--seed", o.seed, "of weights, batches, dropout and the sample");
  training("--device", o.device, "auto, cuda, cpu or reference")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "reference"}));
  training("--out", o.out, "folder for metrics and checkpoints; nothing is written without it");
  app.add_flag("--resume", o.resume, "go on from the last checkpoint of --out, with its settings")
      ->group("Training");
  training("--stop-after", o.stop_after, "end at this step, as if interrupted there")
      ->check(kPositive);
  training("--save-every", o.save_every, "steps between checkpoints")->check(kPositive);
  training("--eval-every", o.eval_every, "steps between evaluations")->check(kPositive);
  app.add_flag("--eval", o.eval, "load the checkpoint of --out, print its loss and stop")
      ->group("Training");
  training("--sample", o.sample, "bytes of text to write at the end")->check(kNotNegative);
}

void check_names(const Options& o) {
  if (!o.model.empty() && !nn::gpt_preset(o.model))
    throw Error(fmt::format("--model: unknown preset '{}'; there are {}", o.model,
                            fmt::join(nn::gpt_preset_names(), ", ")));
  if (o.eval && o.out.empty()) throw Error("--eval: give the folder of the model with --out");
  if (o.resume && o.out.empty()) throw Error("--resume: give the folder of the run with --out");
  if (o.resume && !o.init.empty())
    throw Error("--resume goes on from a checkpoint, --init starts from weights: give one of them");
  if (o.resume && o.eval) throw Error("--resume trains and --eval does not: give one of them");
}

// What a device trains in a minute or two, when nothing else is asked for.
Plan default_plan(DeviceKind device) {
  Plan plan;
  plan.config.model = *nn::gpt_preset("tiny");
  switch (device) {
    case DeviceKind::Cuda:
      plan.config.model = *nn::gpt_preset("small");
      plan.config.model.dropout = 0.2;  // its 33 million tokens are the sources many times over
      plan.config.batch = 64;
      plan.rate = {.peak = 1e-3, .steps = 2000, .warmup = 100};
      break;
    case DeviceKind::Cpu:
      plan.config.batch = 16;
      plan.rate = {.peak = 3e-3, .steps = 1000, .warmup = 50};
      break;
    default:  // op by op: enough to see it learn
      plan.config.model.layers = 2;
      plan.config.model.heads = 2;
      plan.config.model.width = 32;
      plan.config.model.context = 64;
      plan.config.batch = 8;
      plan.rate = {.peak = 5e-3, .steps = 200, .warmup = 20};
      break;
  }
  return plan;
}

}  // namespace

bool parse_options(int argc, const char* const* argv, Options& options) {
  CLI::App app("Trains a GPT on bytes and writes a sample of what it learnt.", "train_gpt");
  add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& e) {
    throw Error(e.what());
  }
  check_names(options);
  return true;
}

namespace {

void set(auto& to, const auto& from) {
  if (from) to = *from;
}

// Puts what was given in the place of what `plan` has.
void apply(const Options& o, Plan& plan) {
  train::TrainConfig& c = plan.config;
  nn::GptConfig& m = c.model;
  if (!o.model.empty()) m = *nn::gpt_preset(o.model);
  // The feed-forward part follows the width unless a preset's own width stays.
  if (o.width) m.hidden = 0;
  set(m.layers, o.layers);
  set(m.heads, o.heads);
  set(m.kv_heads, o.kv_heads);
  set(m.width, o.width);
  set(m.head_dim, o.head_dim);
  set(m.vocab, o.vocab);
  set(m.context, o.context);
  set(m.dropout, o.dropout);
  set(c.recompute, o.recompute);
  set(c.dtype, o.dtype);
  set(c.optimizer, o.optimizer);
  set(c.attention, o.attention);
  set(c.weight_decay, o.weight_decay);
  set(c.seed, o.seed);
  set(c.batch, o.batch);
  set(c.accumulate, o.accumulate);
  set(c.clip, o.clip);
  set(plan.rate.peak, o.lr);
  set(plan.rate.steps, o.steps);
  set(plan.rate.warmup, o.warmup);
  set(plan.rate.decay_steps, o.decay_steps);
  if (o.schedule) plan.rate.schedule = *train::parse_schedule(*o.schedule);
  c.check();
}

}  // namespace

Plan plan_for(const Options& o, DeviceKind device) {
  Plan plan = default_plan(device);
  apply(o, plan);
  if (!o.warmup) plan.rate.warmup = std::min(plan.rate.warmup, plan.rate.steps / 10);
  return plan;
}

Plan plan_for(const Options& o, const std::string& checkpoint, const train::TrainState& state) {
  Plan plan{state.config, state.rate};
  // Sizes that follow from others do so again, as they did at the first start.
  nn::GptConfig& m = plan.config.model;
  if (m.kv_heads == m.heads) m.kv_heads = 0;
  if (m.head_dim * m.heads == m.width) m.head_dim = 0;
  int64_t hidden = std::exchange(m.hidden, 0);
  if (m.resolved().hidden != hidden) m.hidden = hidden;
  apply(o, plan);
  if (o.width == state.config.model.width) m.hidden = hidden;
  m.dropout = o.dropout.value_or(state.config.model.dropout);
  std::vector<std::string> found = train::differences(state.config, plan.config);
  if (!found.empty())
    throw Error(
        fmt::format("--resume: '{}' is of another run: {}", checkpoint, fmt::join(found, "; ")));
  return plan;
}
