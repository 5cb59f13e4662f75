// Attention's options, each against a form that says the same in other words, on every executor.

#include <sinter/ir/ops/attention.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/random.h>
#include <sinter/tests/ops/case.h>

#include <functional>

namespace sinter::test {
namespace {

struct Shapes {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 5, keys = 7, width = 3, value_width = 2;
};

// Outputs of attention and gradients of all float operands, asked for in two ways; the results must
// agree within rounding.
struct Twice {
  Case c;
  AttentionOperands in;
  Value weight;
  explicit Twice(Shapes s = {}) {
    auto four = [](int64_t b, int64_t h, int64_t n, int64_t d) {
      return TensorType{DType::F32, {b, h, n, d}};
    };
    in.q = c.input(fill(four(s.batch, s.heads, s.queries, s.width), 31));
    in.k = c.input(fill(four(s.batch, s.kv_heads, s.keys, s.width), 32));
    in.v = c.input(fill(four(s.batch, s.kv_heads, s.keys, s.value_width), 33));
    weight = c.input(fill(four(s.batch, s.heads, s.queries, s.value_width), 34));
  }
  void output(Value y, std::vector<Value> extra = {}) {
    std::vector<Value> wrt{in.q, in.k, in.v};
    wrt.insert(wrt.end(), extra.begin(), extra.end());
    c.output_with_gradients(y, weight, wrt);
  }
  void check() {
    c.run([](auto results) {
      size_t half = results.size() / 2;
      REQUIRE(results.size() == 2 * half);
      for (size_t i = 0; i < half; ++i) {
        CAPTURE(i);
        check_near(results[i], results[half + i].to_doubles(), 2e-5, 2e-6);
      }
    });
  }
  // [queries, keys] as the function of query and key says.
  Value mask(Shapes s, const std::function<bool(int64_t, int64_t)>& sees) {
    std::vector<bool> cells;
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t j = 0; j < s.keys; ++j) cells.push_back(sees(i, j));
    return c.input(Tensor::from(Shape{s.queries, s.keys}, cells));
  }
};

// softmax(scores) v in single ops, without masks; key heads repeated in place of grouped.
Value by_hand(Twice& t, const std::function<Value(Value)>& change_scores,
              const std::function<Value(Value)>& change_p = {}) {
  int64_t groups = t.in.q.dim(1) / t.in.k.dim(1);
  auto repeat = [&](Value x) {
    Shape s = x.shape();
    Value wide =
        broadcast_to(reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], groups, s[2], s[3]});
    return reshape(wide, {s[0], s[1] * groups, s[2], s[3]});
  };
  double scale = 1 / std::sqrt(static_cast<double>(t.in.q.dim(3)));
  Value scores = matmul(t.in.q, repeat(t.in.k), false, true) * scale;
  Value p = softmax(change_scores(scores), 3);
  if (change_p) p = change_p(p);
  return matmul(p, repeat(t.in.v));
}

}  // namespace

TEST_CASE("attention: a window is a mask") {
  for (bool causal : {true, false})
    for (int64_t window : {1, 3, 100}) {
      Shapes s;
      Twice t(s);
      t.output(attention(t.in, {.causal = causal, .window = window}).y);
      t.in.mask = t.mask(s, [&](int64_t i, int64_t j) {
        int64_t distance = i + s.keys - s.queries - j;
        return distance < window && (causal ? distance >= 0 : -distance < window);
      });
      t.output(attention(t.in).y);
      t.check();
    }
}

TEST_CASE("attention: lengths of sequences are masks, and causal counts from their ends") {
  for (bool causal : {false, true}) {
    Shapes s;
    Twice t(s);
    t.in.kv_length = t.c.integers({2}, {7, 4});
    t.output(attention(t.in, {.causal = causal}).y);
    std::vector<bool> cells;
    for (int64_t length : {7, 4})
      for (int64_t i = 0; i < s.queries; ++i)
        for (int64_t j = 0; j < s.keys; ++j)
          cells.push_back(j < length && (!causal || j <= i + length - s.queries));
    t.in.kv_length = {};
    t.in.mask = t.c.input(Tensor::from(Shape{2, 1, s.queries, s.keys}, cells));
    t.output(attention(t.in).y);
    t.check();
  }
}

TEST_CASE("attention: packed documents are a mask, and what is in none sees nothing") {
  for (bool causal : {false, true}) {
    Shapes s{.queries = 6, .keys = 6};
    Twice t(s);
    // Of 2, 0 and 3 places, with one behind them; the second has one in front.
    const std::vector<int32_t> bounds[] = {{0, 2, 2, 5}, {1, 3, 4, 6}};
    std::vector<int32_t> both = bounds[0];
    both.insert(both.end(), bounds[1].begin(), bounds[1].end());
    t.in.boundaries = t.c.integers({2, 4}, both);
    AttentionResult r = attention(t.in, {.causal = causal, .window = 2, .lse = true});
    t.output(r.y);
    std::vector<bool> cells;
    for (const auto& b : bounds)
      for (int64_t i = 0; i < 6; ++i)
        for (int64_t j = 0; j < 6; ++j) {
          bool sees = false;
          for (size_t d = 0; d + 1 < b.size(); ++d)
            sees = sees || (std::min(i, j) >= b[d] && std::max(i, j) < b[d + 1]);
          cells.push_back(sees);
        }
    t.in.boundaries = {};
    t.in.mask = t.c.input(Tensor::from(Shape{2, 1, 6, 6}, cells));
    t.output(attention(t.in, {.causal = causal, .window = 2}).y);
    t.check();
  }
}

TEST_CASE("attention: boundaries are refused where they have no meaning") {
  auto refusal = [](Shapes s, bool length, Shape shape) {
    Twice t(s);
    t.in.boundaries = t.c.integers(shape, std::vector<int32_t>(num_elements(shape), 0));
    if (length) t.in.kv_length = t.c.integers({2}, {1, 1});
    try {
      attention(t.in);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Shapes square{.queries = 6, .keys = 6};
  CHECK(refusal(square, false, {2, 2}).empty());
  CHECK(refusal({}, false, {2, 2}).find("as many queries as keys, not 5 and 7") !=
        std::string::npos);
  CHECK(refusal(square, true, {2, 2}).find("exclude each other") != std::string::npos);
  CHECK(refusal(square, false, {1, 2}).find("must be i32[2, documents + 1]") != std::string::npos);
}

TEST_CASE("attention: slopes are a bias of distances, and have a gradient") {
  for (bool causal : {false, true})
    for (bool length : {false, true}) {
      Shapes s;
      Twice t(s);
      Value slopes = t.c.input({4}, {0.5, 0.25, 0.125, 1.5});
      Value bias = t.c.input(fill({DType::F32, {5, 1}}, 35));
      if (length) t.in.kv_length = t.c.integers({2}, {7, 4});
      t.in.slopes = slopes;
      t.in.bias = bias;
      t.output(attention(t.in, {.causal = causal}).y, {slopes, bias});
      t.in.slopes = {};
      Doubles far;
      for (int64_t keys : {7, 4})
        for (int64_t i = 0; i < s.queries; ++i)
          for (int64_t j = 0; j < s.keys; ++j)
            far.push_back(
                std::abs(static_cast<double>(i + (length ? keys : s.keys) - s.queries - j)));
      Value distance = t.c.input({2, 1, s.queries, s.keys}, far);
      t.in.bias = reshape(slopes, {1, 4, 1, 1}) * distance * -1.0 + bias;
      t.output(attention(t.in, {.causal = causal}).y, {slopes, bias});
      t.check();
    }
}

TEST_CASE("attention: the backward op may be given the results, and says the same") {
  Twice t;
  AttentionResult r = attention(t.in, {.causal = true, .lse = true});
  AttentionAttrs attrs{.causal = true, .lse = true};
  for (bool given : {false, true}) {
    auto g = attention_backward(t.in, t.weight, {}, attrs, given ? r.y : Value(),
                                given ? r.lse : Value());
    for (Value v : {g.dq, g.dk, g.dv}) t.c.output(v);
  }
  t.check();
}

TEST_CASE("attention: softcap and bias act on the scores, and the bias has a gradient") {
  for (const Shape& shape : {Shape{5, 7}, Shape{4, 1, 7}, Shape{2, 1, 5, 1}, Shape{}}) {
    Twice t;
    t.in.bias = t.c.input(fill({DType::F32, shape}, 35));
    t.output(attention(t.in, {.softcap = 0.7}).y, {t.in.bias});
    t.output(by_hand(t, [&](Value x) { return tanh(x / 0.7) * 0.7 + t.in.bias; }), {t.in.bias});
    t.check();
  }
}

TEST_CASE("attention: dropout drops probabilities, alike in both directions") {
  Twice t;
  t.in.seed = t.c.input(Tensor::from(Shape{2}, std::vector<uint32_t>{7, 1}));
  t.in.step = t.c.input(Tensor::from(Shape{}, std::vector<uint32_t>{3}));
  t.in.offset = t.c.input(Tensor::from(Shape{}, std::vector<int64_t>{0}));
  t.output(attention(t.in, {.p = 0.4}).y);
  // The same site again.
  t.c.module.next_random_site -= 1;
  t.output(by_hand(
      t, [](Value x) { return x; },
      [&](Value p) { return dropout(p, t.in.seed, t.in.step, t.in.offset, 0.4); }));
  t.check();
}

TEST_CASE("attention: the log-sum-exp is returned and has a gradient") {
  Twice t;
  auto rows = [&](Value y, Value lse) { return y + reshape(lse, {2, 4, 5, 1}) * 0.25; };
  AttentionResult r = attention(t.in, {.lse = true});
  t.output(rows(r.y, r.lse));
  Value scores;
  Value y = by_hand(t, [&](Value x) { return scores = x; });
  t.output(rows(y, logsumexp(scores, {3})));
  t.check();
}

TEST_CASE("attention: the log-sum-exp of a row that sees no key is -inf, its gradient 0") {
  Twice t({.batch = 1, .heads = 1, .kv_heads = 1, .queries = 3, .keys = 2});
  AttentionResult r = attention(t.in, {.causal = true, .lse = true});
  t.c.output(r.lse);
  for (Value g :
       gradients(t.c.graph, sum(where(gt(r.lse, -kInf), r.lse, 0.0)), std::vector{t.in.q, t.in.k}))
    t.c.output(g);
  t.c.run([](auto results) {
    CHECK(results[0].to_doubles()[0] == -kInf);
    CHECK(std::isfinite(results[0].to_doubles()[1]));
    for (size_t i : {1, 2})
      for (double g : results[i].to_doubles()) CHECK(std::isfinite(g));
    CHECK(results[1].to_doubles()[0] == 0);
  });
}

TEST_CASE("AT-06 enormous logits: the largest less itself is 0") {
  for (int64_t d : {8, 64, 128}) {
    Case c;
    TensorType type{DType::BF16, {1, 1, 1, d}};
    Value q = c.input(Tensor::from_doubles(type, Doubles(static_cast<size_t>(d), 49920)));
    Value k = c.input(Tensor::from_doubles(type, Doubles(static_cast<size_t>(d), 49920)));
    Doubles counts;
    for (int64_t i = 1; i <= d; ++i) counts.push_back(static_cast<double>(i));
    Value v = c.input(Tensor::from_doubles(type, counts));
    c.output_with_gradients(attention(q, k, v), {}, {q, k, v});
    c.run([&](auto results) {
      check_near(results[0], counts, 0, 0);
      for (size_t i : {1, 2}) check_near(results[i], Doubles(static_cast<size_t>(d), 0), 0, 0);
    });
  }
}

TEST_CASE("AT-08 what masked rows hold has no effect, forward or backward") {
  // A key that no query sees, and a query that sees no key, by mask and by length.
  for (bool by_length : {false, true}) {
    Case c;
    Value q = c.input({1, 1, 1, 2}, {1, 0});
    Value k = c.input({1, 1, 2, 2}, {1, 0, kNaN, kNaN});
    Value v = c.input({1, 1, 2, 2}, {2, 3, kInf, kNaN});
    AttentionOperands in{q, k, v};
    if (by_length)
      in.kv_length = c.integers({1}, {1});
    else
      in.mask = c.input(Tensor::from(Shape{1, 2}, std::vector<bool>{true, false}));
    c.output_with_gradients(attention(in).y, {}, {q, k, v});
    c.run([](auto results) {
      check_near(results[0], {2, 3}, 0, 0);
      check_near(results[1], {0, 0}, 0, 0);
      check_near(results[2], {0, 0, 0, 0}, 0, 0);
      check_near(results[3], {1, 1, 0, 0}, 0, 0);
    });
  }
  Case c;
  Value q = c.input({1, 2, 2, 1}, {kNaN, 1, kInf, 1});
  Value k = c.input({1, 1, 1, 1}, {1}), v = c.input({1, 1, 1, 1}, {5});
  Value dy = c.input({1, 2, 2, 1}, {kNaN, 1, kInf, 1});
  c.output_with_gradients(attention(q, k, v, {}, {.causal = true}), dy, {q, k, v});
  c.run([](auto results) {
    check_near(results[0], {0, 5, 0, 5}, 0, 0);
    check_near(results[1], {0, 0, 0, 0}, 0, 0);
    check_near(results[2], {0}, 0, 0);
    check_near(results[3], {2}, 0, 0);
  });
}

TEST_CASE("AT-05 head sizes that fit no tile, in one graph") {
  Case c;
  std::vector<Value> first, second;
  for (int64_t d : {1, 5, 40, 72, 80, 104, 192}) {
    auto four = [](int64_t n) { return TensorType{DType::F32, {1, 1, 4, n}}; };
    Value q = c.input(fill(four(d), 31)), k = c.input(fill(four(d), 32));
    Value v = c.input(fill(four(3), 33)), g = c.input(fill(four(3), 34));
    auto results = [&](Value y, std::vector<Value>& out) {
      out.push_back(y);
      for (Value x : gradients(c.graph, sum(y * g), std::vector{q, k, v})) out.push_back(x);
    };
    results(attention(q, k, v), first);
    Value scores = matmul(q, k, false, true) / std::sqrt(static_cast<double>(d));
    results(matmul(softmax(scores), v), second);
  }
  for (Value v : first) c.output(v);
  for (Value v : second) c.output(v);
  c.run([&](auto results) {
    for (size_t i = 0; i < first.size(); ++i) {
      CAPTURE(i);
      check_near(results[i], results[first.size() + i].to_doubles(), 2e-5, 2e-6);
    }
  });
}

TEST_CASE("AT-08 garbage behind the keys that count, past a tile of 128") {
  Case c;
  const int64_t keys = 131, counted = 129;
  auto rows = [](int64_t n) { return TensorType{DType::F32, {1, 1, n, 4}}; };
  Value q = c.input(fill(rows(3), 31));
  Value k = c.input(fill(rows(counted), 32)), v = c.input(fill(rows(counted), 33));
  auto with_garbage = [&](uint64_t seed) {
    Doubles values = fill(rows(counted), static_cast<int64_t>(seed)).to_doubles();
    for (double x : {kNaN, kInf, -kInf, kNaN, kNaN, kNaN, kInf, kInf}) values.push_back(x);
    return c.input({1, 1, keys, 4}, values);
  };
  Value long_k = with_garbage(32), long_v = with_garbage(33);
  c.output_with_gradients(attention(q, k, v), {}, {q, k, v});
  AttentionOperands in{.q = q, .k = long_k, .v = long_v};
  in.kv_length = c.integers({1}, {static_cast<int32_t>(counted)});
  c.output_with_gradients(attention(in).y, {}, {q, long_k, long_v});
  c.run([&](auto results) {
    for (size_t i : {0, 1}) check_near(results[4 + i], results[i].to_doubles());
    for (size_t i : {2, 3}) {
      Doubles right = results[i].to_doubles();
      right.resize(right.size() + 8, 0.0);
      check_near(results[4 + i], right);
      for (int64_t k0 = counted * 4; k0 < keys * 4; ++k0) CHECK(results[4 + i].at(k0) == 0);
    }
  });
}

}  // namespace sinter::test
