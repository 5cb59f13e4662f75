#include <sinter/frontends/train/report.h>
#include <sinter/ir/diagnostic.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sinter::train {
namespace {

using Clock = std::chrono::steady_clock;

// JSON has no infinities: they travel as words.
nlohmann::ordered_json number(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}
nlohmann::ordered_json number(int64_t v) {
  return v;
}

}  // namespace

Metrics::Metrics(const std::string& dir, int64_t resumed) {
  if (dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  path_ = std::filesystem::path(dir) / "metrics.jsonl";
  if (resumed > 0) keep_lines(resumed);
  file_ = std::fopen(path_.c_str(), resumed > 0 ? "a" : "w");
  if (file_ == nullptr) fail();
}

// Written beside the file and renamed over it, so that a kill loses no line. A line cut short by
// one is dropped.
void Metrics::keep_lines(int64_t last) const {
  std::string aside = path_ + ".new", line;
  std::ifstream from(path_);
  std::ofstream to(aside);
  while (std::getline(from, line)) {
    auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    int64_t step = json["step"];
    if (step > last || (step == last && json.contains("val_loss"))) continue;
    to << line << '\n';
  }
  to.close();
  if (!to || std::rename(aside.c_str(), path_.c_str()) != 0) fail();
}

Metrics::~Metrics() {
  if (file_ != nullptr) std::fclose(file_);
}

void Metrics::write(const Line& line) {
  if (file_ == nullptr) return;
  nlohmann::ordered_json json;
  for (const auto& [name, value] : line)
    json[name] = std::visit([](auto v) { return number(v); }, value);
  std::string text = json.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    fail();
}

void Metrics::flush() {
  if (file_ != nullptr && fsync(fileno(file_)) != 0) fail();
}

void Metrics::fail() const {
  throw Error(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
}

Progress::Progress(std::FILE* to, int64_t steps)
    : to_(to), steps_(steps), terminal_(to != nullptr && isatty(fileno(to)) == 1) {}

void Progress::show(int64_t done, double loss, double rate, const char* unit, double seconds) {
  if (to_ == nullptr) return;
  auto now = Clock::now();
  bool last = done == steps_;
  double since = std::chrono::duration<double>(now - shown_).count();
  if (!last && done != 1 && since < (terminal_ ? 0.1 : 10)) return;
  shown_ = now;
  double left = seconds / static_cast<double>(done) * static_cast<double>(steps_ - done);
  constexpr int64_t kWidth = 24;
  auto filled = static_cast<size_t>(done * kWidth / std::max<int64_t>(steps_, 1));
  std::string bar = std::string(filled, '=') + std::string(kWidth - filled, ' ');
  fmt::print(to_, "{}[{}] {}/{}  loss {:.4f}  {} {}  {} left{}", terminal_ ? "\r" : "", bar, done,
             steps_, loss, short_count(rate), unit, short_duration(left),
             terminal_ ? "\x1b[K" : "\n");
  open_ = terminal_;
  std::fflush(to_);
}

void Progress::note(const std::string& text) {
  if (to_ == nullptr) return;
  close();
  fmt::print(to_, "{}\n", text);
  std::fflush(to_);
}

void Progress::close() {
  if (open_) std::fputc('\n', to_);
  open_ = false;
}

std::string short_count(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f}k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}G", count / 1e9);
}

std::string short_duration(double seconds) {
  auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

}  // namespace sinter::train
