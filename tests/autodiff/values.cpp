// Gradients by value, run by the reference in f64 and in f32.

#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

#include <cmath>

using namespace sinter;

namespace {

// The fill rule F(shape, s) of the case book.
std::vector<double> fill(const Shape& shape, int64_t s) {
  std::vector<double> out;
  for (int64_t i = 0; i < num_elements(shape); ++i)
    out.push_back(static_cast<double>((37 * i * i + (53 + 2 * s) * i + 101 * s) % 97 - 48) / 32);
  return out;
}

struct Trial {
  Module module;
  Graph& graph = module.add_graph("main");
  std::vector<Value> inputs;
  std::vector<Tensor> tensors;

  Value input(const std::string& name, Shape shape, std::vector<double> data) {
    TensorType type{DType::F32, std::move(shape)};
    tensors.push_back(Tensor::from_doubles(type, data));
    inputs.push_back(graph.add_input(name, type));
    return inputs.back();
  }

  // The loss and each gradient, after `passes`, in f64 or f32.
  std::vector<std::vector<double>> run(Value loss, const std::vector<Value>& wrt,
                                       std::string_view passes, bool f64) {
    graph.add_output("l", loss);
    std::vector<Value> grads = gradients(graph, loss, wrt);
    for (Value g : grads) graph.add_output("", g);
    PassManager manager;
    manager.run(module, parse_pipeline(passes));
    ReferenceOptions options;
    options.f64 = f64;
    std::vector<std::vector<double>> out;
    for (const Tensor& t : Reference(options).run(graph, tensors)) {
      ReferenceTensor cells = to_cells(t, DType::F64);
      std::vector<double> values;
      for (const Cell& c : cells.data) values.push_back(c.f);
      out.push_back(std::move(values));
    }
    return out;
  }
};

void check_near(const std::vector<double>& got, const std::vector<double>& right) {
  REQUIRE(got.size() == right.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - right[i]) <= std::max(1e-5 * std::abs(right[i]), 1e-6));
  }
}

// Every gradient in four ways.
template <typename F>
void four_ways(F trial) {
  for (const char* passes : {"", "canonicalize,cse,dce,expand,canonicalize,cse,dce"})
    for (bool f64 : {true, false}) {
      CAPTURE(passes);
      CAPTURE(f64);
      trial(passes, f64);
    }
}

}  // namespace

TEST_CASE("autodiff: AD-10 gradients of broadcast operands") {
  four_ways([](const char* passes, bool f64) {
    Trial t;
    Value a = t.input("a", {3, 1}, fill({3, 1}, 1)), b = t.input("b", {1, 4}, fill({1, 4}, 2));
    Value c = t.input("c", {2, 1, 1}, fill({2, 1, 1}, 3));
    Value w = t.input("w", {2, 3, 4}, fill({2, 3, 4}, 4));
    auto r = t.run(sum(w * (a * b + c)), {a, b, c}, passes, f64);
    check_near(r[0], {-11.84973});
    check_near(r[1], {2.741211, -3.149414, 0.2109375});
    check_near(r[2], {3.703125, 0.4140625, -3.574219, 0.07421875});
    check_near(r[3], {1.6875, 1.375});
  });
}

TEST_CASE("autodiff: AD-11 a reduction over axes that are not adjacent") {
  four_ways([](const char* passes, bool f64) {
    Trial t;
    Value x = t.input("x", {2, 3, 4}, fill({2, 3, 4}, 5));
    Value k = t.input("k", {3}, {1, -2, 3});
    Value m = mean(x, {0, 2});
    auto r = t.run(sum(k * m * m), {x}, passes, f64);
    check_near(r[0], {0.4743805});
    const double middle[3] = {-0.09667969, -0.1289062, 0.2929688};
    std::vector<double> right;
    for (int i = 0; i < 24; ++i) right.push_back(middle[i / 4 % 3]);
    check_near(r[1], right);
  });
}

TEST_CASE("autodiff: AD-12 equal contributions are all counted") {
  four_ways([](const char* passes, bool f64) {
    Trial t;
    Value x = t.input("x", {3}, {1, -2, 3});
    auto r = t.run(sum(abs(x) + abs(x) + x * x), {x}, passes, f64);
    check_near(r[0], {26});
    check_near(r[1], {4, -6, 8});
  });
}

TEST_CASE("autodiff: fanout_4x") {
  four_ways([](const char* passes, bool f64) {
    Trial t;
    Value x = t.input("x", {4}, {1, -2, 0, 0.5});
    auto r = t.run(sum(x * x + x * x), {x}, passes, f64);
    check_near(r[1], {4, -8, 0, 2});
  });
}

TEST_CASE("autodiff: second derivatives") {
  Trial t;
  Value x = t.input("x", {3}, {0.3, -1.1, 2});
  Value l = sum(x * x * x);
  Value g = gradients(t.graph, l, std::vector{x})[0];
  // d/dx of sum(3 x^2).
  auto r = t.run(sum(g), {x}, "canonicalize,cse,dce", true);
  check_near(r[1], {1.8, -6.6, 12});
}

TEST_CASE("autodiff: AD-21 the values of a very deep graph") {
  Trial t;
  Value x = t.input("x", {2}, {1, 1});
  Value y = x;
  for (int i = 0; i < 20480; ++i) y = y + 0x1p-10;
  auto r = t.run(sum(y), {x}, "canonicalize,cse,dce", false);
  CHECK(r[0] == std::vector<double>{42});
  CHECK(r[1] == std::vector<double>{1, 1});
}

TEST_CASE("autodiff: DR-02 the same mask forward, backward and recomputed") {
  std::vector<std::vector<Cell>> results[2];
  for (bool recompute : {false, true}) {
    Module module;
    Graph& graph = module.add_graph("main");
    Value x = graph.add_input("x", {DType::F32, {8, 64, 129}});
    Value seed = graph.add_input("seed", {DType::U32, {2}});
    Value step = graph.add_input("step", {DType::U32, {}});
    Value offset = graph.add_input("offset", {DType::I64, {}});
    graph.set_current_segment("s");
    Value y = dropout(transpose(x), seed, step, offset, 0.5);
    Value squared = y * y;
    graph.set_current_segment("");
    graph.add_output("l", sum(squared));
    graph.add_output("dx", gradients(graph, graph.outputs()[0].value, std::vector{x})[0]);
    // As an output, the mask would be kept.
    if (!recompute) graph.add_output("y", transpose(y));
    PassManager manager;
    if (!recompute) manager.disabled = {"recompute"};
    manager.run(module,
                parse_pipeline("canonicalize,cse,dce,recompute,expand,canonicalize,cse,dce"));
    bool again = print(graph).find("s.recompute") != std::string::npos;
    CHECK(again == recompute);
    std::vector<Tensor> inputs = {Tensor::full(x.type(), 1), Tensor(seed.type()),
                                  Tensor(step.type()), Tensor(offset.type())};
    for (const Tensor& t : Reference().run(graph, inputs))
      results[recompute].push_back(to_cells(t, DType::F64).data);
  }
  double kept = 0;
  const auto& dx = results[0][1];
  const auto& y = results[0][2];
  for (size_t i = 0; i < dx.size(); ++i) {
    // dl/dy is 2 y, and dy/dx is y itself for an input of ones.
    if (dx[i].f != 2 * y[i].f * y[i].f) FAIL("the gradient has another mask at " << i);
    kept += y[i].f != 0;
  }
  CHECK(kept / static_cast<double>(dx.size()) == doctest::Approx(0.5).epsilon(0.02));
  for (size_t k = 0; k < 2; ++k) {
    REQUIRE(results[0][k].size() == results[1][k].size());
    for (size_t i = 0; i < results[0][k].size(); ++i)
      if (results[0][k][i].i != results[1][k][i].i) FAIL("recompute changes output " << k);
  }
}
