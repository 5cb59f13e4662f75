// Single ops at the values where other compilers have gone wrong, on every executor.

#include <sinter/ir/numeric.h>
#include <sinter/ir/ops.h>
#include <sinter/tests/ops/case.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <limits>

namespace sinter::test {
namespace {

const DType kF = DType::F32;

}  // namespace

TEST_CASE("fanout_4x: y = x*x + x*x has dx = 4x") {
  Case c;
  Value x = c.input({3}, {1, -2, 0.5});
  c.output_with_gradients(x * x + x * x, {}, {x});
  c.run([](auto results) { check_near(results[1], {4, -8, 2}, 0, 0); });
}

TEST_CASE("mul(x,x): dx = 2x") {
  Case c;
  Value x = c.input({3}, {1, -2, 0.5});
  c.output_with_gradients(mul(x, x), {}, {x});
  c.run([](auto results) { check_near(results[1], {2, -4, 1}, 0, 0); });
}

TEST_CASE("rope_position_0: the identity in bits, forward and backward") {
  for (std::string form : {"half", "interleaved"})
    for (DType type : {DType::F32, DType::BF16, DType::F64}) {
      CAPTURE(form);
      CAPTURE(to_string(type));
      Case c;
      Doubles values{-0.0, 1.5, -2, 3e-20, kInf, 0, -kInf, 7};
      Value x = c.input({2, 1, 4}, values, type);
      Value dy = c.input({2, 1, 4}, values, type);
      Value offset = c.integers({}, {0});
      Value y = rope(x, offset, {.form = form});
      Graph& g = c.graph;
      c.output(y);
      Value loss = sum(cast(y * dy, DType::F32));
      c.output(gradients(g, loss, std::vector{x})[0]);
      c.run([&](auto results) {
        CHECK(results[0].same_bits(c.inputs[0]));
        CHECK(results[1].same_bits(c.inputs[1]));
      });
    }
}

TEST_CASE("AD-04 norm at zero and at tiny values") {
  for (bool squared : {false, true}) {
    Case c;
    Value x = c.input({3}, {0, 0, 0});
    Value n = norm(x);
    c.output_with_gradients(squared ? square(n) : n, {}, {x});
    c.run([](auto results) {
      check_near(results[0], {0}, 0, 0);
      check_near(results[1], {0, 0, 0}, 0, 0);
    });
  }
  Case c;
  Value x = c.input({2}, {3e-23, 4e-23});
  c.output_with_gradients(norm(x), {}, {x});
  c.run([](auto results) {
    check_near(results[0], {5e-23}, 1e-5, 0);
    check_near(results[1], {0.6, 0.8});
  });
  Case large;
  Value z = large.input({2}, {3e30, -4e30});
  large.output_with_gradients(norm(z), {}, {z});
  large.run([](auto results) {
    check_near(results[0], {5e30});
    check_near(results[1], {0.6, -0.8});
  });
}

TEST_CASE("AD-11 mean over axes that are not adjacent") {
  Case c;
  Value x = c.input(fill({kF, {2, 3, 4}}, 5));
  Value k = c.input({3}, {1, -2, 3});
  Value m = mean(x, {0, 2});
  c.output_with_gradients(k * m * m, {}, {x});
  c.output(m);
  c.run([](auto results) {
    check_near(results[2], {-0.3867188, 0.2578125, 0.390625});
    Doubles slopes{-0.09667969, -0.1289062, 0.2929688}, dx;
    for (int i = 0; i < 24; ++i) dx.push_back(slopes[static_cast<size_t>(i / 4 % 3)]);
    check_near(results[1], dx);
  });
}

TEST_CASE("AD-14 the gradient passes through layer_norm") {
  Case c;
  Value x = c.input(fill({kF, {4, 3}}, 7));
  Value w1 = c.input(fill({kF, {3, 5}}, 8)), w2 = c.input(fill({kF, {5, 2}}, 9));
  Value gamma = c.input({5}, Doubles(5, 1)), beta = c.input({5}, Doubles(5, 0));
  Value y = square(matmul(layer_norm(matmul(x, w1), gamma, beta, 1e-5), w2));
  c.output(sum(y));
  for (Value g : gradients(c.graph, sum(y), std::vector{w1, w2, gamma, beta})) c.output(g);
  c.run([](auto results) {
    check_near(results[0], {16.43297});
    auto row = [](const Tensor& t, size_t n) {
      Doubles v = t.to_doubles();
      v.resize(n);
      return Tensor::from_doubles({DType::F64, {static_cast<int64_t>(n)}}, v);
    };
    check_near(row(results[1], 5), {0.4638872, 16.42950, -7.404407, 1.262639, -10.75162}, 2e-5);
    CHECK(absolute_sum(results[1]) == doctest::Approx(81.00897).epsilon(1e-5));
    check_near(row(results[2], 2), {-5.135504, 3.713829});
    check_near(results[3], {1.809757, -1.067601, 1.179924, 11.42823, 19.51564}, 2e-5);
    check_near(results[4], {-2.658148, -2.724330, -2.019270, 0.09932346, 2.989158}, 2e-5);
  });
}

TEST_CASE("AD-17 logsumexp and softmax with minus infinity") {
  Case c;
  Value a = c.input({3}, {-kInf, -kInf, -kInf}), b = c.input({2}, {-kInf, 1});
  Value z = c.input({3}, {-kInf, 1, 1}), w = c.input({3}, {0.5, 1, 2});
  c.output_with_gradients(logsumexp(a), {}, {a});
  c.output_with_gradients(logsumexp(b), {}, {b});
  c.output_with_gradients(softmax(z), w, {z});
  // A row of -inf alone, as a mask leaves it.
  c.output_with_gradients(softmax(a), w, {a});
  c.output(log_softmax(a));
  c.run([](auto results) {
    check_near(results[0], {-kInf});
    check_near(results[1], {0, 0, 0}, 0, 0);
    check_near(results[2], {1});
    check_near(results[3], {0, 1}, 0, 0);
    check_near(results[4], {0, 0.5, 0.5});
    check_near(results[5], {0, -0.25, 0.25});
    check_near(results[6], {0, 0, 0}, 0, 0);
    check_near(results[7], {0, 0, 0}, 0, 0);
    check_near(results[8], {-kInf, -kInf, -kInf});
  });
}

TEST_CASE("NU-01 variance with a large mean") {
  Case c;
  Doubles values;
  for (int i = 0; i < 8; ++i) values.push_back(4096 + i / 256.0);
  Value x = c.input({8}, values);
  Value gamma = c.input({8}, Doubles(8, 1)), beta = c.input({8}, Doubles(8, 0));
  c.output(layer_norm(x, gamma, beta, 1e-5));
  c.run([](auto results) {
    check_near(results[0], {-1.440273, -1.028767, -0.6172599, -0.2057533, 0.2057533, 0.6172599,
                            1.028767, 1.440273});
  });
}

TEST_CASE("NU-03 sums of bf16 are kept in f32") {
  Case c;
  Value ones = c.input(Tensor::full({DType::BF16, {3000}}, 1));
  Value logits = c.input(Tensor::full({DType::BF16, {1024}}, 0.5));
  c.output(sum(ones));
  c.output(sum(cast(ones, kF)));
  c.output(mean(ones));
  c.output(softmax(logits));
  c.run([](auto results) {
    check_near(results[0], {3008}, 0, 0);
    check_near(results[1], {3000}, 0, 0);
    check_near(results[2], {1}, 0, 0);
    check_near(results[3], Doubles(1024, 0.0009765625), 0, 0);
  });
}

TEST_CASE("NU-10 softmax with large logits") {
  Case c;
  Value z = c.input({3}, {1000, 999, -1000}), w = c.input({3}, {0, 0, -1});
  c.output(softmax(z));
  c.output_with_gradients(log_softmax(z), w, {z});
  c.run([](auto results) {
    check_near(results[0], {0.7310586, 0.2689414, 0});
    check_near(results[1], {-0.3132617, -1.313262, -2000.313});
    check_near(results[2], {0.7310586, 0.2689414, -1});
  });
}

TEST_CASE("NU-12 rotary angles keep their digits in bf16") {
  // Width 4: frequencies 1 and base^(-1/2) = 0.01.
  Case c;
  Value x = c.input({1, 4}, {1, 1, 0, 0}, DType::BF16);
  Value y = c.input({1, 4}, {1, 0, 1, 0}, DType::BF16);
  Value offset = c.integers({}, {1001});
  c.output(rope(x, offset));
  c.output(rope(y, offset, {.form = "interleaved"}));
  c.run([](auto results) {
    auto bf16 = [](double v) { return round_to(DType::BF16, v); };
    double c0 = bf16(-0.3919404), s0 = bf16(0.9199906), c1 = bf16(-0.8335895),
           s1 = bf16(-0.5523845);
    check_near(results[0], {c0, c1, s0, s1}, 0, 0);
    check_near(results[1], {c0, s0, c1, s1}, 0, 0);
  });
}

TEST_CASE("AT-01 rows with every key masked") {
  Case c;
  Shape shape{1, 1, 3, 2};
  Value q = c.input(shape, {-0.125, 0.34375, 0.09375, -0.875, 0.46875, 1.09375});
  Value k = c.input(shape, {0, 0.53125, 0.34375, -0.5625, 0.84375, -1.5});
  Value v = c.input(shape, {0.125, 0.71875, 0.59375, -0.25, 1.21875, -1.0625});
  Value dy = c.input(shape, {0.25, 0.90625, 0.84375, 0.0625, -1.4375, -0.625});
  Value mask = c.input(Tensor::from(
      Shape{3, 3}, std::vector<bool>{true, false, true, false, false, false, true, true, true}));
  c.output_with_gradients(attention(q, k, v, mask), dy, {q, k, v});
  c.run([](auto results) {
    check_near(results[0], {0.5205295, 0.07460190, 0, 0, 0.4246441, 0.1745076});
    check_near(results[1], {-0.1846736, 0.4445845, 0, 0, -0.03293271, 0.07813640});
    check_near(results[2],
               {-0.01025898, 0.1151375, 0.002018061, 0.004708809, 0.008240922, -0.1198463});
    check_near(results[3], {-0.6590864, 0.2225779, -0.3937542, -0.1711975, -0.1346594, 0.2298696});
    for (size_t r : {0, 1})
      for (int64_t i : {2, 3}) CHECK(results[r].at(i) == 0);
  });
}

TEST_CASE("AT-03 causal with other numbers of queries than keys") {
  struct Trial3 {
    int64_t queries, keys;
    Doubles v, right;
  };
  for (const Trial3& t : {Trial3{3, 6, {1, 2, 4, 8, 16, 32}, {3.75, 6.2, 10.5}},
                          Trial3{6, 3, {1, 2, 4}, {0, 0, 0, 1, 1.5, 7.0 / 3}}}) {
    Case c;
    Value q = c.input(Tensor({kF, {1, 1, t.queries, 4}}));
    Value k = c.input(Tensor({kF, {1, 1, t.keys, 4}}));
    Value v = c.input({1, 1, t.keys, 1}, t.v);
    c.output_with_gradients(attention(q, k, v, {}, {.causal = true}), {}, {q, k, v});
    c.run([&](auto results) {
      check_near(results[0], t.right);
      for (size_t i = 1; i < 4; ++i)
        for (double g : results[i].to_doubles()) CHECK(std::isfinite(g));
    });
  }
}

TEST_CASE("AT-05 value width other than key width") {
  Case c;
  auto four = [](int64_t d) { return TensorType{kF, {1, 1, 4, d}}; };
  Value q = c.input(fill(four(5), 31)), k = c.input(fill(four(5), 32));
  Value v = c.input(fill(four(3), 33)), g = c.input(fill(four(3), 34));
  c.output_with_gradients(attention(q, k, v), g, {q, k, v});
  c.run([](auto results) {
    auto row = [](const Tensor& t, size_t n) {
      Doubles values = t.to_doubles();
      values.resize(n);
      return Tensor::from_doubles({DType::F64, {static_cast<int64_t>(n)}}, values);
    };
    check_near(row(results[0], 3), {-0.3486135, 1.007588, -0.6701649});
    check_near(row(results[1], 5), {0.2607280, -0.3289437, 0.09950745, 0.02561764, 0.003602420});
    check_near(row(results[2], 5), {-0.1672224, -0.3929472, 0.08313371, 0.1846199, 0.2326072});
    check_near(row(results[3], 3), {-0.04146931, -1.070503, -0.1701086});
    CHECK(absolute_sum(results[1]) == doctest::Approx(2.963273).epsilon(1e-5));
    CHECK(absolute_sum(results[2]) == doctest::Approx(2.904082).epsilon(1e-5));
    CHECK(absolute_sum(results[3]) == doctest::Approx(3.518954).epsilon(1e-5));
  });
}

TEST_CASE("CE-01 every target ignored") {
  Case c;
  Tensor logits = fill({kF, {3, 4}}, 41);
  logits.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();  // ignored with its row
  Value z = c.input(logits);
  Value t = c.integers({3}, {-100, -100, -100});
  auto loss = cross_entropy(z, t);
  c.output_with_gradients(loss.loss, {}, {z});
  c.output(loss.count);
  c.run([](auto results) {
    check_near(results[0], {0}, 0, 0);
    check_near(results[1], Doubles(12, 0), 0, 0);
    check_near(results[2], {0}, 0, 0);
  });
}

TEST_CASE("CE-03 target out of range") {
  for (int32_t bad : {4, -1})
    for (std::string reduction : {"mean", "sum", "none"}) {
      Case c;
      Value z = c.input(fill({kF, {2, 4}}, 1));
      Value t = c.integers({2}, {0, bad});
      c.output(cross_entropy(z, t, -100, reduction).loss);
      for (const Executor& executor : executors()) {
        std::string message;
        try {
          executor.run(c.graph, c.inputs);
        } catch (const Error& e) {
          message = e.what();
        }
        CAPTURE(executor.name);
        CAPTURE(message);
        auto says = [&](const std::string& part) {
          return message.find(part) != std::string::npos;
        };
        CHECK(says("cross_entropy"));
        CHECK(says("row 1"));
        CHECK(says(std::to_string(bad)));
        CHECK(says("0..3"));
        CHECK(says("cases_test.cpp"));
      }
    }
}

TEST_CASE("CE-08 an ignored class stays in the denominator") {
  Case c;
  Value z = c.input({1, 3}, {1, 1, 1});
  auto loss = cross_entropy(z, c.integers({1}, {1}), 0);
  c.output(loss.loss);
  c.run([](auto results) { check_near(results[0], {1.098612}); });
}

TEST_CASE("MP-01 AdamW, three exact steps") {
  Case c;
  Value p = c.input({3}, {1, -2, 0.5});
  Value m = c.input({3}, {0, 0, 0}), v = c.input({3}, {0, 0, 0}), lr = c.input({}, {0.01});
  const Doubles gradient[] = {{0.1, -0.2, 0}, {0.3, -0.1, 1e-4}, {-0.2, 0.05, -2}};
  for (int step = 0; step < 3; ++step) {
    Value g = c.input({3}, gradient[step]), t = c.integers({}, {step + 1});
    auto next = adamw(p, g, m, v, t, lr, {.weight_decay = 0.1});
    p = next.p, m = next.m, v = next.v;
    c.output(p);
  }
  c.output(m);
  c.output(v);
  c.run([](auto results) {
    check_near(results[0], {0.9890000, -1.988000, 0.4995000}, 1e-6, 0);
    check_near(results[1], {0.9788332, -1.976690, 0.4915602}, 1e-6, 0);
    check_near(results[2], {0.9752753, -1.969077, 0.4974565}, 1e-6, 0);
    check_near(results[3], {0.01510000, -0.02020000, -0.1999910}, 1e-6, 0);
    check_near(results[4], {1.398900e-4, 5.241004e-5, 0.004000000}, 1e-6, 0);
  });
}

TEST_CASE("MP-02 step count and learning rate are values") {
  for (bool growing : {false, true}) {
    Case c;
    Value p = c.input({1}, {1});
    Value m = c.input({1}, {0}), v = c.input({1}, {0}), g = c.input({1}, {1});
    Value t = c.integers({}, {1}), lr = c.input({}, {0.001});
    auto next = adamw(p, g, m, v, t, lr);
    for (Value y : {next.p, next.m, next.v}) c.output(y);
    for (const Executor& executor : executors()) {
      std::vector<Tensor> state = c.inputs;
      for (int step = 1; step <= 10; ++step) {
        state[4] = Tensor::scalar<int32_t>(step);
        if (growing) state[5] = Tensor::scalar<float>(0.001F * static_cast<float>(step));
        auto results = executor.run(c.graph, state);
        for (size_t i = 0; i < 3; ++i) state[i] = results[i];
      }
      CAPTURE(executor.name);
      check_near(state[0], {growing ? 0.9450000 : 0.9900000}, 1e-6, 0);
    }
  }
}

TEST_CASE("f64 reference: constants keep their digits and narrow casts are identities") {
  Case c;
  Value x = c.input({1}, {1});
  c.output(cast(cast(x * 0.1, DType::BF16), kF));
  auto narrow = Reference().run(c.graph, c.inputs);
  auto wide = Reference({.f64 = true}).run(c.graph, c.inputs);
  CHECK(narrow[0].at(0) == round_to(DType::BF16, 0.1));
  CHECK(wide[0].dtype() == DType::F64);
  CHECK(wide[0].at(0) == 0.1);
}

TEST_CASE("the reference refuses inputs of another number or type") {
  Case c;
  Value x = c.input({2}, {1, 2});
  c.output(x + 1);
  std::vector<Tensor> none, other{Tensor({DType::I32, {2}})};
  CHECK_THROWS_WITH_AS(Reference().run(c.graph, none), doctest::Contains("takes 1 inputs, got 0"),
                       Error);
  CHECK_THROWS_WITH_AS(Reference().run(c.graph, other), doctest::Contains("x0"), Error);
  CHECK_THROWS_WITH_AS(Reference().run(c.graph, other), doctest::Contains("i32[2]"), Error);
}

TEST_CASE("the reference runs called graphs, nested ones too") {
  Case c;
  Graph& inner = c.module.add_graph("inner");
  Value a = inner.add_input("a", {kF, {2}});
  inner.add_output("", a * a);
  Graph& outer = c.module.add_graph("outer");
  Value b = outer.add_input("b", {kF, {2}});
  outer.add_output("", fusion(outer, inner, {b}).result() + 1);
  outer.add_output("", b);
  Value x = c.input({2}, {3, -4});
  Op& call = fusion(c.graph, outer, {x});
  c.output(call.result(0));
  c.output(call.result(1));
  auto results = Reference().run(c.graph, c.inputs);
  check_near(results[0], {10, 17}, 0, 0);
  check_near(results[1], {3, -4}, 0, 0);
  CHECK_THROWS_WITH_AS(fusion(c.graph, outer, {c.input({3}, {1, 2, 3})}),
                       doctest::Contains("fusion: input b of @outer is f32[2], got"), Error);
}

}  // namespace sinter::test
