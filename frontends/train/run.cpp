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
  Metrics metrics(options.out);
  Progress progress(options.progress, steps);
  RunResult result;

  auto evaluate = [&] {
    result.val_loss = trainer.validate(text);
    metrics.write({{"step", result.steps}, {"val_loss", result.val_loss}});
  };
  auto save = [&] {
    if (options.out.empty()) return;
    result.checkpoint = save_checkpoint(options.out, trainer, {config, result.steps, options.data});
  };
  auto due = [&](int64_t every) {
    return every > 0 && result.steps % every == 0 && result.steps != steps;
  };

  while (result.steps < steps && !result.stopped) {
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
                   {"tokens_per_s", tokens / seconds},
                   {"ms", seconds * 1e3}});
    progress.show(result.steps, step.loss,
                  tokens * static_cast<double>(result.steps) / result.seconds, "tokens/s",
                  result.seconds);
    result.stopped = options.stop != nullptr && *options.stop != 0;
    if (result.stopped) break;
    if (due(options.eval_every)) {
      evaluate();
      progress.note(fmt::format("step {}: val loss {:.4f}", result.steps, result.val_loss));
    }
    if (due(options.save_every)) save();
  }
  progress.close();
  save();
  if (!result.stopped) evaluate();
  return result;
}

}  // namespace sinter::train
