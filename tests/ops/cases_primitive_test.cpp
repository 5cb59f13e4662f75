// Primitive ops at the values where other compilers have gone wrong, on every executor.

#include <sinter/ir/numeric.h>
#include <sinter/tests/ops/case.h>

#include <bit>

namespace sinter::test {
namespace {

const DType kF = DType::F32;

}  // namespace

TEST_CASE("AD-01 invalid value on the side of where that was not chosen") {
  Case c;
  Value x = c.input({4}, {-2.25, 0, 4, 9});
  Value y = where(gt(x, 1), sqrt(x), 0.5 * x);
  c.output_with_gradients(y, {}, {x});
  c.output(sum(y));
  c.run([](auto results) {
    check_near(results[1], {0.5, 0.5, 0.25, 0.1666667});
    check_near(results[2], {3.875});
  });
}

TEST_CASE("AD-03 overflow hidden by where") {
  Case c;
  Value x = c.input({2}, {100, -1});
  Value y = where(le(x, 0), exp(x), 1 + x);
  c.output_with_gradients(y, {}, {x});
  c.output(sum(y));
  c.run([](auto results) {
    check_near(results[1], {1, 0.3678794});
    check_near(results[2], {101.3678794});
  });
}

TEST_CASE("AD-06 ties in max, and max of a tensor with itself") {
  Case c;
  Value x = c.input({5}, {3, 7, 7, 7, -1});
  Value a = c.input({1}, {2}), b = c.input({1}, {2}), zero = c.input({1}, {0});
  c.output_with_gradients(4 * max(x), {}, {x});
  c.output_with_gradients(3 * maximum(a, b), {}, {a, b});
  c.output_with_gradients(3 * maximum(a, a), {}, {a});
  c.output_with_gradients(relu(zero), {}, {zero});
  c.run([](auto results) {
    check_near(results[1], {0, 4.0 / 3, 4.0 / 3, 4.0 / 3, 0});
    CHECK(results[3].at(0) + results[4].at(0) == 3);
    check_near(results[6], {3}, 0, 0);
    check_near(results[8], {0}, 0, 0);
  });
}

TEST_CASE("AD-08 repeated tokens in an embedding") {
  Case c;
  Value table = c.input(fill({kF, {4, 2}}, 1));
  Value ids = c.integers({5}, {2, 0, 2, 2, 1});
  Value g = c.input(fill({kF, {5, 2}}, 3));
  c.output_with_gradients(embedding(table, ids), g, {table});
  c.run([](auto results) {
    check_near(results[1], {1.125, -0.34375, -0.28125, 0, -0.59375, -1.8125, 0, 0}, 0, 0);
  });
}

TEST_CASE("AD-10 gradients of broadcast operands") {
  Case c;
  Value a = c.input(fill({kF, {3, 1}}, 1)), b = c.input(fill({kF, {1, 4}}, 2));
  Value d = c.input(fill({kF, {2, 1, 1}}, 3)), w = c.input(fill({kF, {2, 3, 4}}, 4));
  Value y = w * (a * b + d);
  c.output(sum(y));
  for (Value g : gradients(c.graph, sum(y), std::vector{a, b, d})) c.output(g);
  c.run([](auto results) {
    check_near(results[0], {-11.84973});
    check_near(results[1], {2.741211, -3.149414, 0.2109375});
    check_near(results[2], {3.703125, 0.4140625, -3.574219, 0.07421875});
    check_near(results[3], {1.6875, 1.375});
  });
}

TEST_CASE("AD-12 two equal contributions, none lost") {
  Case c;
  Value x = c.input({3}, {1, -2, 3});
  Value y = abs(x) + abs(x) + x * x;
  c.output(sum(y));
  c.output(gradients(c.graph, sum(y), std::vector{x})[0]);
  c.run([](auto results) {
    check_near(results[0], {26});
    check_near(results[1], {4, -6, 8});
  });
}

TEST_CASE("AD-16 sigmoid, silu and softplus far from zero") {
  Case c;
  Value x = c.input({6}, {-120, -89, -20, 0, 20, 120});
  for (Value y : {sigmoid(x), silu(x), softplus(x)}) c.output_with_gradients(y, {}, {x});
  c.run([](auto results) {
    check_near(results[1], {0, 0, 2.061154e-9, 0.25, 2.061154e-9, 0}, 1e-5, 1e-30);
    check_near(results[2], {0, -1.982354e-37, -4.122307e-8, 0, 20, 120}, 1e-5, 2e-37);
    check_near(results[3], {0, 0, -3.916192e-8, 0.5, 1, 1}, 1e-5, 1e-30);
    check_near(results[4], {0, 0, 2.061154e-9, 0.6931472, 20, 120}, 1e-5, 1e-30);
    for (const Tensor& t : results)
      for (double v : t.to_doubles()) CHECK(std::isfinite(v));
  });
}

TEST_CASE("AD-21 very deep graphs on a small stack") {
  // Building, differentiating, running and destroying, in 512 KiB.
  on_small_stack([] {
    Case c;
    Value x = c.input({1}, {1});
    Value y = x;
    for (int i = 0; i < 20480; ++i) y = y + 0x1p-10;
    c.output_with_gradients(y, {}, {x});
    c.run([](auto results) {
      check_near(results[0], {21}, 0, 0);
      check_near(results[1], {1}, 0, 0);
    });
  });
}

TEST_CASE("NU-05 NaN survives relu, max and clamp") {
  Case c;
  Value x = c.input({3}, {kNaN, -1, 2}), nan = c.input({1}, {kNaN}), one = c.input({1}, {1});
  Value m = c.input({3}, {1, kNaN, 2});
  c.output(relu(x));
  for (Value y : {maximum(nan, one), maximum(one, nan), minimum(nan, one), minimum(one, nan),
                  clamp(nan, 0, 1), max(m), min(m)})
    c.output(y);
  c.run([](auto results) {
    check_near(results[0], {kNaN, 0, 2}, 0, 0);
    for (size_t i = 1; i < results.size(); ++i) CHECK(std::isnan(results[i].at(0)));
  });
}

TEST_CASE("NU-07 constants keep their bits") {
  Case c;
  const std::pair<double, uint32_t> floats[] = {
      {-kInf, 0xFF800000}, {kInf, 0x7F800000}, {-3.4028234663852886e38, 0xFF7FFFFF},
      {-0.0, 0x80000000},  {0x1p-149, 1},      {0.1, 0x3DCCCCCD},
      {1e-5, 0x3727C5AC},  {1.0, 0x3F800000}};
  for (const auto& [value, bits] : floats) c.output(full(c.graph, {kF, {4}}, value));
  c.output(full(c.graph, {kF, {4}}, kNaN));
  c.output(full(c.graph, {DType::I32, {4}}, int64_t{16777217}));
  c.output(full(c.graph, {DType::I64, {4}}, std::numeric_limits<int64_t>::min()));
  c.run([&](auto results) {
    for (size_t i = 0; i < std::size(floats); ++i) {
      CAPTURE(floats[i].first);
      for (float v : results[i].template to_vector<float>())
        CHECK(std::bit_cast<uint32_t>(v) == floats[i].second);
    }
    size_t n = std::size(floats);
    for (float v : results[n].template to_vector<float>()) CHECK(std::isnan(v));
    for (int32_t v : results[n + 1].template to_vector<int32_t>()) CHECK(v == 16777217);
    for (int64_t v : results[n + 2].template to_vector<int64_t>())
      CHECK(v == std::numeric_limits<int64_t>::min());
  });
}

TEST_CASE("SH-05 sizes that are not tile multiples") {
  for (const auto& size : {std::array<int64_t, 4>{17, 33, 19, 61}, {129, 1001, 65, 63}}) {
    const int64_t m = size[0], k = size[1], n = size[2], s = size[3];
    Case c;
    Value a = c.input(fill({kF, {m, k}}, s)), b = c.input(fill({kF, {k, n}}, s + 1));
    Value y = matmul(a, b);
    c.output_with_gradients(y, {}, {a, b});
    c.run([&](auto results) {
      double total = 0, last = results[0].at(m * n - 1);
      for (double v : results[0].to_doubles()) total += v;
      if (m == 17) {
        CHECK(results[0].at(0) == doctest::Approx(0.9609375));
        CHECK(last == doctest::Approx(-1.139648));
        CHECK(total == doctest::Approx(100.9824));
        CHECK(absolute_sum(results[0]) == doctest::Approx(1089.701));
        CHECK(results[1].at(m * k - 1) == doctest::Approx(3.46875));
        CHECK(results[2].at(k * n - 1) == doctest::Approx(5));
      } else {
        CHECK(last == doctest::Approx(22.16406));
        CHECK(absolute_sum(results[0]) == doctest::Approx(600552.5));
      }
    });
  }
}

TEST_CASE("SH-06 transposed operand with the same shape") {
  Case c;
  Value a = c.input({2, 2}, {1, 2, 3, 4}), b = c.input({2, 2}, {5, 6, 7, 8});
  Value d = c.input({2, 2}, {9, 10, 11, 12}), w = c.input({2, 2}, {1, 2, 3, 5});
  Value r = transpose(a + b) + (d + b);
  c.output_with_gradients(r, w, {a, b});
  c.output(sum(r * w));
  c.run([](auto results) {
    check_near(results[0], {20, 26, 26, 32}, 0, 0);
    check_near(results[1], {1, 3, 2, 5}, 0, 0);
    check_near(results[2], {2, 5, 5, 10}, 0, 0);
    check_near(results[3], {310}, 0, 0);
  });
}

TEST_CASE("SH-08 an output listed twice, and views of a value still alive") {
  Case c;
  Value x = c.input({3}, {1, 2, 3});
  Value a = x + 1, b = a * 2, sum_ab = b + a, d = reshape(a, {3, 1});
  for (Value y : {a, b, sum_ab, d, a}) c.output(y);
  for (int repeat = 0; repeat < 2; ++repeat)
    c.run([](auto results) {
      check_near(results[0], {2, 3, 4}, 0, 0);
      check_near(results[1], {4, 6, 8}, 0, 0);
      check_near(results[2], {6, 9, 12}, 0, 0);
      check_near(results[3], {2, 3, 4}, 0, 0);
      check_near(results[4], {2, 3, 4}, 0, 0);
    });
}

TEST_CASE("SH-11 expanded operand of a product") {
  Case c;
  Value x = c.input({1, 2}, {1, 2}), w = c.input({2, 2}, {1, 2, 3, 4});
  Value eye = c.input({2, 2}, {1, 0, 0, 1});
  Value y = matmul(broadcast_to(x, {2, 2}), w);
  c.output_with_gradients(y, eye, {x, w});
  c.output(sum(y * eye));
  c.run([](auto results) {
    check_near(results[1], {3, 7}, 0, 0);
    check_near(results[2], {1, 1, 2, 2}, 0, 0);
    check_near(results[3], {17}, 0, 0);
  });
}

TEST_CASE("MP-10 bf16 matmul accumulates in f32") {
  Case c;
  Doubles row(257, 1);
  row[0] = 256;
  Value a = c.input({1, 257}, row, DType::BF16),
        b = c.input({257, 1}, Doubles(257, 1), DType::BF16);
  c.output(matmul(a, b));
  c.run([](auto results) { check_near(results[0], {512}, 0, 0); });
}

// ---- Dropout

struct Randomness {
  explicit Randomness(Case& c)
      : seed(c.input(Tensor::from(Shape{2}, {uint32_t{1}, uint32_t{2}}))),
        step(c.input(Tensor::scalar<uint32_t>(3))),
        offset(c.input(Tensor::scalar<int64_t>(0))) {}
  Value seed, step, offset;
};

TEST_CASE("DR-01 dropout with p = 0 and p = 1") {
  Case c;
  Randomness r(c);
  Value x = c.input({4}, {1, -2, 3, kInf}), z = c.input({3}, {1, -2, 3});
  c.output_with_gradients(dropout(x, r.seed, r.step, r.offset, 0), {}, {x});
  c.output_with_gradients(dropout(z, r.seed, r.step, r.offset, 1), {}, {z});
  CHECK_THROWS_AS(dropout(x, r.seed, r.step, r.offset, 1.5), Error);
  CHECK_THROWS_AS(dropout(x, r.seed, r.step, r.offset, -0.1), Error);
  c.run([&](auto results) {
    CHECK(results[0].same_bits(c.inputs[3]));
    check_near(results[1], {1, 1, 1, 1}, 0, 0);
    check_near(results[2], {0, 0, 0}, 0, 0);
    check_near(results[3], {0, 0, 0}, 0, 0);
  });
}

TEST_CASE("DR-02 the same mask forward and backward") {
  Case c;
  Randomness r(c);
  Value x = c.input(Tensor::full({kF, {8, 64, 129}}, 1));
  Value y = dropout(transpose(x), r.seed, r.step, r.offset, 0.5);
  c.output_with_gradients(transpose(y), {}, {x});
  c.run([](auto results) {
    CHECK(results[0].same_bits(results[1]));
    double total = 0;
    for (double v : results[0].to_doubles()) {
      total += v;
      CHECK_UNARY(v == 0 || v == 2);
    }
    CHECK(total / static_cast<double>(results[0].size()) == doctest::Approx(1).epsilon(0.02));
  });
}

TEST_CASE("DR-03 a new mask every step, the same sequence for the same seed") {
  Case c;
  Randomness r(c);
  Value x = c.input(Tensor::full({kF, {256}}, 1));
  c.output(dropout(x, r.seed, r.step, r.offset, 0.5));
  for (const Executor& executor : executors()) {
    CAPTURE(executor.name);
    std::vector<Tensor> masks;
    for (uint32_t seed : {1U, 1U, 9U})
      for (uint32_t step = 1; step <= 3; ++step) {
        std::vector<Tensor> inputs = c.inputs;
        inputs[0] = Tensor::from(Shape{2}, {seed, uint32_t{2}});
        inputs[1] = Tensor::scalar<uint32_t>(step);
        masks.push_back(executor.run(c.graph, inputs)[0]);
      }
    for (size_t i = 0; i < 3; ++i) {
      CHECK(masks[i].same_bits(masks[i + 3]));
      CHECK(!masks[i].same_bits(masks[i + 6]));
      for (size_t k = 0; k < i; ++k) CHECK(!masks[i].same_bits(masks[k]));
    }
  }
}

}  // namespace sinter::test
