#include <sinter/tests/ops/directional.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {

Setting::Setting(Trial& trial, uint64_t seed) : graph(*trial.graph) {
  x = draw(graph, trial.sample, seed);
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (!is_float(graph.inputs()[i].dtype())) continue;
    wrt.push_back(graph.inputs()[i]);
    at.push_back(i);
  }
  for (const GraphOutput& o : graph.outputs())
    if (is_float(o.value.dtype())) of.push_back(o.value);
  while (!graph.outputs().empty()) graph.erase_output(0);
  for (Value y : of) graph.add_output("", y);
}

std::vector<Value> Setting::directions(const std::string& prefix, const std::vector<Value>& like,
                                       uint64_t seed) {
  std::vector<Value> inputs;
  for (Value v : like)
    inputs.push_back(graph.add_input(fmt::format("{}{}", prefix, inputs.size()), v.type()));
  draw_weights(graph, x, seed);
  return inputs;
}

namespace {

Cells moved(const Setting& s, size_t inputs, const Cells& direction, double step) {
  Cells x(s.x.begin(), s.x.begin() + static_cast<int64_t>(inputs));
  for (size_t i = 0; i < s.at.size(); ++i)
    for (size_t k = 0; k < x[s.at[i]].data.size(); ++k)
      x[s.at[i]].data[k].f += step * cell(direction[i], k);
  return x;
}

}  // namespace

std::vector<Off> differences_off(const ReferenceProgram& program, const Setting& s, size_t inputs,
                                 const Cells& direction, std::span<const ReferenceTensor> given,
                                 double allowed, bool inside, Counts& counts) {
  const double step = 1e-5;
  std::vector<Off> off;
  auto run = [&](double h) { return program.run_cells(moved(s, inputs, direction, h)); };
  Cells above = run(step), below = run(-step), far_above = run(2 * step),
        far_below = run(-2 * step);
  for (size_t i = 0; i < given.size(); ++i) {
    double scale = 1;
    for (size_t k = 0; k < given[i].data.size(); ++k)
      if (double v = std::abs(cell(given[i], k)); std::isfinite(v)) scale = std::max(scale, v);
    for (size_t k = 0; k < given[i].data.size(); ++k) {
      double near = (cell(above[i], k) - cell(below[i], k)) / (2 * step);
      double far = (cell(far_above[i], k) - cell(far_below[i], k)) / (4 * step);
      ++counts.held;
      double d = cell(given[i], k);
      // Outside its domain an op may have a slope that is not a number where it has no value.
      if (!std::isfinite(near) || (!inside && !std::isfinite(d)) ||
          !(std::abs(near - far) <= 0.5 * allowed * scale)) {
        ++counts.passed_over;
        continue;
      }
      if (std::abs(d - near) <= allowed * scale) continue;
      off.push_back({i, k, d, near});
    }
  }
  return off;
}

}  // namespace sinter::test
