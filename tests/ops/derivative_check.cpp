#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/derivative_check.h>

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

}  // namespace

bool refuses(const OpDef& def) {
  return !def.vjp && def.vjp_refusal != kThroughExpansion.reason;
}

FloatInputs float_inputs(const Graph& graph, size_t count) {
  FloatInputs floats;
  for (size_t i = 0; i < count; ++i) {
    if (!is_float(graph.inputs()[i].dtype())) continue;
    floats.values.push_back(graph.inputs()[i]);
    floats.at.push_back(i);
  }
  return floats;
}

Slopes central_slopes(const Graph& graph, size_t count,
                      const std::vector<ReferenceTensor>& inputs) {
  ReferenceProgram program(graph, {.f64 = true});
  if (!std::isfinite(program.run_cells(inputs)[0].data[0].f)) return {};
  Slopes slopes;
  slopes.at = float_inputs(graph, count).at;
  for (size_t i : slopes.at) slopes.right.push_back(central_differences(program, inputs, i));
  return slopes;
}

std::vector<Mismatch> mismatches(Graph& graph, Value scalar, const Slopes& slopes,
                                 const std::vector<ReferenceTensor>& inputs, double allowed,
                                 std::vector<double>* largest) {
  std::vector<Value> wrt;
  for (size_t i : slopes.at) wrt.push_back(graph.inputs()[i]);
  auto grads = gradients(graph, scalar, wrt);
  SINTER_CHECK(grads.size() == wrt.size(), "{} gradients by {} inputs", grads.size(), wrt.size());
  size_t before = graph.outputs().size();
  for (size_t i = 0; i < grads.size(); ++i) {
    SINTER_CHECK(grads[i].type() == wrt[i].type(), "a gradient of type {} by an input of type {}",
                 grads[i].type().str(), wrt[i].type().str());
    graph.add_output(fmt::format("grad{}", i), grads[i]);
  }
  auto given = ReferenceProgram(graph, {.f64 = true}).run_cells(inputs);
  std::vector<Mismatch> off;
  for (size_t i = 0; i < wrt.size(); ++i) {
    const ReferenceTensor &grad = given[before + i], &right = slopes.right[i];
    size_t where = 0;
    double d = difference(grad, right, where);
    if (!(d <= allowed))
      off.push_back({wrt[i].name(), where, grad.data[where].f, right.data[where].f});
    if (largest == nullptr) continue;
    double most = 0;
    for (const Cell& c : grad.data) most = std::max(most, std::abs(c.f));
    largest->push_back(most);
  }
  return off;
}

Value make_scalar(Trial& trial, std::vector<ReferenceTensor>& inputs, uint64_t seed) {
  Graph& graph = *trial.graph;
  inputs = draw(graph, trial.sample, seed);
  Value scalar = weigh(graph, "w");
  if (!scalar) return {};
  draw_weights(graph, inputs, seed + 1);
  while (!graph.outputs().empty()) graph.erase_output(0);
  graph.add_output("scalar", scalar);
  return scalar;
}

}  // namespace sinter::test
