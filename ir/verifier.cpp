#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>

#include <set>
#include <unordered_set>

namespace sinter {
namespace {

[[noreturn]] void fail(const Graph& graph, const Op* op, const std::string& message) {
  std::string where = op ? fmt::format(" in `{}`", print(*op)) : "";
  throw Error(Diagnostic{op ? op->loc() : SourceLocation{},
                         fmt::format("graph @{}: {}{}", graph.name(), message, where)});
}

}  // namespace

void verify(const Graph& graph) {
  std::unordered_set<Value, ValueHash> defined(graph.inputs().begin(), graph.inputs().end());
  std::set<std::string> names;
  for (Value v : graph.inputs()) {
    if (v.name().empty()) fail(graph, nullptr, "an input has no name");
    if (!names.insert(v.name()).second)
      fail(graph, nullptr, fmt::format("two inputs are named {}", v.name()));
  }
  std::unordered_map<const Op*, size_t> uses;
  for (Op& op : graph) {
    for (size_t i = 0; i < op.operands().size(); ++i) {
      Value v = op.operand(i);
      if (!v) continue;
      if (&v.graph() != &graph) fail(graph, &op, fmt::format("operand {} is of another graph", i));
      if (!defined.contains(v))
        fail(graph, &op, fmt::format("operand {} is used before its definition", i));
      ++uses[&op];
      bool listed = false;
      // A value with thousands of users would make this quadratic; use lists are checked when
      // short.
      if (v.uses().size() > 64) listed = true;
      for (const Use& u : v.uses())
        listed = listed || (u.op == &op && u.operand == static_cast<int>(i));
      if (!listed) fail(graph, &op, fmt::format("operand {} is missing from its use list", i));
    }
    const Graph* callee = op.callee().empty() ? nullptr : graph.module().find(op.callee());
    if (op.def().has_callee)
      for (const std::string& name : callees_of(op))
        if (graph.module().find(name) == nullptr)
          fail(graph, &op, fmt::format("there is no graph @{}", name));
    InferContext context(op.def(), op.raw_attrs().get(), op.operands(), op.loc(), callee);
    Inferred types = op.def().infer(context);
    if (!types.ok()) throw Error(types.error());
    if (types.value().size() != op.num_results())
      fail(
          graph, &op,
          fmt::format("has {} results, its rule gives {}", op.num_results(), types.value().size()));
    for (size_t i = 0; i < op.num_results(); ++i) {
      if (types.value()[i] != op.result(i).type())
        fail(graph, &op,
             fmt::format("result {} has type {}, its rule gives {}", i, op.result(i).type().str(),
                         types.value()[i].str()));
      defined.insert(op.result(i));
    }
  }
  std::set<std::string> outputs;
  for (const GraphOutput& o : graph.outputs()) {
    if (!o.value || !defined.contains(o.value))
      fail(graph, nullptr, fmt::format("output {} has no definition", o.name));
    if (!outputs.insert(o.name).second)
      fail(graph, nullptr, fmt::format("two outputs are named {}", o.name));
  }
  for (const State& state : graph.module().states) {
    if (Value v = graph.find_input(state.name); v && v.type() != state.type)
      fail(graph, nullptr,
           fmt::format("input {} is {}, the state of that name is {}", state.name, v.type().str(),
                       state.type.str()));
    for (const GraphOutput& o : graph.outputs())
      if (o.name == state.name && o.value.type() != state.type)
        fail(graph, nullptr,
             fmt::format("output {} is {}, the state of that name is {}", o.name,
                         o.value.type().str(), state.type.str()));
  }
}

namespace {

// Whether the graph gives the state a next value.
bool writes(const Graph& graph, const std::string& state) {
  for (const GraphOutput& o : graph.outputs())
    if (o.name == state) return o.value != graph.find_input(state);
  return false;
}

void verify_copies(const Module& module) {
  for (const State& copy : module.states) {
    if (copy.cast_of.empty()) continue;
    const State* whole = module.find_state(copy.cast_of);
    if (whole == nullptr || !whole->cast_of.empty())
      throw Error(fmt::format("state {} is a copy of {}, which is no state with a value of its own",
                              copy.name, copy.cast_of));
    if (whole->type.shape != copy.type.shape || !is_float(copy.type.dtype) ||
        !is_float(whole->type.dtype) || size_of(copy.type.dtype) >= size_of(whole->type.dtype))
      throw Error(fmt::format("state {} ({}) cannot be a narrower copy of {} ({})", copy.name,
                              copy.type.str(), whole->name, whole->type.str()));
    for (const auto& g : module.graphs())
      if (writes(*g, copy.cast_of) && !writes(*g, copy.name))
        fail(*g, nullptr, fmt::format("{} is written without its copy {}", whole->name, copy.name));
  }
}

}  // namespace

void verify(const Module& module) {
  std::set<std::string> names;
  for (const State& s : module.states)
    if (!names.insert(s.name).second) throw Error(fmt::format("two states are named {}", s.name));
  for (const auto& g : module.graphs()) verify(*g);
  verify_copies(module);
}

}  // namespace sinter
