#include <sinter/frontends/dsl/check_grads.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/transforms.h>
#include <sinter/runtime/reference.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace sinter {
namespace {

constexpr double kStep = 6e-6;   // about the cube root of f64's precision
constexpr double kFloor = 1e-2;  // smaller values count as this share of the largest
constexpr size_t kMaxOps = 5;    // named in a report

using Cells = std::vector<ReferenceTensor>;

// Uniform in -1..1, a function of seed and index (splitmix64).
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL) {}
  double operator()() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
  }
  ReferenceTensor like(const TensorType& type) {
    ReferenceTensor t{{DType::F64, type.shape}, {}};
    t.data.resize(static_cast<size_t>(type.elements()));
    for (Cell& cell : t.data) cell.f = (*this)();
    return t;
  }

 private:
  uint64_t state_;
};

std::vector<int64_t> index_of(int64_t linear, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = linear % shape[axis];
    linear /= shape[axis];
  }
  return index;
}

double dot(const ReferenceTensor& a, const ReferenceTensor& b) {
  double total = 0;
  for (size_t i = 0; i < a.data.size(); ++i) total += a.data[i].f * b.data[i].f;
  return total;
}

// One graph with its inputs' values: what is to be checked.
class Subject {
 public:
  // `name` says whose derivative it is; `at` are the values of the inputs.
  Subject(const Graph& graph, Cells at, std::vector<size_t> wrt, const GradCheckOptions& options,
          std::string prefix)
      : graph_(graph),
        at_(std::move(at)),
        wrt_(std::move(wrt)),
        options_(options),
        prefix_(std::move(prefix)),
        values_(graph, {true}),
        draw_(options.seed) {
    for (size_t k = 0; k < graph.outputs().size(); ++k)
      if (is_float(graph.outputs()[k].value.dtype())) outputs_.push_back(k);
    for (size_t k : outputs_) weights_.push_back(draw_.like(graph.outputs()[k].value.type()));
  }

  void run(GradCheckReport& report) {
    if (wrt_.empty() || outputs_.empty()) return;
    if (options_.reverse) reverse(report);
    if (options_.forward) forward(report);
  }

  // The graph whose outputs are the gradients of the weighted outputs, and whose further inputs are
  // the weights; their values behind those of this graph.
  struct Gradients {
    std::unique_ptr<Module> module;
    Graph* graph;
    Cells at;
  };
  Gradients gradients_graph() const {
    Gradients g{graph_.module().clone(), nullptr, at_};
    g.graph = g.module->find(graph_.name());
    std::vector<Value> of, cotangents, wrt;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      of.push_back(g.graph->outputs()[outputs_[i]].value);
      cotangents.push_back(g.graph->add_input(fmt::format("weight'{}", i), of.back().type()));
      g.at.push_back(weights_[i]);
    }
    for (size_t i : wrt_) wrt.push_back(g.graph->inputs()[i]);
    std::vector<Value> grads = graph_transforms().vjp(*g.graph, of, cotangents, wrt);
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i]) grads[i] = full(*g.graph, wrt[i].type(), 0.0);
    while (!g.graph->outputs().empty()) g.graph->erase_output(g.graph->outputs().size() - 1);
    for (size_t i = 0; i < grads.size(); ++i) g.graph->add_output("d_" + wrt[i].name(), grads[i]);
    return g;
  }

 private:
  double step_at(double x) const {
    double step = options_.step > 0 ? options_.step : kStep;
    return step * std::max(1.0, std::abs(x));
  }

  // d sum_k <output k, weight k> along one element, by differences.
  double slope(size_t input, size_t element) {
    double x = at_[input].data[element].f, h = step_at(x);
    double ends[2];
    for (int side : {0, 1}) {
      at_[input].data[element].f = side == 0 ? x - h : x + h;
      Cells y = values_.run_cells(at_);
      ends[side] = 0;
      for (size_t i = 0; i < outputs_.size(); ++i) ends[side] += dot(y[outputs_[i]], weights_[i]);
    }
    at_[input].data[element].f = x;
    return (ends[1] - ends[0]) / ((x + h) - (x - h));
  }

  void reverse(GradCheckReport& report) {
    Gradients g = gradients_graph();
    Cells grads = ReferenceProgram(*g.graph, {true}).run_cells(g.at);
    for (size_t k = 0; k < wrt_.size(); ++k) {
      size_t input = wrt_[k], count = at_[input].data.size();
      auto limit = static_cast<size_t>(std::max<int64_t>(options_.max_elements, 1));
      size_t stride = std::max<size_t>((count + limit - 1) / limit, 1);
      std::vector<double> given, expected;
      std::vector<int64_t> elements;
      for (size_t e = 0; e < count; e += stride) {
        given.push_back(grads[k].data[e].f);
        expected.push_back(slope(input, e));
        elements.push_back(static_cast<int64_t>(e));
      }
      compare("reverse", graph_.inputs()[input].name(), at_[input].type.shape, elements, given,
              expected, report);
    }
  }

  void forward(GradCheckReport& report) {
    for (size_t input : wrt_) {
      auto module = graph_.module().clone();
      Graph& graph = *module->find(graph_.name());
      std::vector<Value> of;
      for (size_t k : outputs_) of.push_back(graph.outputs()[k].value);
      Value x = graph.inputs()[input];
      Value direction = graph.add_input("direction'", x.type());
      std::vector<Value> moved = graph_transforms().jvp(graph, of, {&x, 1}, {&direction, 1});
      for (size_t i = 0; i < moved.size(); ++i)
        if (!moved[i]) moved[i] = full(graph, of[i].type(), 0.0);
      while (!graph.outputs().empty()) graph.erase_output(graph.outputs().size() - 1);
      for (Value v : moved) graph.add_output("", v);
      Cells at = at_;
      at.push_back(draw_.like(x.type()));
      Cells given = ReferenceProgram(graph, {true}).run_cells(at);

      double largest = 0;
      for (const Cell& cell : at_[input].data) largest = std::max(largest, std::abs(cell.f));
      double h = step_at(largest);
      Cells ends[2];
      for (int side : {0, 1}) {
        Cells there = at_;
        for (size_t e = 0; e < there[input].data.size(); ++e)
          there[input].data[e].f += (side == 0 ? -h : h) * at.back().data[e].f;
        ends[side] = values_.run_cells(there);
      }
      for (size_t i = 0; i < outputs_.size(); ++i) {
        std::vector<double> rule, difference;
        std::vector<int64_t> elements;
        for (size_t e = 0; e < given[i].data.size(); ++e) {
          elements.push_back(static_cast<int64_t>(e));
          rule.push_back(given[i].data[e].f);
          difference.push_back((ends[1][outputs_[i]].data[e].f - ends[0][outputs_[i]].data[e].f) /
                               (2 * h));
        }
        compare("forward",
                fmt::format("{} along {}", graph_.outputs()[outputs_[i]].name,
                            graph_.inputs()[input].name()),
                given[i].type.shape, elements, rule, difference, report);
      }
    }
  }

  void compare(const std::string& mode, const std::string& value, const Shape& shape,
               const std::vector<int64_t>& elements, const std::vector<double>& given,
               const std::vector<double>& expected, GradCheckReport& report) const {
    double largest = 0;
    for (double v : expected)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    double floor = std::max(kFloor * largest, 1e-4);
    GradCheckFailure worst;
    for (size_t i = 0; i < given.size(); ++i) {
      double difference = std::abs(given[i] - expected[i]);
      double error = difference / std::max({std::abs(given[i]), std::abs(expected[i]), floor});
      if (given[i] == expected[i]) error = 0;
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
      report.largest_error = std::max(report.largest_error, error);
      ++report.checked;
      if (error <= std::max(options_.tolerance, worst.error)) continue;
      worst = {prefix_ + mode, "",          {},   value, index_of(elements[i], shape),
               given[i],       expected[i], error};
    }
    if (worst.error > options_.tolerance) report.failures.push_back(std::move(worst));
  }

  const Graph& graph_;
  Cells at_;
  std::vector<size_t> wrt_;
  const GradCheckOptions& options_;
  std::string prefix_;
  ReferenceProgram values_;
  Draw draw_;
  std::vector<size_t> outputs_;  // float ones
  Cells weights_;
};

// The values of every op's operands, as the graph has them.
ValueMap<ReferenceTensor> all_values(const Graph& graph, const Cells& at) {
  auto module = graph.module().clone();
  Graph& copy = *module->find(graph.name());
  while (!copy.outputs().empty()) copy.erase_output(copy.outputs().size() - 1);
  std::vector<Value> originals;
  Op* theirs = copy.front();
  for (Op& op : graph) {
    for (size_t i = 0; i < op.num_results(); ++i) {
      originals.push_back(op.result(i));
      copy.add_output(fmt::format("v{}", originals.size()), theirs->result(i));
    }
    theirs = theirs->next();
  }
  Cells results = ReferenceProgram(copy, {true}).run_cells(at);
  ValueMap<ReferenceTensor> values;
  for (size_t i = 0; i < at.size(); ++i) values[graph.inputs()[i]] = at[i];
  for (size_t i = 0; i < originals.size(); ++i) values[originals[i]] = std::move(results[i]);
  return values;
}

// The ops whose own derivative is off, at the operands that they have in the graph.
void find_ops(const Graph& graph, const Cells& at, const GradCheckOptions& options,
              const std::string& prefix, GradCheckReport& report) {
  ValueMap<ReferenceTensor> values = all_values(graph, at);
  auto module = graph.module().clone();
  for (Op& op : graph) {
    if (report.ops.size() >= kMaxOps) return;
    Graph& alone = module->add_graph(module->unique_graph_name("alone"));
    std::vector<Value> operands;
    std::vector<size_t> wrt;
    Cells operand_values;
    for (size_t i = 0; i < op.operands().size(); ++i) {
      Value v = op.operand(i);
      if (!v) {
        operands.push_back({});
        continue;
      }
      const auto& specs = op.def().operands;
      bool by_name = i < specs.size() && specs[i].kind != OperandSpec::Variadic;
      std::string name = by_name ? std::string(specs[i].name) : fmt::format("operand{}", i);
      if (is_float(v.dtype())) wrt.push_back(alone.inputs().size());
      operands.push_back(alone.add_input(name, v.type()));
      operand_values.push_back(values.at(v));
    }
    Op& copy = clone_op(op, alone, std::move(operands));
    for (size_t i = 0; i < copy.num_results(); ++i)
      alone.add_output(fmt::format("result{}", i), copy.result(i));
    GradCheckReport found;
    try {
      Subject(alone, std::move(operand_values), std::move(wrt), options, prefix).run(found);
    } catch (const Error&) {
      // An op without a derivative that lies on no path to an output.
    }
    for (GradCheckFailure& failure : found.failures) {
      failure.op = op.name();
      if (!op.callee().empty()) failure.op += " @" + op.callee();
      failure.loc = op.loc();
      report.ops.push_back(std::move(failure));
    }
    module->erase_graph(alone);
  }
}

void check(const Graph& graph, const Cells& at, const std::vector<size_t>& wrt,
           const GradCheckOptions& options, const std::string& prefix, GradCheckReport& report) {
  size_t before = report.failures.size();
  Subject subject(graph, at, wrt, options, prefix);
  subject.run(report);
  if (report.failures.size() > before) find_ops(graph, at, options, prefix, report);
  if (!options.second_order) return;
  GradCheckOptions inner = options;
  inner.second_order = false;
  Subject::Gradients g = subject.gradients_graph();
  check(*g.graph, g.at, wrt, inner, "second order, ", report);
}

}  // namespace

std::string GradCheckFailure::str() const {
  std::string at = element.empty() ? "" : fmt::format("[{}]", fmt::join(element, ","));
  std::string message =
      fmt::format("{}{}: {} {}{} is {:.9g}, by central differences {:.9g} (relative error {:.2g})",
                  op.empty() ? "" : op + ": ", what,
                  what.ends_with("forward") ? "the tangent of" : "the gradient by", value, at,
                  given, expected, error);
  return Diagnostic{loc, message}.str();
}

std::string GradCheckReport::str() const {
  std::string out =
      fmt::format("check_grads: {} elements, largest relative error {:.2g}, tolerance {:.2g}",
                  checked, largest_error, tolerance);
  for (const GradCheckFailure& failure : failures) out += "\n" + failure.str();
  if (!failures.empty() && ops.empty())
    out += "\nno op is off on its own: a stop_gradient, or a kink within the step";
  for (const GradCheckFailure& failure : ops) out += "\n" + failure.str();
  return out;
}

GradCheckReport check_grads(const Graph& graph, const Bindings& inputs,
                            const GradCheckOptions& options) {
  for (const auto& [name, value] : inputs)
    if (!graph.find_input(name))
      throw Error(fmt::format("check_grads: @{} has no input '{}'", graph.name(), name));
  Draw draw(options.seed ^ 0x5EED);
  Cells at;
  std::vector<size_t> wrt;
  for (Value v : graph.inputs()) {
    auto given = inputs.find(v.name());
    TensorType type = v.type();
    if (is_float(type.dtype)) type.dtype = DType::F64;
    if (given == inputs.end()) {
      if (!is_float(v.dtype()))
        throw Error(
            fmt::format("check_grads: input '{}' ({}) is not given", v.name(), v.type().str()));
      at.push_back(draw.like(type));
    } else {
      TensorType expected = v.type();
      if (given->second.dtype() == DType::F64 && is_float(expected.dtype)) expected = type;
      require_type(fmt::format("input '{}'", v.name()), expected, given->second.type());
      at.push_back(to_cells(given->second, type.dtype));
    }
    bool asked = options.wrt.empty() ? is_float(v.dtype())
                                     : std::find(options.wrt.begin(), options.wrt.end(),
                                                 v.name()) != options.wrt.end();
    if (asked) wrt.push_back(at.size() - 1);
  }
  for (const std::string& name : options.wrt)
    if (Value v = graph.find_input(name); !v || !is_float(v.dtype()))
      throw Error(fmt::format("check_grads: @{} has no float input '{}'", graph.name(), name));
  GradCheckReport report;
  report.tolerance = options.tolerance;
  check(graph, at, wrt, options, "", report);
  return report;
}

}  // namespace sinter
