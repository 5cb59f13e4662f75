#pragma once
// Draws that are the same on every machine, unlike the standard library's distributions.

#include <sinter/ir/diagnostic.h>

#include <cstdint>
#include <vector>

namespace sinter::test {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed * 0xD1342543DE82EF95ULL + 0x9E3779B97F4A7C15ULL) {
    next();
    next();
  }
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // In 0..n-1.
  int64_t below(int64_t n) {
    SINTER_CHECK(n > 0, "a draw from nothing");
    return static_cast<int64_t>(next() % static_cast<uint64_t>(n));
  }
  // In low..high, both included.
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double p) { return unit() < p; }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(static_cast<int64_t>(from.size())))];
  }

 private:
  uint64_t state_;
};

}  // namespace sinter::test
