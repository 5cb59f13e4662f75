// accumulate: makes a graph that sees a part of a batch add its gradients to those of the parts
// before it.
//
// What it reads and what it makes stands in accumulate.h. The graph for the first part is a copy of
// the other one, so that both draw the same random numbers at the same sites.

#include <sinter/passes/accumulate.h>

#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>

namespace sinter {

namespace {

class Accumulation {
 public:
  Accumulation(Module& module, Graph& graph) : module_(module), graph_(graph) {}

  void run(PassContext& context) {
    if (graph_.attributes.contains("loss")) fail("the gradients are missing; run autodiff first");
    std::vector<std::string> names = list("accumulate");
    for (const std::string& parameter : list("wrt")) names.push_back("grad_" + parameter);
    Graph& first = copy(graph_.name() + "_first");
    int64_t bytes = 0;
    for (const std::string& name : names) {
      Value own = widened(take(first, name));
      std::string state = declare(name, own.type());
      first.add_output(state, own);
      add(state, widened(take(graph_, name)));
      bytes += own.type().bytes();
    }
    context.remark({}, fmt::format("@{} and @{}: {} values of {} bytes are summed over parts",
                                   first.name(), graph_.name(), names.size(), bytes));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("accumulate: graph @{}: {}", graph_.name(), message));
  }

  // The attribute, which is taken away.
  std::vector<std::string> list(const std::string& name) {
    auto it = graph_.attributes.find(name);
    std::vector<std::string> names;
    if (it == graph_.attributes.end() || !detail::from_attr(names, it->second))
      fail(fmt::format("{} names no values", name));
    graph_.attributes.erase(it);
    return names;
  }

  Graph& copy(const std::string& name) {
    if (module_.find(name) != nullptr) fail(fmt::format("there is a graph @{} already", name));
    Graph& to = module_.add_graph(name);
    ValueMap<Value> map;
    for (Value v : graph_.inputs()) map[v] = to.add_input(v.name(), v.type());
    clone_ops(graph_, to, map);
    for (const GraphOutput& o : graph_.outputs()) to.add_output(o.name, map.at(o.value));
    return to;
  }

  Value take(Graph& graph, const std::string& name) {
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      if (graph.outputs()[i].name != name) continue;
      Value v = graph.outputs()[i].value;
      graph.erase_output(i);
      return v;
    }
    fail(fmt::format("there is no output {}", name));
  }

  static InsertionScope behind(Value v) {
    Graph& graph = v.graph();
    if (v.op() == nullptr) return InsertionScope(graph, nullptr);
    return InsertionScope(graph, v.op()->next(), *v.op(), v.op()->loc(), "");
  }

  static Value widened(Value v) {
    if (!is_float(v.dtype())) return v;
    InsertionScope scope = behind(v);
    return cast(v, compute_type(v.dtype()));
  }

  std::string declare(const std::string& name, const TensorType& type) {
    std::string state = accumulated_state(name);
    if (const State* s = module_.find_state(state)) {
      if (s->type != type)
        fail(fmt::format("state {} is {}, expected {}", state, s->type.str(), type.str()));
    } else {
      module_.states.push_back({state, type});
    }
    return state;
  }

  void add(const std::string& state, Value own) {
    Value before = graph_.find_input(state);
    if (!before) before = graph_.add_input(state, own.type());
    InsertionScope scope = behind(own);
    Value sum;
    Op* op = own.op();
    bool product = op != nullptr && op->is("matmul") && !op->operand(2) &&
                   op->operand(0).dtype() == own.dtype() && own.uses().empty();
    if (product && !graph_.is_output(own)) {
      // The product itself takes the sum so far as its start.
      OpInit init;
      init.attrs = op->raw_attrs();
      init.operands = {op->operand(0), op->operand(1), before};
      sum = graph_.create(op->def(), std::move(init)).result();
    } else {
      sum = sinter::add(before, own);
    }
    sum.set_name(state + ".next");
    graph_.add_output(state, sum);
  }

  Module& module_;
  Graph& graph_;
};

}  // namespace

void run_accumulate(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module))
    if (graph->attributes.contains("accumulate")) Accumulation(module, *graph).run(context);
}

}  // namespace sinter
