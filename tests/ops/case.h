#pragma once
// A small graph with its inputs, run on every executor: what tests of single faults are made of.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <limits>

namespace sinter::test {

using Doubles = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A graph under test: inputs with their values, then run() on every executor.
struct Case {
  Module module;
  Graph& graph = module.add_graph("g");
  std::vector<Tensor> inputs;

  Value input(Tensor t) {
    inputs.push_back(t);
    return graph.add_input(fmt::format("x{}", graph.inputs().size()), t.type());
  }
  Value input(Shape shape, const Doubles& values, DType type = DType::F32) {
    return input(Tensor::from_doubles({type, std::move(shape)}, values));
  }
  Value integers(Shape shape, const std::vector<int32_t>& values) {
    return input(Tensor::from(std::move(shape), values));
  }
  void output(Value v) { graph.add_output("", v); }
  // The values and their gradients of sum(y * weight).
  void output_with_gradients(Value y, Value weight, const std::vector<Value>& wrt) {
    output(y);
    Value loss = sum(cast(weight ? y * weight : y, DType::F32));
    for (Value g : gradients(graph, loss, wrt)) output(g);
  }
  // Calls `check(results)` for each executor.
  template <typename F>
  void run(F check) {
    for (const Executor& executor : executors()) {
      CAPTURE(executor.name);
      check(executor.run(graph, inputs));
    }
  }
};

inline void check_near(const Tensor& given, const Doubles& right, double rtol = 1e-5,
                       double atol = 1e-6) {
  Doubles values = given.to_doubles();
  REQUIRE(values.size() == right.size());
  for (size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    CAPTURE(values[i]);
    CAPTURE(right[i]);
    bool same = values[i] == right[i] || (std::isnan(values[i]) && std::isnan(right[i]));
    CHECK((same || std::abs(values[i] - right[i]) <= atol + rtol * std::abs(right[i])));
  }
}

inline double absolute_sum(const Tensor& t) {
  double total = 0;
  for (double v : t.to_doubles()) total += std::abs(v);
  return total;
}

}  // namespace sinter::test
