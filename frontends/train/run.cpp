#include <sinter/frontends/train/report.h>
#include <sinter/frontends/train/run.h>

#include <chrono>

namespace sinter::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

RunResult run_training(GptTrainer& trainer, const data::ByteText& text, const RunOptions& options) {
  const TrainConfig& config = trainer.config();
  const int64_t steps = options.rate.steps;
  const auto tokens = static_cast<double>(config.batch * config.model.context);
  TrainState state = options.resumed.value_or(TrainState{});
  state.config = config;
  state.rate = options.rate;
  state.data = options.data;
  state.data_checksum = text.checksum();
  if (state.started == 0)
    state.started = std::chrono::system_clock::now().time_since_epoch().count();
  const int64_t first = state.step;
  RunResult result;
  result.steps = first;
  if (!options.out.empty()) remove_leftovers(options.out);
  Metrics metrics(options.out, first);
  Progress progress(options.progress, steps);

  auto evaluate = [&] {
    result.val_loss = trainer.validate(text);
    metrics.write({{"step", result.steps}, {"val_loss", result.val_loss}});
  };
  auto save = [&] {
    if (options.out.empty()) return;
    metrics.flush();
    state.step = result.steps;
    // On another device nothing was chosen; what was chosen before is kept for its own.
    if (!trainer.executable().tuning().empty()) state.tuning = trainer.executable().tuning();
    result.checkpoint = save_checkpoint(options.out, trainer, state);
  };
  auto due = [&](int64_t every) {
    return every > 0 && result.steps % every == 0 && result.steps != steps;
  };
  auto evaluate_if_due = [&] {
    if (!due(options.eval_every)) return;
    evaluate();
    progress.note(fmt::format("step {}: val loss {:.4f}", result.steps, result.val_loss));
  };

  if (first > 0) evaluate_if_due();
  while (result.steps < steps) {
    data::Batch batch = text.batch(config.batch, config.seed, static_cast<uint32_t>(result.steps));
    double lr = options.rate.at(result.steps);
    auto start = Clock::now();
    GptTrainer::StepResult step = trainer.step(batch, result.steps, lr);
    double seconds = seconds_between(start, Clock::now());
    result.seconds += seconds;
    ++result.steps;
    metrics.write({{"step", result.steps},
                   {"loss", step.loss},
                   {"lr", lr},
                   {"grad_norm", step.grad_norm},
                   {"skipped", step.skipped},
                   {"tokens_per_s", tokens / seconds},
                   {"ms", seconds * 1e3}});
    int64_t done = result.steps - first;
    progress.show(result.steps, step.loss, tokens * static_cast<double>(done) / result.seconds,
                  "tokens/s",
                  result.seconds * static_cast<double>(result.steps) / static_cast<double>(done));
    result.stopped = (options.stop != nullptr && *options.stop != 0) ||
                     (result.steps == options.stop_after && result.steps < steps);
    if (result.stopped) break;
    // The checkpoint first: a run that goes on from it evaluates again.
    if (due(options.save_every)) save();
    evaluate_if_due();
  }
  progress.close();
  if (result.steps > first || first == 0) save();
  if (!result.stopped) evaluate();
  return result;
}

}  // namespace sinter::train
