#pragma once
// What a run tells while it trains: DIR/metrics.jsonl for programs, a progress line for people.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sinter::train {

// The lines of DIR/metrics.jsonl, each on disk's way before the next step starts.
class Metrics {
 public:
  // A name and an integer or a float; what JSON has no number for is written as "nan", "inf" or
  // "-inf".
  using Line = std::vector<std::pair<const char*, std::variant<int64_t, double>>>;

  // Makes the folder and starts the file anew; an empty DIR writes nothing. Throws Error where
  // either cannot be written. A run that goes on after step `resumed` keeps the lines up to that
  // step, without an evaluation after it, which is yet to come.
  explicit Metrics(const std::string& dir, int64_t resumed = 0);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void write(const Line& line);
  // On the disk itself.
  void flush();

 private:
  void keep_lines(int64_t last) const;
  [[noreturn]] void fail() const;
  std::string path_;
  std::FILE* file_ = nullptr;
};

// One line, rewritten in a terminal; elsewhere a new line every so often. A null file: silent.
class Progress {
 public:
  Progress(std::FILE* to, int64_t steps);
  // `rate` units a second, called `unit` ("tokens/s"); `seconds` since the first of `done` steps.
  void show(int64_t done, double loss, double rate, const char* unit, double seconds);
  // A line of its own.
  void note(const std::string& text);
  void close();

 private:
  std::FILE* to_;
  int64_t steps_;
  bool terminal_ = false, open_ = false;
  std::chrono::steady_clock::time_point shown_{};
};

// "1.2k", "34.5M".
std::string short_count(double count);
// "12s", "3m04s", "2h05m".
std::string short_duration(double seconds);

}  // namespace sinter::train
