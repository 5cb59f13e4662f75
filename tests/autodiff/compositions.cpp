// Derivatives of derivatives by value, and batches of them, run by the reference in f64.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/jacobian.h>
#include <sinter/passes/vmap.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

#include <cmath>

using namespace sinter;

namespace {

using Doubles = std::vector<double>;

std::vector<Doubles> run(const Graph& graph, const std::vector<Doubles>& inputs) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i)
    tensors.push_back(Tensor::from_doubles(graph.inputs()[i].type(), inputs[i]));
  std::vector<Doubles> out;
  for (const Tensor& t : Reference({.f64 = true}).run(graph, tensors))
    out.push_back(t.to_doubles());
  return out;
}

void check_near(const Doubles& given, const Doubles& right, double allowed = 1e-12) {
  REQUIRE(given.size() == right.size());
  for (size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(given[i] - right[i]) <= allowed * std::max(1.0, std::abs(right[i])));
  }
}

Value element(Value x, int64_t i) {
  return reshape(slice_axis(x, 0, i, i + 1), {});
}

// x²y + sin x + y³
Value example(Value p) {
  Value x = element(p, 0), y = element(p, 1);
  return x * x * y + sin(x) + y * y * y;
}

}  // namespace

TEST_CASE("the Hessian of x^2 y + sin x + y^3 at (2, 3), in every order of composition") {
  const Doubles at{2, 3}, right{6 - std::sin(2.0), 4, 4, 18};
  CHECK(right[0] == doctest::Approx(5.090703));
  Module module;
  Graph& graph = module.add_graph("main");
  Value p = graph.add_input("p", {DType::F64, {2}});
  Value f = example(p);
  Value g = gradients(graph, f, {&p, 1})[0];
  graph.add_output("gradient", g);
  graph.add_output("hessian", hessian(graph, f, p));
  // The Jacobian of the gradient, by either mode.
  graph.add_output("forward", jacobian(graph, g, p, JacobianMode::Forward));
  graph.add_output("reverse", jacobian(graph, g, p, JacobianMode::Reverse));
  // Reverse over forward: the gradient of the derivative along each axis.
  for (int64_t i = 0; i < 2; ++i) {
    Value v = cast(eq(iota(graph, {DType::I32, {2}}, 0), static_cast<double>(i)), DType::F64);
    Value along = tangents(graph, {&f, 1}, {&p, 1}, {&v, 1})[0];
    graph.add_output(fmt::format("row{}", i), gradients(graph, along, {&p, 1})[0]);
  }
  auto out = run(graph, {at});
  check_near(out[0], {12 + std::cos(2.0), 4 + 27});
  for (size_t i : {1, 2, 3}) check_near(out[i], right);
  check_near(out[4], {right[0], right[1]});
  check_near(out[5], {right[2], right[3]});
}

TEST_CASE("a Jacobian has the axes of the value before those of the input") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F64, {2, 3}}), w = graph.add_input("w", {DType::F64, {3}});
  Value y = sum(x * w, {1});
  Value constant = full(graph, {DType::F64, {2}}, 1.0);
  for (JacobianMode mode : {JacobianMode::Forward, JacobianMode::Reverse}) {
    graph.add_output("", jacobian(graph, y, x, mode));
    graph.add_output("", jacobian(graph, y, w, mode));
    graph.add_output("", jacobian(graph, constant, w, mode));
  }
  CHECK(graph.outputs()[0].value.type().str() == "f64[2,2,3]");
  auto out = run(graph, {{1, 2, 3, 4, 5, 6}, {7, 8, 9}});
  for (size_t i : {0, 3}) {
    check_near(out[i], {7, 8, 9, 0, 0, 0, 0, 0, 0, 7, 8, 9});
    check_near(out[i + 1], {1, 2, 3, 4, 5, 6});
    check_near(out[i + 2], {0, 0, 0, 0, 0, 0});
  }
}

TEST_CASE("the fifth derivative of x sin x, in a mix of modes") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F64, {}});
  Value y = x * sin(x), one = full(graph, x.type(), 1.0);
  for (int i = 0; i < 5; ++i)
    y = i % 2 == 0 ? gradients(graph, y, {&x, 1})[0]
                   : tangents(graph, {&y, 1}, {&x, 1}, {&one, 1})[0];
  graph.add_output("y", y);
  check_near(run(graph, {{1.5}})[0], {5 * std::sin(1.5) + 1.5 * std::cos(1.5)});
}

TEST_CASE("per-example gradients of a small network equal those of a loop") {
  const int64_t examples = 3;
  Module module;
  Graph& graph = module.add_graph("one");
  Value x = graph.add_input("x", {DType::F64, {1, 4}});
  Value t = graph.add_input("t", {DType::I32, {1}});
  Value w = graph.add_input("w", {DType::F64, {4, 5}});
  Value gamma = graph.add_input("gamma", {DType::F64, {5}});
  Value beta = graph.add_input("beta", {DType::F64, {5}});
  Value loss = cross_entropy(layer_norm(gelu(matmul(x, w)), gamma, beta), t).loss;
  graph.add_output("loss", loss);
  const Value wrt[] = {w, gamma, beta};
  for (Value g : gradients(graph, loss, wrt)) graph.add_output("", g);
  Graph& many = vmap(graph, "many", std::vector<std::string>{"x", "t"}, examples);
  auto numbers = [](int64_t count, int64_t seed) {
    Doubles v;
    for (int64_t i = 0; i < count; ++i)
      v.push_back(static_cast<double>((37 * i * i + 53 * i + 11 * seed) % 97 - 48) / 40);
    return v;
  };
  Doubles shared[] = {numbers(20, 1), numbers(5, 2), numbers(5, 3)}, rows = numbers(12, 4);
  auto batched = run(many, {rows, {2, 0, 4}, shared[0], shared[1], shared[2]});
  for (size_t n = 0; n < examples; ++n) {
    auto at = rows.begin() + static_cast<int64_t>(4 * n);
    auto one = run(graph, {{at, at + 4},
                           {n == 0   ? 2.0
                            : n == 1 ? 0.0
                                     : 4.0},
                           shared[0],
                           shared[1],
                           shared[2]});
    for (size_t k = 0; k < one.size(); ++k) {
      auto start = batched[k].begin() + static_cast<int64_t>(n * one[k].size());
      check_near({start, start + static_cast<int64_t>(one[k].size())}, one[k]);
    }
  }
}
