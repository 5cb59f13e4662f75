// vmap: batches a graph over a new leading axis.
//
// The ops are walked once, in order. An op without a batched operand is copied; any other one is
// asked for its batching rule, or replaced by its expansion first, in a copy of the graph. Fan-in
// stays as it is: an operand that is the same for all examples is broadcast only by a rule that
// needs it.
//
// As a pass, `vmap{inputs=x,y size=N}` puts the batched graph in the place of the given one.

#include <sinter/passes/vmap.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/source.h>
#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>
#include <sinter/passes/transforms.h>

#include <algorithm>
#include <charconv>

namespace sinter {

namespace {

class Batching {
 public:
  // Expands ops of `from`, which is nobody else's.
  Batching(Graph& from, Graph& into, int64_t size, PassContext* context)
      : from_(from), into_(into), size_(size), context_(context) {}

  std::vector<MaybeBatched> run(std::span<const MaybeBatched> operands) {
    for (size_t i = 0; i < operands.size(); ++i) map_[from_.inputs()[i]] = operands[i];
    for (Op* op = from_.front(); op != nullptr;) op = step(*op);
    if (!refused_.empty())
      throw Error(Diagnostic{
          place_, fmt::format("vmap: no batching rule in graph @{}:{}", from_.name(), refused_)});
    std::vector<MaybeBatched> out;
    for (const GraphOutput& o : from_.outputs()) out.push_back(map_.at(o.value));
    return out;
  }

 private:
  // The op to go on with.
  Op* step(Op& op) {
    std::vector<Value> operands;
    std::vector<bool> batched;
    for (Value v : op.operands()) {
      MaybeBatched m = v ? map_.at(v) : MaybeBatched{};
      operands.push_back(m.value);
      batched.push_back(m.batched);
    }
    InsertionScope scope(into_, into_.insertion_point(), op, op.from());
    if (std::find(batched.begin(), batched.end(), true) == batched.end()) {
      Op& copy = clone_op(op, into_, std::move(operands));
      for (size_t i = 0; i < op.num_results(); ++i) bind(op.result(i), {copy.result(i), false});
      return op.next();
    }
    const OpDef& def = op.def();
    Batched answer;
    if (size_ == 0 && (def.batch || def.batch_answer))
      answer = Batched::all(zeros(op));  // no example: nothing for a rule to be right about
    else if (def.batch)
      answer = def.batch(BatchContext(op, into_, std::move(operands), std::move(batched), size_,
                                      &graph_transforms()));
    else if (def.batch_answer == Batch::through_expand)
      answer = Batched::through_expand();
    else
      return refuse(op);
    if (answer.expand) return expand(op);
    SINTER_CHECK(answer.results.size() == op.num_results(), "{} has {} results and {} batched ones",
                 op.name(), op.num_results(), answer.results.size());
    for (size_t i = 0; i < op.num_results(); ++i) {
      TensorType type = op.result(i).type();
      if (answer.carry[i]) type.shape.insert(type.shape.begin(), size_);
      SINTER_CHECK(answer.results[i].type() == type, "result {} of {}, batched, is {}, expected {}",
                   i, op.name(), answer.results[i].type().str(), type.str());
      bind(op.result(i), {answer.results[i], answer.carry[i]});
    }
    return op.next();
  }

  void bind(Value old, MaybeBatched now) {
    if (now.value.name().empty()) now.value.set_name(old.name());
    map_[old] = now;
  }

  Op* expand(Op& op) {
    SINTER_CHECK(op.def().expand, "{} has no expansion to batch", op.name());
    if (context_ != nullptr)
      context_->remark(op.loc(), fmt::format("expanded: {} has no batching rule for these operands,"
                                             " and is batched through its expansion",
                                             op.name()));
    Op* before = op.prev();
    detail::expand_in_place(op);
    return before != nullptr ? before->next() : from_.front();
  }

  // Goes on with zeros, to find the others too.
  Op* refuse(const Op& op) {
    if (refused_.empty()) place_ = op.loc();
    refused_ += fmt::format("\n  {} at {}: {}", op.name(), op.loc().str(), op.def().batch_refusal);
    std::vector<Value> stand_ins = zeros(op);
    for (size_t i = 0; i < op.num_results(); ++i) map_[op.result(i)] = {stand_ins[i], true};
    return op.next();
  }

  std::vector<Value> zeros(const Op& op) {
    std::vector<Value> out;
    for (size_t i = 0; i < op.num_results(); ++i) {
      TensorType type = op.result(i).type();
      type.shape.insert(type.shape.begin(), size_);
      out.push_back(full(into_, type, 0, op.loc()));
    }
    return out;
  }

  Graph& from_;
  Graph& into_;
  int64_t size_;
  PassContext* context_;
  ValueMap<MaybeBatched> map_;
  std::string refused_;
  SourceLocation place_;
};

// `graph` for `size` examples, as the ops, inputs and outputs of `out`; `graph` is used up.
void batch_graph(Graph& graph, Graph& out, std::span<const std::string> inputs, int64_t size,
                 PassContext* context) {
  for (const std::string& name : inputs) {
    Value v = graph.find_input(name);
    if (!v) throw Error(fmt::format("vmap: graph @{} has no input {}", graph.name(), name));
    if (graph.module().find_state(name) != nullptr)
      throw Error(
          fmt::format("vmap: input {} of graph @{} is a state, of which there is one for "
                      "all examples",
                      name, graph.name()));
  }
  std::vector<MaybeBatched> operands;
  for (Value v : graph.inputs()) {
    bool batched = std::find(inputs.begin(), inputs.end(), v.name()) != inputs.end();
    TensorType type = v.type();
    if (batched) type.shape.insert(type.shape.begin(), size);
    operands.push_back({out.add_input(v.name(), type), batched});
  }
  out.attributes = graph.attributes;
  std::vector<MaybeBatched> results = Batching(graph, out, size, context).run(operands);
  for (size_t i = 0; i < results.size(); ++i) {
    const GraphOutput& o = graph.outputs()[i];
    MaybeBatched r = results[i];
    bool state = graph.module().find_state(o.name) != nullptr;
    if (state && r.batched)
      throw Error(
          fmt::format("vmap: output {} of graph @{} is the next value of a state, and "
                      "would be one for each example",
                      o.name, graph.name()));
    if (!state && !r.batched) {
      Shape shape = r.value.shape();
      shape.insert(shape.begin(), size);
      SourceLocation loc = r.value.op() != nullptr ? r.value.op()->loc() : SourceLocation{};
      r.value = broadcast_to(r.value, shape, loc);
    }
    out.add_output(o.name, r.value);
  }
}

void require_size(int64_t size) {
  if (size < 0) throw Error(fmt::format("vmap: size {} is negative", size));
}

}  // namespace

std::vector<MaybeBatched> vmap(const Graph& body, Graph& into,
                               std::span<const MaybeBatched> operands, int64_t size) {
  require_size(size);
  SINTER_CHECK(operands.size() == body.inputs().size(), "@{} has {} inputs, given {}", body.name(),
               body.inputs().size(), operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    TensorType type = body.inputs()[i].type();
    if (operands[i].batched) type.shape.insert(type.shape.begin(), size);
    if (operands[i].value.type() != type)
      throw Error(fmt::format("vmap: input {} of @{} is {} here, given {}", body.inputs()[i].name(),
                              body.name(), type.str(), operands[i].value.type().str()));
  }
  std::unique_ptr<Module> copy = body.module().clone();
  return Batching(*copy->find(body.name()), into, size, nullptr).run(operands);
}

Graph& vmap(const Graph& graph, std::string name, std::span<const std::string> inputs,
            int64_t size) {
  require_size(size);
  std::unique_ptr<Module> copy = graph.module().clone();
  Graph& out = graph.module().add_graph(std::move(name));
  try {
    batch_graph(*copy->find(graph.name()), out, inputs, size, nullptr);
  } catch (...) {
    graph.module().erase_graph(out);
    throw;
  }
  return out;
}

void run_vmap(Module& module, PassContext& context) {
  std::vector<std::string> inputs = detail::names_of("vmap", context.option("inputs"));
  std::string_view text = context.option("size");
  if (inputs.empty() || text.empty()) throw Error("vmap: give both inputs=INPUT,… and size=N");
  int64_t size = -1;
  auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (problem != std::errc() || end != text.data() + text.size())
    throw Error(fmt::format("vmap: size={}: expected a whole number", text));
  require_size(size);
  for (Graph* graph : detail::graphs_with(module, context, "vmap", inputs[0])) {
    std::unique_ptr<Module> copy = module.clone();
    std::string name = graph->name();
    {  // A refusal leaves the graph as it is: the first try is on a module of its own.
      std::unique_ptr<Module> from = module.clone(), trial = module.clone();
      trial->erase_graph(*trial->find(name));
      batch_graph(*from->find(name), trial->add_graph(name), inputs, size, nullptr);
    }
    module.erase_graph(*graph);
    batch_graph(*copy->find(name), module.add_graph(name), inputs, size, &context);
  }
}

}  // namespace sinter
