// Derivatives of every op of the registry, in f64: against central differences, against those of
// the op's expansion, and once more for second derivatives.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/derivative_check.h>
#include <sinter/tests/support.h>

#include <cmath>

namespace sinter::test {
namespace {

void clear_outputs(Graph& graph) {
  while (!graph.outputs().empty()) graph.erase_output(0);
}

// Gradients of `scalar` by the first `count` inputs, held against central differences.
void check_gradients(Graph& graph, Value scalar, size_t count,
                     const std::vector<ReferenceTensor>& inputs, double allowed) {
  clear_outputs(graph);
  graph.add_output("scalar", scalar);
  Slopes slopes = central_slopes(graph, count, inputs);
  if (!slopes.any()) return;
  for (const Mismatch& m : mismatches(graph, scalar, slopes, inputs, allowed)) {
    CAPTURE(m.input);
    CAPTURE(m.where);
    CHECK(m.here == m.expected);
  }
}

}  // namespace

TEST_CASE("every op's derivative agrees with central differences") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    std::vector<ReferenceTensor> inputs;
    size_t count = trial.graph->inputs().size();
    Value scalar = make_scalar(trial, inputs, 2);
    if (!scalar) return;
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
    check_gradients(*trial.graph, scalar, count, inputs, kFirstOrder);
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
    check_gradients(*trial.graph, second, count, inputs, kSecondOrder);
  });
}

TEST_CASE("every composite's derivative agrees with that of its expansion") {
  for_each_variant([](Trial& trial, Variant variant) {
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
    try {
      double value = Reference({.f64 = true}).run_cells(*trial.graph, inputs)[0].data[0].f;
      if (variant == Variant::Wide && !std::isfinite(value)) return;
    } catch (const Error&) {
      if (variant == Variant::Own) throw;
      return;  // not what the op takes when executed
    }
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
