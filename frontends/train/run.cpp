#include <sinter/frontends/train/run.h>

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace sinter::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// Lines of JSON, each on disk's way before the next step starts.
class Metrics {
 public:
  explicit Metrics(const std::string& dir) {
    if (dir.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    path_ = std::filesystem::path(dir) / "metrics.jsonl";
    file_ = std::fopen(path_.c_str(), "w");
    if (file_ == nullptr) fail();
  }
  ~Metrics() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void write(const nlohmann::ordered_json& line) {
    if (file_ == nullptr) return;
    std::string text = line.dump() + "\n";
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
      fail();
  }

 private:
  [[noreturn]] void fail() {
    throw Error(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
  }
  std::string path_;
  std::FILE* file_ = nullptr;
};

// JSON has no infinities: they travel as words.
nlohmann::ordered_json number(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}

std::string duration(double seconds) {
  auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

// One line, rewritten in a terminal; elsewhere a new line every so often.
class Progress {
 public:
  Progress(std::FILE* to, int64_t steps) : to_(to), steps_(steps) {
    terminal_ = to != nullptr && isatty(fileno(to)) == 1;
  }
  void show(int64_t done, double loss, double tokens_per_s, double seconds) {
    if (to_ == nullptr) return;
    auto now = Clock::now();
    bool last = done == steps_;
    if (!last && done != 1 && seconds_between(shown_, now) < (terminal_ ? 0.1 : 10)) return;
    shown_ = now;
    double left = seconds / static_cast<double>(done) * static_cast<double>(steps_ - done);
    constexpr int64_t kWidth = 24;
    auto filled = static_cast<size_t>(done * kWidth / std::max<int64_t>(steps_, 1));
    std::string bar = std::string(filled, '=') + std::string(kWidth - filled, ' ');
    fmt::print(to_, "{}[{}] {}/{}  loss {:.4f}  {} tokens/s  {} left{}", terminal_ ? "\r" : "", bar,
               done, steps_, loss, short_count(tokens_per_s), duration(left),
               terminal_ ? "\x1b[K" : "\n");
    open_ = terminal_;
    std::fflush(to_);
  }
  void note(const std::string& text) {
    if (to_ == nullptr) return;
    close();
    fmt::print(to_, "{}\n", text);
    std::fflush(to_);
  }
  void close() {
    if (open_) std::fputc('\n', to_);
    open_ = false;
  }

 private:
  std::FILE* to_;
  int64_t steps_;
  bool terminal_ = false, open_ = false;
  Clock::time_point shown_{};
};

}  // namespace

std::string short_count(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f}k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}G", count / 1e9);
}

RunResult run_training(GptTrainer& trainer, const data::ByteText& text, const RunOptions& options) {
  const TrainConfig& config = trainer.config();
  const int64_t steps = options.rate.steps;
  const auto tokens = static_cast<double>(config.batch * config.model.context);
  Metrics metrics(options.out);
  Progress progress(options.progress, steps);
  RunResult result;

  auto evaluate = [&] {
    result.val_loss = trainer.validate(text);
    metrics.write({{"step", result.steps}, {"val_loss", number(result.val_loss)}});
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
                   {"loss", number(step.loss)},
                   {"lr", lr},
                   {"grad_norm", number(step.grad_norm)},
                   {"tokens_per_s", tokens / seconds},
                   {"ms", seconds * 1e3}});
    progress.show(result.steps, step.loss,
                  tokens * static_cast<double>(result.steps) / result.seconds, result.seconds);
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
