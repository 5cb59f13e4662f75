#include <sinter/runtime/gemm.h>

#include <doctest/doctest.h>
#include <sinter/runtime/tensor.h>
#include <sinter/runtime/thread_pool.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

using namespace sinter;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double element(const GemmMatrix& x, int64_t batch, int64_t row, int64_t column) {
  if (x.transposed) std::swap(row, column);
  return load_as_double(x.dtype, x.data, batch * x.batch_stride + row * x.row_stride + column);
}

// The product in f64, one element at a time.
double expected(const Gemm& g, int64_t batch, int64_t i, int64_t j) {
  double sum = g.d.data ? element(g.d, batch, i, j) : 0;
  for (int64_t k = 0; k < g.k; ++k)
    sum += round_to(g.compute, element(g.a, batch, i, k)) *
           round_to(g.compute, element(g.b, batch, k, j));
  return sum;
}

// The largest difference from the expected product, relative to the result's rounding step.
double worst(const Gemm& g, double tolerance) {
  double result = 0;
  for (int64_t batch = 0; batch < g.batch; ++batch)
    for (int64_t i = 0; i < g.m; ++i)
      for (int64_t j = 0; j < g.n; ++j) {
        const double want = expected(g, batch, i, j);
        const double got =
            load_as_double(g.c_dtype, g.c, batch * g.c_batch_stride + i * g.c_row_stride + j);
        const double error = std::abs(got - want) / (tolerance * (1 + std::abs(want)));
        if (!(error <= result)) result = error;  // NaN counts
        if (std::isnan(error)) return error;
      }
  return result;
}

Tensor product(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, const Tensor& a,
               const Tensor& b, bool ta, bool tb, ThreadPool& pool) {
  Tensor c = Tensor::full({dtype, {batch, m, n}}, 77);
  gemm(dense_gemm(batch, m, n, k, dtype, a.data(), ta, b.data(), tb, c.data()), pool);
  return c;
}

}  // namespace

TEST_CASE("SH-05: sizes that are not tile multiples") {
  ThreadPool pool(2);
  const Tensor a = fill({DType::F32, {17, 33}}, 61), b = fill({DType::F32, {33, 19}}, 62);
  const Tensor c = product(1, 17, 19, 33, DType::F32, a, b, false, false, pool);
  double sum = 0, magnitude = 0;
  for (double v : c.to_doubles()) sum += v, magnitude += std::abs(v);
  CHECK(c.at(0) == doctest::Approx(0.9609375));
  CHECK(c.at(c.size() - 1) == doctest::Approx(-1.139648).epsilon(1e-6));
  CHECK(sum == doctest::Approx(100.9824).epsilon(1e-6));
  CHECK(magnitude == doctest::Approx(1089.701).epsilon(1e-6));
  const Tensor d = product(1, 129, 65, 1001, DType::F32, fill({DType::F32, {129, 1001}}, 63),
                           fill({DType::F32, {1001, 65}}, 64), false, false, pool);
  CHECK(d.at(d.size() - 1) == doctest::Approx(22.16406).epsilon(1e-6));
}

TEST_CASE("SH-05: strided operands between NaN, all transpositions, nothing else written") {
  ThreadPool pool(3);
  for (int64_t m : {1, 2, 17, 65, 129})
    for (int64_t n : {1, 16, 33, 130})
      for (int64_t k : {1, 15, 63, 200})
        for (int mask = 0; mask < 4; ++mask) {
          Gemm g;
          g.batch = 2;
          g.m = m;
          g.n = n;
          g.k = k;
          g.a.transposed = mask & 1;
          g.b.transposed = mask & 2;
          // Every matrix lies inside a larger one that is all NaN.
          auto place = [](GemmMatrix& x, int64_t rows, int64_t columns, int64_t s) {
            const int64_t stride = columns + 3;
            Tensor t = Tensor::full({DType::F32, {2, rows + 1, stride}}, kNaN);
            const Tensor values = fill({DType::F32, {2, rows, columns}}, s);
            for (int64_t b = 0; b < 2; ++b)
              for (int64_t i = 0; i < rows; ++i)
                for (int64_t j = 0; j < columns; ++j)
                  t.as<float>()[(b * (rows + 1) + i) * stride + j + 1] =
                      static_cast<float>(values.at((b * rows + i) * columns + j));
            x.data = t.as<float>() + 1;
            x.row_stride = stride;
            x.batch_stride = (rows + 1) * stride;
            return t;
          };
          const Tensor a = place(g.a, mask & 1 ? k : m, mask & 1 ? m : k, 61);
          const Tensor b = place(g.b, mask & 2 ? n : k, mask & 2 ? k : n, 62);
          GemmMatrix c;
          Tensor storage = place(c, m, n, 63);
          Tensor before = storage.clone();
          for (int64_t batch = 0; batch < 2; ++batch)
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j)
                storage.as<float>()[1 + batch * c.batch_stride + i * c.row_stride + j] = NAN;
          g.c = storage.as<float>() + 1;
          g.c_row_stride = c.row_stride;
          g.c_batch_stride = c.batch_stride;
          gemm(g, pool);
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(mask);
          REQUIRE(worst(g, 1e-5) <= 1);
          // Accumulated a second time, over D = what C held at first.
          g.d = {before.as<float>() + 1, DType::F32, c.row_stride, c.batch_stride, false};
          gemm(g, pool);
          REQUIRE(worst(g, 1e-5) <= 1);
          for (int64_t i = 0; i < storage.size(); ++i)
            if (std::isnan(before.at(i))) REQUIRE(std::isnan(storage.at(i)));
        }
}

TEST_CASE("MP-10: bf16 matmul accumulates in f32") {
  ThreadPool pool(2);
  std::vector<double> values(257, 1.0);
  values[0] = 256;
  for (DType type : {DType::BF16, DType::F16}) {
    const Tensor a = Tensor::from_doubles({type, {1, 257}}, values);
    const Tensor b = Tensor::full({type, {257, 1}}, 1);
    CHECK(product(1, 1, 1, 257, type, a, b, false, false, pool).at(0) == 512);
  }
}

TEST_CASE("operands are rounded on reading, the result once") {
  ThreadPool pool(2);
  // f32 operands in a bf16 product with an f32 result.
  const Tensor a = Tensor::from<float>({1, 2}, {1 + 0x1p-9f, 1 + 0x1.8p-8f});
  const Tensor b = Tensor::from<float>({2, 1}, {1, 1});
  Tensor c({DType::F32, {1, 1}});
  Gemm g = dense_gemm(1, 1, 1, 2, DType::F32, a.data(), false, b.data(), false, c.data());
  g.compute = DType::BF16;
  gemm(g, pool);
  CHECK(c.at(0) == 1 + (1 + 0x1p-7));
  // A bf16 result of an f32 sum: 1 + 2^-8 + 2^-16 is above the midpoint, so it rounds up once.
  const Tensor x = Tensor::from<float>({1, 3}, {1, 0x1p-8f, 0x1p-16f});
  const Tensor ones = Tensor::from<float>({3, 1}, {1, 1, 1});
  Tensor r({DType::BF16, {1, 1}});
  g = dense_gemm(1, 1, 1, 3, DType::F32, x.data(), false, ones.data(), false, r.data());
  g.c_dtype = DType::BF16;
  gemm(g, pool);
  CHECK(r.at(0) == 1 + 0x1p-7);
  // With an addend, which takes part before the rounding.
  const Tensor d = Tensor::from_doubles({DType::BF16, {1, 1}}, {0x1p-7});
  g.d = {d.data(), DType::BF16, 1, 1, false};
  gemm(g, pool);
  CHECK(r.at(0) == 1 + 0x1p-6);
  // Mixed: bf16 activations, f32 weights, both used as f32.
  const Tensor h = fill({DType::BF16, {5, 7}}, 1), w = fill({DType::F32, {7, 3}}, 2);
  Tensor y({DType::F32, {5, 3}});
  g = dense_gemm(1, 5, 3, 7, DType::F32, h.data(), false, w.data(), false, y.data());
  g.a.dtype = DType::BF16;
  gemm(g, pool);
  CHECK(worst(g, 1e-6) <= 1);
}

TEST_CASE("every type, batches, shared operands") {
  ThreadPool pool(3);
  for (DType type :
       {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U32})
    for (int64_t batch : {1, 2, 5})
      for (bool ta : {false, true})
        for (bool tb : {false, true}) {
          const int64_t m = 50, n = 20, k = 36;
          auto make = [&](Shape shape, int64_t s) {
            return is_float(type) ? fill({type, shape}, s) : fill_mod({type, shape}, s, 50);
          };
          const Tensor a = make({batch, m, k}, 1), b = make({k, n}, 2);
          Tensor c = Tensor::full({type, {batch, m, n}}, 3);
          Gemm g = dense_gemm(batch, m, n, k, type, a.data(), ta, b.data(), tb, c.data());
          g.b.batch_stride = 0;
          gemm(g, pool);
          CAPTURE(to_string(type));
          CAPTURE(batch);
          const double tolerance = type == DType::BF16  ? 0x1p-8
                                   : type == DType::F16 ? 0x1p-11
                                   : type == DType::F64 ? 1e-14
                                                        : 1e-6;
          REQUIRE(worst(g, tolerance) <= 1);
          // In place: C += A·B, checked against a copy of what C held.
          const Tensor before = c.clone();
          g.d = {c.data(), type, n, m * n, false};
          gemm(g, pool);
          g.d.data = before.data();
          REQUIRE(worst(g, tolerance) <= 1);
        }
}

TEST_CASE("integer products wrap") {
  ThreadPool pool(1);
  const Tensor a = Tensor::from<int32_t>({1, 2}, {1 << 30, 7}),
               b = Tensor::from<int32_t>({2, 1}, {4, 1});
  CHECK(product(1, 1, 1, 2, DType::I32, a, b, false, false, pool).at(0) == 7);
}

TEST_CASE("extents of zero") {
  ThreadPool pool(2);
  const Tensor none({DType::F32, {0}});
  for (DType type : {DType::F32, DType::F64, DType::BF16, DType::I32}) {
    const Tensor c = product(2, 3, 4, 0, type, none, none, false, true, pool);
    for (double v : c.to_doubles()) CHECK(v == 0);
    Tensor d = Tensor::full({type, {2, 3, 4}}, 5);
    Gemm g = dense_gemm(2, 3, 4, 0, type, none.data(), false, none.data(), false, d.data());
    g.d = {d.data(), type, 4, 12, false};
    gemm(g, pool);
    for (double v : d.to_doubles()) CHECK(v == 5);
    gemm(dense_gemm(0, 3, 4, 5, type, nullptr, false, nullptr, false, nullptr), pool);
    gemm(dense_gemm(1, 0, 4, 5, type, nullptr, false, nullptr, false, nullptr), pool);
    gemm(dense_gemm(1, 3, 0, 5, type, nullptr, false, nullptr, false, nullptr), pool);
  }
}

TEST_CASE("rows that overlap: a row stride of 0") {
  ThreadPool pool(2);
  const Tensor row = fill({DType::F32, {8}}, 1), b = fill({DType::F32, {8, 3}}, 2);
  Tensor c({DType::F32, {4, 3}});
  Gemm g = dense_gemm(1, 4, 3, 8, DType::F32, row.data(), false, b.data(), false, c.data());
  g.a.row_stride = 0;
  gemm(g, pool);
  CHECK(worst(g, 1e-6) <= 1);
}

TEST_CASE("results repeat in bits and do not depend on strides") {
  ThreadPool pool(2);
  for (auto [m, n, k] : {std::array<int64_t, 3>{300, 70, 257}, {1, 1000, 384}, {70, 300, 33}}) {
    const Tensor a = fill({DType::F32, {m, k}}, 1), b = fill({DType::F32, {k, n}}, 2);
    const Tensor first = product(1, m, n, k, DType::F32, a, b, false, false, pool);
    for (int round = 0; round < 3; ++round)
      CHECK(product(1, m, n, k, DType::F32, a, b, false, false, pool).same_bits(first));
    // A as part of a wider buffer, shifted by one element.
    Tensor wide = Tensor::full({DType::F32, {m, k + 5}}, kNaN);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < k; ++j)
        wide.as<float>()[i * (k + 5) + j + 1] = a.as<float>()[i * k + j];
    Tensor c({DType::F32, {1, m, n}});
    Gemm g =
        dense_gemm(1, m, n, k, DType::F32, wide.as<float>() + 1, false, b.data(), false, c.data());
    g.a.row_stride = k + 5;
    gemm(g, pool);
    CHECK(c.same_bits(first));
  }
}

TEST_CASE("products from several threads at once") {
  ThreadPool pool(2);
  const Tensor a = fill({DType::F32, {120, 90}}, 1), b = fill({DType::F32, {90, 60}}, 2);
  const Tensor want = product(1, 120, 60, 90, DType::F32, a, b, false, false, pool);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round)
        equal[t] += product(1, 120, 60, 90, DType::F32, a, b, false, false, pool).same_bits(want);
    });
  for (auto& thread : threads) thread.join();
  for (int count : equal) CHECK(count == 50);
}
