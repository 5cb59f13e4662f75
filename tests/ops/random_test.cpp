// Random ops made of uniform numbers: their distributions, and that an element's draw depends on
// seed, step, site and element alone.

#include <sinter/tests/ops/case.h>

#include <algorithm>
#include <map>

namespace sinter::test {
namespace {

// seed, step and offset as inputs of a case.
struct Stream {
  Value seed, step, offset;
  explicit Stream(Case& c, uint32_t seed0 = 7, uint32_t step0 = 3, int64_t offset0 = 0)
      : seed(c.input(Tensor::from(Shape{2}, std::vector<uint32_t>{seed0, 11}))),
        step(c.input(Tensor::scalar(step0))),
        offset(c.input(Tensor::scalar(offset0))) {}
};

Doubles on_reference(Case& c) {
  return Reference().run(c.graph, c.inputs)[0].to_doubles();
}

Doubles truncated(double low, double high, int64_t n, uint32_t step = 3, int64_t offset = 0) {
  Case c;
  Stream s(c, 7, step, offset);
  c.output(random_truncated_normal(s.seed, s.step, s.offset, {DType::F32, {n}}, low, high));
  return on_reference(c);
}

double density(double x) {
  return std::exp(-0.5 * x * x) / std::sqrt(2 * 3.14159265358979323846);
}

}  // namespace

TEST_CASE("random_truncated_normal: bounds, mean and variance, in the tail too") {
  for (const Doubles& limits : {Doubles{-2, 2}, Doubles{-1, 3}, Doubles{4, 6}, Doubles{-7, -4}}) {
    const double low = limits[0], high = limits[1];
    CAPTURE(low);
    CAPTURE(high);
    const int n = 20000;
    Doubles x = truncated(low, high, n);
    double mean = 0, variance = 0;
    for (double v : x) {
      CHECK((v >= low && v <= high));
      mean += v / n;
    }
    for (double v : x) variance += (v - mean) * (v - mean) / n;
    // From the upper tails, which keep their digits on either side of 0 by symmetry.
    const double a = low < 0 && high < 0 ? -high : low, b = low < 0 && high < 0 ? -low : high;
    const double sign = a == low ? 1 : -1;
    const double mass = 0.5 * (std::erfc(a / std::sqrt(2.0)) - std::erfc(b / std::sqrt(2.0)));
    const double first = (density(a) - density(b)) / mass;
    const double second = 1 + (a * density(a) - b * density(b)) / mass - first * first;
    const double error = std::sqrt(second / n);
    CHECK(std::abs(mean - sign * first) < 4 * error);
    CHECK(variance == doctest::Approx(second).epsilon(0.05));
  }
}

TEST_CASE("random_truncated_normal: elements depend on step and place alone") {
  Doubles all = truncated(-2, 2, 40), late = truncated(-2, 2, 12, 3, 9);
  CHECK(std::equal(late.begin(), late.end(), all.begin() + 9));
  CHECK(truncated(-2, 2, 40, 4) != all);
  CHECK_THROWS_WITH_AS(truncated(2, 1, 4), doctest::Contains("low < high"), Error);
}

TEST_CASE("random_bernoulli: never, always, and the right share between") {
  Case c;
  const int n = 8000;
  Value p = c.input(Shape{4, 1}, {0, 1, 0.25, 0.9});
  Stream s(c);
  Value draw = random_bernoulli(broadcast_to(p, {4, n}), s.seed, s.step, s.offset);
  CHECK(draw.dtype() == DType::Bool);
  c.output(sum(cast(draw, DType::F32), {1}));
  Doubles counts = on_reference(c);
  CHECK(counts[0] == 0);
  CHECK(counts[1] == n);
  CHECK(std::abs(counts[2] - 0.25 * n) < 4 * std::sqrt(0.25 * 0.75 * n));
  CHECK(std::abs(counts[3] - 0.9 * n) < 4 * std::sqrt(0.9 * 0.1 * n));
}

TEST_CASE("random_permutation: each row every order alike") {
  Case c;
  const int rows = 6000;
  Stream s(c);
  c.output(random_permutation(s.seed, s.step, s.offset, {rows, 3}));
  Doubles y = on_reference(c);
  std::map<std::vector<double>, int> seen;
  for (int i = 0; i < rows; ++i) ++seen[{y.begin() + 3 * i, y.begin() + 3 * i + 3}];
  CHECK(seen.size() == 6);
  const Doubles sorted{0, 1, 2};
  for (const auto& entry : seen) {
    CHECK(std::is_permutation(sorted.begin(), sorted.end(), entry.first.begin()));
    CHECK(std::abs(entry.second - rows / 6) < 4 * std::sqrt(rows * 5.0 / 36));
  }
}

TEST_CASE("DR-06 draws are the same bits on every device") {
  Case c;
  Stream s(c);
  c.output(random_bernoulli(c.input(Shape{64}, Doubles(64, 0.5)), s.seed, s.step, s.offset));
  c.output(random_uniform(s.seed, s.step, s.offset, {DType::F32, {64}}));
  Doubles right = on_reference(c);
  Doubles uniform = Reference().run(c.graph, c.inputs)[1].to_doubles();
  c.run([&](auto results) {
    check_near(results[0], right, 0, 0);
    check_near(results[1], uniform, 0, 0);
  });
}

}  // namespace sinter::test
