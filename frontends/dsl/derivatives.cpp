#include <sinter/frontends/dsl/derivatives.h>
#include <sinter/frontends/dsl/detail/trace.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/transforms.h>

#include <algorithm>
#include <numeric>

namespace sinter {

using detail::Trace;
using Values = std::vector<Value>;

namespace {

[[noreturn]] void fail(const SourceLocation& loc, std::string message) {
  throw Error(Diagnostic{loc, std::move(message)});
}

// The graph of the arguments, all of which must be of one.
Graph& graph_of(std::string_view what, const Values& values, const SourceLocation& loc) {
  if (values.empty()) fail(loc, fmt::format("{}: no arguments", what));
  for (Value v : values)
    if (!v) fail(loc, fmt::format("{}: an argument is not set", what));
  for (Value v : values)
    if (&v.graph() != &values[0].graph())
      fail(loc, fmt::format("{}: the arguments are of two graphs", what));
  return values[0].graph();
}

// Values of their own, so that a derivative by one of them does not follow what a function
// captures.
Values stand_ins(Graph& graph, const Values& values, const SourceLocation& loc) {
  Values out;
  for (Value v : values)
    out.push_back(build_op(graph, "reshape", {v}, ReshapeAttrs{{v.type()}}, loc).result());
  return out;
}

Value scalar_of(std::string_view what, const Values& results, const SourceLocation& loc) {
  if (results.size() != 1)
    fail(loc, fmt::format("{}: the function gives {} values, expected one scalar", what,
                          results.size()));
  if (results[0].rank() != 0 || !is_float(results[0].dtype()))
    fail(loc, fmt::format("{}: the function gives {}, expected a float scalar", what,
                          results[0].type().str()));
  return results[0];
}

Value one_of(std::string_view what, const Values& results, const SourceLocation& loc) {
  if (results.size() != 1)
    fail(loc, fmt::format("{}: the function gives {} values, expected one", what, results.size()));
  return results[0];
}

// `given` must have the types of `values`; a null one stands for zeros.
void check_directions(std::string_view what, std::string_view kind, const Values& given,
                      const Values& values, const SourceLocation& loc) {
  if (given.size() != values.size())
    fail(loc, fmt::format("{}: {} {}s for {} values", what, given.size(), kind, values.size()));
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i] && given[i].type() != values[i].type())
      fail(loc, fmt::format("{}: {} {}: expected {}, got {}", what, kind, i, values[i].type().str(),
                            given[i].type().str()));
}

Value zeros_like(Value v, const SourceLocation& loc) {
  return full(v.graph(), v.type(), 0.0, loc);
}

// The gradients of sum_i <of[i], cotangents[i]>; a null cotangent is left out.
Values pull_back(Graph& graph, const Values& of, const Values& cotangents, const Values& wrt,
                 const SourceLocation& loc) {
  Values grads = graph_transforms().vjp(graph, of, cotangents, wrt);
  for (size_t i = 0; i < grads.size(); ++i)
    if (!grads[i]) grads[i] = full(graph, wrt[i].type(), 0.0, loc);
  return grads;
}

// The tangents of `of`, zeros included.
Values push_forward(Graph& graph, const Values& of, const Values& wrt, const Values& directions,
                    const SourceLocation& loc) {
  Values tangents = graph_transforms().jvp(graph, of, wrt, directions);
  for (size_t i = 0; i < tangents.size(); ++i)
    if (!tangents[i] && is_float(of[i].dtype())) tangents[i] = zeros_like(of[i], loc);
  return tangents;
}

Shape joined(const Shape& a, const Shape& b) {
  Shape out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

// The unit vectors of a type: [n, x…] for n elements.
Value unit_vectors(Graph& graph, const TensorType& type, const SourceLocation& loc) {
  int64_t n = type.elements();
  Value row = iota(graph, {DType::I32, {n, n}}, 0, loc);
  Value column = iota(graph, {DType::I32, {n, n}}, 1, loc);
  Value same = build_op(graph, "eq", {row, column}, NoAttrs{}, loc).result();
  Value eye = cast(same, type.dtype, loc);
  return reshape(eye, joined({n}, type.shape), loc);
}

// A new graph of the module, gone again unless kept: its op may be refused.
class NewGraph {
 public:
  explicit NewGraph(Graph& graph) : graph_(&graph) {}
  NewGraph(NewGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  ~NewGraph() {
    if (graph_ != nullptr) graph_->module().erase_graph(*graph_);
  }
  Graph& operator*() const { return *graph_; }
  void keep() { graph_ = nullptr; }

 private:
  Graph* graph_;
};

// A function as a sub-graph, and what it captured; nothing of it is left in the graph.
struct Body {
  NewGraph graph;
  Values captures;
};
Body trace_body(Graph& graph, const std::string& name, std::vector<detail::Parameter> parameters,
                const Trace::Body& f, const SourceLocation& loc) {
  Trace trace(graph, name, std::move(parameters), f, loc);
  return {NewGraph(trace.build(name)), trace.captures()};
}

// The results of `body` for `size` examples at once: `inputs` for its parameters carry the axis of
// examples in front where `carried` says so.
Values batch_of(Graph& graph, const Body& body, Values inputs, std::vector<bool> carried,
                int64_t size) {
  for (Value v : body.captures) {
    inputs.push_back(v);
    carried.push_back(false);
  }
  return graph_transforms().batch(*body.graph, graph, inputs, carried, size);
}

}  // namespace

std::vector<Value> Function::operator()(std::string_view what, const Values& arguments,
                                        const SourceLocation& loc) const {
  if (arguments_ != 0 && arguments_ != arguments.size())
    fail(loc, fmt::format("{}: the function takes {} argument{}, got {}", what, arguments_,
                          arguments_ == 1 ? "" : "s", arguments.size()));
  Values results = call_(arguments);
  for (Value v : results)
    if (!v) fail(loc, fmt::format("{}: the function returns a value that is not set", what));
  return results;
}

// ---- Reverse mode

std::vector<Value> grad(Value loss, const Values& wrt, SourceLocation loc) {
  Graph& graph = graph_of("grad", {loss}, loc);
  return gradients(graph, scalar_of("grad", {loss}, loc), wrt);
}

Value grad(Value loss, Value wrt, SourceLocation loc) {
  return grad(loss, Values{wrt}, std::move(loc)).at(0);
}

ValueAndGrad value_and_grad(const Function& f, const Values& arguments, SourceLocation loc) {
  Graph& graph = graph_of("value_and_grad", arguments, loc);
  Values at = stand_ins(graph, arguments, loc);
  Value value = scalar_of("value_and_grad", f("value_and_grad", at, loc), loc);
  return {value, gradients(graph, value, at)};
}

std::vector<Value> grad(const Function& f, const Values& arguments, SourceLocation loc) {
  Graph& graph = graph_of("grad", arguments, loc);
  Values at = stand_ins(graph, arguments, loc);
  return gradients(graph, scalar_of("grad", f("grad", at, loc), loc), at);
}

Value grad(const Function& f, Value x, SourceLocation loc) {
  return grad(f, Values{x}, std::move(loc)).at(0);
}

ValuesAndGrads vjp(const Function& f, const Values& arguments, const Values& cotangents,
                   SourceLocation loc) {
  Graph& graph = graph_of("vjp", arguments, loc);
  Values at = stand_ins(graph, arguments, loc);
  Values values = f("vjp", at, loc);
  check_directions("vjp", "cotangent", cotangents, values, loc);
  Values of, given;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!cotangents[i]) continue;
    of.push_back(values[i]);
    given.push_back(cotangents[i]);
  }
  if (of.empty()) fail(loc, "vjp: no cotangent is given");
  return {values, pull_back(graph, of, given, at, loc)};
}

// ---- Forward mode

ValuesAndTangents jvp(const Function& f, const Values& arguments, const Values& directions,
                      SourceLocation loc) {
  Graph& graph = graph_of("jvp", arguments, loc);
  check_directions("jvp", "tangent", directions, arguments, loc);
  Values at = stand_ins(graph, arguments, loc);
  Values values = f("jvp", at, loc);
  Values along, moved;
  for (size_t i = 0; i < at.size(); ++i) {
    if (!directions[i]) continue;
    along.push_back(at[i]);
    moved.push_back(directions[i]);
  }
  if (along.empty()) fail(loc, "jvp: no tangent is given");
  return {values, push_forward(graph, values, along, moved, loc)};
}

// ---- Whole matrices

Value jacobian(const Function& f, Value x, JacobianMode mode, SourceLocation loc) {
  Graph& graph = graph_of("jacobian", {x}, loc);
  Value at = stand_ins(graph, {x}, loc)[0];
  Value y = one_of("jacobian", f("jacobian", {at}, loc), loc);
  for (Value v : {x, y})
    if (!is_float(v.dtype())) fail(loc, fmt::format("jacobian: {} is no float", v.type().str()));
  int64_t n = x.type().elements(), m = y.type().elements();
  Shape shape = joined(y.shape(), x.shape());
  if (n == 0 || m == 0) return full(graph, {y.dtype(), shape}, 0.0, loc);
  if (chosen_mode(mode, y, x) == JacobianMode::Reverse) {
    Body body = trace_body(
        graph, "jacobian", {{"dy", y.type()}},
        [&](const Values& dy) { return pull_back(graph, {y}, dy, {at}, loc); }, loc);
    Value rows = batch_of(graph, body, {unit_vectors(graph, y.type(), loc)}, {true}, m)[0];
    return reshape(rows, shape, loc);
  }
  Body body = trace_body(
      graph, "jacobian", {{"dx", x.type()}},
      [&](const Values& dx) {
        // Made here, so that what is made of it goes behind it.
        return push_forward(graph, {y}, {at}, stand_ins(graph, dx, loc), loc);
      },
      loc);
  Value columns = batch_of(graph, body, {unit_vectors(graph, x.type(), loc)}, {true}, n)[0];
  return reshape(transpose(reshape(columns, {n, m}, loc), 0, 1, loc), shape, loc);
}

std::vector<Value> hvp(const Function& f, const Values& arguments, const Values& v,
                       SourceLocation loc) {
  Graph& graph = graph_of("hvp", arguments, loc);
  check_directions("hvp", "vector", v, arguments, loc);
  Values at = stand_ins(graph, arguments, loc);
  Value y = scalar_of("hvp", f("hvp", at, loc), loc);
  Value slope = push_forward(graph, {y}, at, v, loc)[0];
  return gradients(graph, slope, at);
}

Value hvp(const Function& f, Value x, Value v, SourceLocation loc) {
  return hvp(f, Values{x}, Values{v}, std::move(loc)).at(0);
}

Value hessian(const Function& f, Value x, SourceLocation loc) {
  Graph& graph = graph_of("hessian", {x}, loc);
  Value at = stand_ins(graph, {x}, loc)[0];
  Value y = scalar_of("hessian", f("hessian", {at}, loc), loc);
  int64_t n = x.type().elements();
  Shape shape = joined(x.shape(), x.shape());
  if (n == 0) return full(graph, {x.dtype(), shape}, 0.0, loc);
  Body body = trace_body(
      graph, "hessian", {{"v", x.type()}},
      [&](const Values& v) {
        Value slope = push_forward(graph, {y}, {at}, stand_ins(graph, v, loc), loc)[0];
        return gradients(graph, slope, Values{at});
      },
      loc);
  Value rows = batch_of(graph, body, {unit_vectors(graph, x.type(), loc)}, {true}, n)[0];
  return reshape(rows, shape, loc);
}

// ---- Gradients of one's own

namespace {

std::vector<detail::Parameter> parameters(const Values& values, std::string_view stem) {
  std::vector<detail::Parameter> out;
  for (Value v : values) {
    bool usable = !v.name().empty() && v.name().find('\'') == std::string::npos;
    out.push_back({usable ? v.name() : fmt::format("{}{}", stem, out.size()), v.type()});
  }
  return out;
}

void append(Values& to, std::span<const Value> more) {
  to.insert(to.end(), more.begin(), more.end());
}

// The two graphs of a custom_vjp, and its operands.
struct CustomVjp {
  NewGraph forward, backward;
  Values operands;
};

CustomVjp trace_custom_vjp(const std::string& name, const Function& forward,
                           const BackwardFunction& backward, const Values& operands,
                           const SourceLocation& loc) {
  std::string what = "custom_vjp " + name;
  Graph& graph = graph_of(what, operands, loc);
  Trace run(
      graph, what, parameters(operands, "x"),
      [&](const Values& x) { return forward(what, x, loc); }, loc);
  // The backward graph sees operands, results and cotangents as new values.
  std::vector<detail::Parameter> sees = parameters(operands, "x");
  for (Value y : run.outputs()) sees.push_back({"y", y.type()});
  for (Value y : run.outputs())
    if (is_float(y.dtype())) sees.push_back({"dy", y.type()});
  auto first = static_cast<int64_t>(operands.size());
  auto last = first + static_cast<int64_t>(run.outputs().size());
  Trace back(
      graph, what, sees,
      [&](const Values& v) {
        auto at = v.begin();
        return backward({at, at + first}, {at + first, at + last}, {at + last, v.end()});
      },
      loc);
  // Both take what either captures, behind the operands.
  Values captured = run.captures();
  for (Value v : back.captures())
    if (std::find(captured.begin(), captured.end(), v) == captured.end()) captured.push_back(v);
  Values run_inputs = run.parameters(), all = operands;
  append(run_inputs, captured);
  append(all, captured);
  std::span<const Value> seen(back.parameters());
  Values back_inputs(seen.begin(), seen.begin() + first);
  append(back_inputs, captured);
  append(back_inputs, seen.subspan(operands.size()));
  NewGraph run_graph(run.build(name, run_inputs));
  NewGraph back_graph(back.build(name + "_vjp", back_inputs));
  for (Value v : captured)
    if (is_float(v.dtype())) (*back_graph).add_output("", full(*back_graph, v.type(), 0.0, loc));
  return {std::move(run_graph), std::move(back_graph), std::move(all)};
}

}  // namespace

std::vector<Value> custom_vjp(std::string_view name, const Function& forward,
                              const BackwardFunction& backward, const Values& operands,
                              SourceLocation loc) {
  // What was traced is gone from the graph before the op goes there.
  CustomVjp made = trace_custom_vjp(std::string(name), forward, backward, operands, loc);
  Values results =
      custom_vjp(*made.forward, *made.backward, std::move(made.operands), std::move(loc));
  made.forward.keep();
  made.backward.keep();
  return results;
}

Value custom_vjp(std::string_view name, const Function& forward,
                 const std::function<Value(Value x, Value y, Value dy)>& backward, Value x,
                 SourceLocation loc) {
  auto gradient = [&](const Values& operands, const Values& results, const Values& cotangents) {
    if (results.size() != 1 || cotangents.size() != 1)
      fail(loc, fmt::format("custom_vjp {}: the function gives {} values, expected one float", name,
                            results.size()));
    return Values{backward(operands[0], results[0], cotangents[0])};
  };
  return custom_vjp(name, forward, BackwardFunction(gradient), Values{x}, loc).at(0);
}

// ---- Batching and loops

std::vector<Value> vmap(const Function& f, const Values& arguments,
                        const std::vector<std::optional<int64_t>>& in_axes, SourceLocation loc) {
  Graph& graph = graph_of("vmap", arguments, loc);
  if (!in_axes.empty() && in_axes.size() != arguments.size())
    fail(loc, fmt::format("vmap: {} axes for {} arguments", in_axes.size(), arguments.size()));
  Values inputs;
  std::vector<bool> carried;
  std::vector<detail::Parameter> parameter_types = parameters(arguments, "x");
  int64_t size = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Value v = arguments[i];
    std::optional<int64_t> axis = in_axes.empty() ? std::optional<int64_t>(0) : in_axes[i];
    carried.push_back(axis.has_value());
    inputs.push_back(v);
    if (!axis) continue;
    std::optional<int64_t> at = normalize_axis(*axis, v.rank());
    if (!at)
      fail(loc, fmt::format("vmap: argument {} ({}) has no axis {}", i, v.type().str(), *axis));
    if (size == -1) size = v.dim(*at);
    if (v.dim(*at) != size)
      fail(loc, fmt::format("vmap: argument {} ({}) has {} examples along axis {}, others {}", i,
                            v.type().str(), v.dim(*at), *axis, size));
    Shape& shape = parameter_types[i].type.shape;
    shape.erase(shape.begin() + *at);
    if (*at == 0) continue;
    std::vector<int64_t> order(v.shape().size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::rotate(order.begin(), order.begin() + *at, order.begin() + *at + 1);
    inputs.back() = permute(v, order, loc);
  }
  if (size == -1) fail(loc, "vmap: no argument has an axis of examples");
  Body body = trace_body(
      graph, "vmap", std::move(parameter_types), [&](const Values& x) { return f("vmap", x, loc); },
      loc);
  return batch_of(graph, body, std::move(inputs), std::move(carried), size);
}

namespace {

Body trace_step(const ScanStep& step, const Values& initial, const Values& stacked,
                const SourceLocation& loc) {
  Values all = initial;
  append(all, stacked);
  Graph& graph = graph_of("scan", all, loc);
  std::vector<detail::Parameter> inputs = parameters(initial, "carry");
  for (detail::Parameter p : parameters(stacked, "row")) {
    if (p.type.rank() == 0) fail(loc, fmt::format("scan: {} has no rows", p.type.str()));
    p.type.shape.erase(p.type.shape.begin());
    inputs.push_back(std::move(p));
  }
  auto carries = static_cast<int64_t>(initial.size());
  return trace_body(
      graph, "scan", std::move(inputs),
      [&](const Values& v) {
        ScanResult next = step({v.begin(), v.begin() + carries}, {v.begin() + carries, v.end()});
        if (next.carries.size() != initial.size())
          fail(loc, fmt::format("scan: the step gives {} carries, expected {}", next.carries.size(),
                                initial.size()));
        Values outputs = std::move(next.carries);
        append(outputs, next.stacked);
        return outputs;
      },
      loc);
}

}  // namespace

ScanResult scan(const ScanStep& step, const Values& initial, const Values& stacked,
                ScanOptions options, SourceLocation loc) {
  Body traced = trace_step(step, initial, stacked, loc);
  ScanAttrs attrs;
  attrs.length = options.length;
  attrs.reverse = options.reverse;
  attrs.recompute = options.recompute;
  Values results =
      scan(*traced.graph, initial, stacked, std::move(traced.captures), attrs, std::move(loc));
  traced.graph.keep();
  auto carries = static_cast<int64_t>(initial.size());
  return {{results.begin(), results.begin() + carries}, {results.begin() + carries, results.end()}};
}

}  // namespace sinter
