// Derivatives of every op of the registry, in f64: against central differences, against those of
// the op's expansion, and once more for second derivatives.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {
namespace {

// Central differences of an f64 scalar by input `i` of its graph.
ReferenceTensor central_differences(const ReferenceProgram& program,
                                    std::vector<ReferenceTensor> inputs, size_t i) {
  ReferenceTensor slope{{DType::F64, inputs[i].type.shape}, {}};
  slope.data.resize(inputs[i].data.size());
  for (size_t k = 0; k < slope.data.size(); ++k) {
    double x = inputs[i].data[k].f, step = 1e-5 * std::max(1.0, std::abs(x));
    inputs[i].data[k].f = x + step;
    double above = program.run_cells(inputs)[0].data[0].f;
    inputs[i].data[k].f = x - step;
    double below = program.run_cells(inputs)[0].data[0].f;
    inputs[i].data[k].f = x;
    slope.data[k].f = (above - below) / (2 * step);
  }
  return slope;
}

void clear_outputs(Graph& graph) {
  while (!graph.outputs().empty()) graph.erase_output(0);
}

struct FloatInputs {
  std::vector<Value> values;
  std::vector<size_t> at;  // places among the graph's inputs
};
FloatInputs float_inputs(const Graph& graph, size_t count) {
  FloatInputs floats;
  for (size_t i = 0; i < count; ++i) {
    if (!is_float(graph.inputs()[i].dtype())) continue;
    floats.values.push_back(graph.inputs()[i]);
    floats.at.push_back(i);
  }
  return floats;
}

// Gradients of `scalar` as outputs after the scalar itself, held against central differences.
void check_gradients(Graph& graph, Value scalar, size_t count,
                     const std::vector<ReferenceTensor>& inputs, double allowed) {
  FloatInputs wrt = float_inputs(graph, count);
  if (wrt.values.empty()) return;
  clear_outputs(graph);
  graph.add_output("scalar", scalar);
  ReferenceProgram forward(graph, {.f64 = true});
  // The maximum of nothing is -inf: nothing to take differences of.
  if (!std::isfinite(forward.run_cells(inputs)[0].data[0].f)) return;
  auto grads = gradients(graph, scalar, wrt.values);
  REQUIRE(grads.size() == wrt.values.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    REQUIRE(grads[i].type() == wrt.values[i].type());
    graph.add_output(fmt::format("grad{}", i), grads[i]);
  }
  auto given = ReferenceProgram(graph, {.f64 = true}).run_cells(inputs);
  for (size_t i = 0; i < wrt.at.size(); ++i) {
    CAPTURE(wrt.values[i].name());
    auto right = central_differences(forward, inputs, wrt.at[i]);
    size_t where = 0;
    double d = difference(given[i + 1], right, where);
    CAPTURE(where);
    double here = right.data.empty() ? 0 : given[i + 1].data[where].f;
    double expected = right.data.empty() ? 0 : right.data[where].f;
    CAPTURE(here);
    CAPTURE(expected);
    CHECK(d <= allowed);
  }
}

// Whether the op refuses to be differentiated at all.
bool refuses(const OpDef& def) {
  return !def.vjp && def.vjp_refusal != kThroughExpansion.reason;
}

}  // namespace

TEST_CASE("every op's derivative agrees with central differences") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    auto inputs = draw(*trial.graph, trial.sample, 2);
    size_t count = inputs.size();
    Value scalar = weigh(*trial.graph, "w");
    if (!scalar) return;
    draw_weights(*trial.graph, inputs, 3);
    const OpDef& def = trial.op->def();
    if (refuses(def)) {
      FloatInputs wrt = float_inputs(*trial.graph, count);
      if (wrt.values.empty()) return;
      std::string message;
      try {
        gradients(*trial.graph, scalar, wrt.values);
      } catch (const Error& e) {
        message = e.what();
      }
      CAPTURE(message);
      CHECK(message.find(def.name) != std::string::npos);
      CHECK(message.find(def.vjp_refusal) != std::string::npos);
      CHECK(message.find("trial.cpp:7") != std::string::npos);
      return;
    }
    check_gradients(*trial.graph, scalar, count, inputs, 1e-6);
  });
}

TEST_CASE("every op's second derivative agrees with central differences of the first") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    if (refuses(trial.op->def())) return;
    auto inputs = draw(*trial.graph, trial.sample, 4);
    Value scalar = weigh(*trial.graph, "w");
    if (!scalar) return;
    size_t count = trial.graph->inputs().size();  // by the cotangents too
    draw_weights(*trial.graph, inputs, 5);
    FloatInputs wrt = float_inputs(*trial.graph, count);
    auto grads = gradients(*trial.graph, scalar, wrt.values);
    clear_outputs(*trial.graph);
    for (Value g : grads) trial.graph->add_output("", g);
    Value second = weigh(*trial.graph, "u");
    draw_weights(*trial.graph, inputs, 6);
    check_gradients(*trial.graph, second, count, inputs, 1e-5);
  });
}

TEST_CASE("every composite's derivative agrees with that of its expansion") {
  for_each_trial([](Trial& trial) {
    if (!trial.op->def().expand || refuses(trial.op->def())) return;
    CAPTURE(trial.name);
    auto inputs = draw(*trial.graph, trial.sample, 7);
    size_t count = inputs.size();
    Value scalar = weigh(*trial.graph, "w");
    if (!scalar) return;
    draw_weights(*trial.graph, inputs, 8);
    std::vector<std::vector<ReferenceTensor>> results;
    clear_outputs(*trial.graph);
    trial.graph->add_output("scalar", scalar);
    for (bool expanded : {false, true}) {
      auto module = trial.module->clone();
      Graph& graph = *module->find("g");
      if (expanded) expand_all(graph);
      auto grads = gradients(graph, graph.outputs()[0].value, float_inputs(graph, count).values);
      for (Value g : grads) graph.add_output("", g);
      results.push_back(Reference({.f64 = true}).run_cells(graph, inputs));
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      size_t where = 0;
      CAPTURE(i);
      CHECK(difference(results[0][i], results[1][i], where) <= 1e-10);
    }
  });
}

}  // namespace sinter::test
