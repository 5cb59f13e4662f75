#include <sinter/ir/ops/detail/subgraph.h>

namespace sinter::detail {

std::vector<Value> inline_graph(const Graph& body, Graph& to, std::span<const Value> inputs,
                                const Op& caller, const SourceLocation& from,
                                const std::string& segment) {
  SINTER_CHECK(inputs.size() == body.inputs().size(), "{} inputs for @{}, which has {}",
               inputs.size(), body.name(), body.inputs().size());
  ValueMap<Value> map;
  for (size_t i = 0; i < inputs.size(); ++i) map[body.inputs()[i]] = inputs[i];
  for (Op& op : body) {
    const Op& origin = op.loc().known() ? op : caller;
    InsertionScope scope(to, to.insertion_point(), origin, op.from().known() ? op.from() : from,
                         op.segment().empty() ? segment : op.segment());
    std::vector<Value> operands;
    for (Value v : op.operands()) operands.push_back(v ? map.at(v) : Value());
    Op& copy = clone_op(op, to, std::move(operands));
    for (size_t i = 0; i < op.num_results(); ++i) map[op.result(i)] = copy.result(i);
  }
  std::vector<Value> outputs;
  for (const GraphOutput& output : body.outputs()) outputs.push_back(map.at(output.value));
  return outputs;
}

std::vector<Value> inline_graph(const Graph& body, std::span<const Value> inputs,
                                const Op& caller) {
  return inline_graph(body, caller.graph(), inputs, caller, caller.from(), caller.segment());
}

const Graph& callee_of(const Op& op) {
  return callee_of(op, op.callee());
}

const Graph& callee_of(const Op& op, const std::string& name) {
  const Graph* callee = op.graph().module().find(name);
  SINTER_CHECK(callee != nullptr, "{} calls @{}, which does not exist", op.name(), name);
  return *callee;
}

Graph& add_body(Module& module, const std::string& stem) {
  Graph& graph = module.add_graph(module.unique_graph_name(stem));
  graph.attributes["private"] = true;
  return graph;
}

Value add_input(Graph& graph, const std::string& name, TensorType type) {
  std::string free = name;
  for (int n = 1; graph.find_input(free); ++n) free = fmt::format("{}_{}", name, n);
  return graph.add_input(std::move(free), std::move(type));
}

Graph& add_batched(const Graph& body, const std::vector<bool>& carried, const BatchContext& c) {
  Graph& graph = add_body(c.graph().module(), body.name() + "_batched");
  std::vector<Value> inputs;
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    Value v = body.inputs()[i];
    inputs.push_back(graph.add_input(v.name(), carried[i] ? c.carried_type(v.type()) : v.type()));
  }
  std::vector<Value> outputs = c.transforms().batch(body, graph, inputs, carried, c.size());
  for (size_t i = 0; i < outputs.size(); ++i) graph.add_output(body.outputs()[i].name, outputs[i]);
  return graph;
}

std::optional<Diagnostic> misfit(const InferContext& c, const Graph& callee, size_t i) {
  Value input = callee.inputs()[i];
  if (input.type() == c.type(i)) return std::nullopt;
  return c.error("input {} of @{} is {}, got {}", input.name(), callee.name(), input.type().str(),
                 c.describe(i));
}

std::optional<Diagnostic> miscount(const InferContext& c, const Graph& callee) {
  size_t takes = callee.inputs().size();
  if (takes == c.num_operands()) return std::nullopt;
  return c.error("@{} takes {} operand{}, got {}", callee.name(), takes, takes == 1 ? "" : "s",
                 c.num_operands());
}

}  // namespace sinter::detail
