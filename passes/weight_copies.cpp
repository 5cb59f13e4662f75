// weight-copies: the narrow copies of weights that contractions read become states.
//
// Under autocast each product reads its weight through a cast of the f32 state. Where a graph
// writes that state, the cast is kept as a state too, `w.bf16: bf16[…] = cast w`: every graph that
// writes w writes it as well, which fuses into the update's kernel, and all graphs read it. An
// update that changes nothing (a step that is not finite) so leaves the copy as it was. Reshapes,
// permutes and slices between weight and cast are then views of the copy.
//
// The copy has the bits of the cast. It is never saved or set: a session derives it when w is set.

#include <sinter/passes/accumulate.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <map>
#include <set>

namespace sinter {

namespace {

class Copies {
 public:
  Copies(Module& module, PassContext& context)
      : module_(module), context_(context), graphs_(detail::entry_graphs(module)) {
    for (const State& s : module.states)
      if (s.cast_of.empty())
        // Sums over parts of a batch are written more often than they are read.
        candidates_[s.name] = is_float(s.type.dtype) && !s.name.starts_with(kAccumulatedPrefix);
      else
        copies_[{s.cast_of, s.type.dtype}] = s.name;
    for (const Graph* graph : graphs_)
      for (const GraphOutput& o : graph->outputs())
        if (candidates_.contains(o.name) && o.value != graph->find_input(o.name))
          written_.insert(o.name);
  }

  void run() {
    size_t casts = 0;
    for (Graph* graph : graphs_) {
      std::vector<Op*> ops;
      for (Op& op : *graph)
        if (op.is("cast")) ops.push_back(&op);
      for (Op* op : ops) casts += read(*graph, *op);
    }
    int64_t bytes = 0;
    for (const auto& [key, copy] : copies_) {
      if (copy.empty()) continue;
      bytes += module_.find_state(copy)->type.bytes();
      for (Graph* graph : graphs_) write(*graph, key.first, key.second, copy);
    }
    if (casts > 0)
      context_.remark({}, fmt::format("{} casts of weights are states, {} bytes", casts, bytes));
  }

 private:
  // Reads the copy in place of the cast.
  bool read(Graph& graph, Op& op) {
    DType type = op.result().dtype();
    if (!is_float(type) || size_of(type) >= size_of(op.operand(0).dtype())) return false;
    std::vector<Op*> views;
    Value v = op.operand(0);
    for (; v.op() != nullptr && moves_elements(*v.op()); v = v.op()->operand(0))
      views.push_back(v.op());
    auto candidate = v.op() == nullptr ? candidates_.find(v.name()) : candidates_.end();
    if (candidate == candidates_.end() || !candidate->second) return false;
    if (!written_.contains(v.name())) {
      context_.remark(op.loc(),
                      fmt::format("not kept: the cast of {}, which no graph writes", v.name()));
      return false;
    }
    // The cast is called as the copy will be.
    std::string name = op.result().name();
    op.result().set_name("");
    const std::string& copy = copy_of(v, type);
    if (copy.empty()) {
      op.result().set_name(name);
      context_.remark(op.loc(), fmt::format("not kept: the cast of {}, the name {} is taken",
                                            v.name(), wanted(v.name(), type)));
      return false;
    }
    Value narrow = graph.find_input(copy);
    if (!narrow) narrow = graph.add_input(copy, {type, v.shape()});
    for (size_t i = views.size(); i-- > 0;) {
      InsertionScope scope(graph, &op, *views[i], views[i]->from());
      narrow = detail::view_as(*views[i], {narrow}).result();
    }
    if (!views.empty()) narrow.set_name(name);
    op.result().replace_all_uses_with(narrow);
    graph.erase(op);
    for (Op* view : views)
      if (view->result().uses().empty() && !graph.is_output(view->result())) graph.erase(*view);
    return true;
  }

  // Whether the op's result has elements of its operand alone, in other places.
  static bool moves_elements(const Op& op) {
    return op.is("reshape") || op.is("permute") || op.is("slice");
  }

  static std::string wanted(const std::string& state, DType type) {
    return fmt::format("{}.{}", state, to_string(type));
  }

  // The state that is kept for this cast; "" where its name stands for something else.
  const std::string& copy_of(Value state, DType type) {
    auto [it, fresh] = copies_.try_emplace({state.name(), type});
    if (!fresh) return it->second;
    std::string name = wanted(state.name(), type);
    bool taken = module_.find_state(name) != nullptr;
    for (const auto& graph : module_.graphs()) {
      taken = taken || graph->find_input(name);
      for (const GraphOutput& o : graph->outputs()) taken = taken || o.name == name;
    }
    if (taken) return it->second;
    module_.states.push_back({name, {type, state.shape()}, state.name()});
    return it->second = std::move(name);
  }

  // The copy's next value beside the state's.
  void write(Graph& graph, const std::string& state, DType type, const std::string& copy) {
    Value next;
    for (const GraphOutput& o : graph.outputs()) {
      if (o.name == copy) return;
      if (o.name == state) next = o.value;
    }
    if (!next || next == graph.find_input(state)) return;
    Value narrow;
    if (next.op() == nullptr) {
      InsertionScope scope(graph, nullptr);
      narrow = cast(next, type);
    } else {
      InsertionScope scope(graph, nullptr, *next.op(), next.op()->from(), "");
      narrow = cast(next, type);
    }
    narrow.set_name(copy + ".next");
    graph.add_output(copy, narrow);
  }

  Module& module_;
  PassContext& context_;
  std::vector<Graph*> graphs_;
  std::map<std::string, bool, std::less<>> candidates_;  // states; whether they may have a copy
  std::set<std::string, std::less<>> written_;
  std::map<std::pair<std::string, DType>, std::string> copies_;
};

}  // namespace

void run_weight_copies(Module& module, PassContext& context) {
  Copies(module, context).run();
}

}  // namespace sinter
