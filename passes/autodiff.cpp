// autodiff: reverse mode, on the graph itself.
//
// An op is active when it lies on a path from an entry of `wrt` to the loss. Active ops are walked
// once, in reverse; each one's derivative rule appends ops at the end of the graph. The
// contributions to a value are kept until its own op is reached, and then become one add_n in the
// order of the value's uses. An op whose derivative is that of its expansion is expanded first.
//
// As a pass it differentiates what its options name, and else the graphs with the attributes
// `loss = "NAME"` (an output) and `wrt = ["w", …]` (inputs), which minimize() writes. It appends
// the results grad_NAME in the order of wrt, and takes the attribute `loss` away. A graph that has
// such a result already is refused: a derivative of it goes by another `prefix`.

#include <sinter/passes/autodiff.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <unordered_set>

namespace sinter {

namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

bool has_active_operand(const Op& op, const ValueSet& active) {
  for (Value v : op.operands())
    if (v && active.contains(v)) return true;
  return false;
}

class Differentiation {
 public:
  Differentiation(Graph& graph, Value of, std::span<const Value> wrt, PassContext* context)
      : graph_(graph), of_(of), wrt_(wrt.begin(), wrt.end()), context_(context) {}

  std::vector<Value> run() {
    check_arguments();
    find_path();
    while (expand_where_needed()) find_path();
    refuse_missing_rules();
    seed();
    for (size_t i = path_.size(); i-- > 0;) differentiate(*path_[i], i);
    std::vector<Value> out;
    for (Value v : wrt_) out.push_back(gradient_or_zero(v));
    return out;
  }

 private:
  struct Contribution {
    size_t user;  // position on the path
    size_t operand;
    Value value;
  };

  SourceLocation place(Value v) const {
    if (v.op() != nullptr) return v.op()->loc();
    return {};
  }

  void check_arguments() const {
    if (of_.rank() != 0 || !is_float(of_.dtype()))
      throw Error(Diagnostic{
          place(of_),
          fmt::format("autodiff: a loss is a float scalar, {} is not", detail::describe(of_))});
    for (Value v : wrt_)
      if (!is_float(v.dtype()))
        throw Error(Diagnostic{place(v), fmt::format("autodiff: {} has no gradient: not a float",
                                                     detail::describe(v))});
  }

  // Forward: what depends on wrt. Backward: what the loss depends on. The path is both.
  void find_path() {
    active_.clear();
    path_.clear();
    active_.insert(wrt_.begin(), wrt_.end());
    std::vector<Op*> dependent;
    for (Op& op : graph_) {
      if (!has_active_operand(op, active_)) continue;
      dependent.push_back(&op);
      for (size_t i = 0; i < op.num_results(); ++i)
        if (is_float(op.result(i).dtype())) active_.insert(op.result(i));
    }
    ValueSet needed{of_};
    for (size_t i = dependent.size(); i-- > 0;) {
      Op& op = *dependent[i];
      bool on_path = false;
      for (size_t k = 0; k < op.num_results(); ++k)
        on_path = on_path || (needed.contains(op.result(k)) && active_.contains(op.result(k)));
      if (!on_path) continue;
      path_.push_back(&op);
      for (Value v : op.operands())
        if (v && active_.contains(v)) needed.insert(v);
    }
    std::reverse(path_.begin(), path_.end());
  }

  bool expand_where_needed() {
    bool any = false;
    for (Op* op : path_) {
      if (op->def().vjp || op->def().vjp_refusal != kThroughExpansion.reason) continue;
      if (context_ != nullptr)
        context_->remark(op->loc(), fmt::format("expanded: {} has no derivative of its own, and is "
                                                "differentiated through its expansion",
                                                op->name()));
      std::vector<Value> old;
      for (size_t i = 0; i < op->num_results(); ++i) old.push_back(op->result(i));
      std::vector<Value> now = detail::expand_in_place(*op);
      for (size_t i = 0; i < old.size(); ++i) {
        if (of_ == old[i]) of_ = now[i];
        std::replace(wrt_.begin(), wrt_.end(), old[i], now[i]);
      }
      any = true;
    }
    return any;
  }

  void refuse_missing_rules() const {
    std::string list;
    SourceLocation first;
    for (const Op* op : path_) {
      if (op->def().vjp) continue;
      if (list.empty()) first = op->loc();
      list += fmt::format("\n  {} at {}: {}", op->name(), op->loc().str(), op->def().vjp_refusal);
    }
    if (!list.empty())
      throw Error(
          Diagnostic{first, fmt::format("autodiff: no derivative on the path to {}:{}",
                                        of_.name().empty() ? "the loss" : "%" + of_.name(), list)});
  }

  void seed() {
    last_old_ = graph_.back() != nullptr ? graph_.back()->position() : -1;
    if (path_.empty() && !active_.contains(of_)) return;
    InsertionScope scope = at_end(of_.op());
    contributions_[of_].push_back({path_.size(), 0, full(graph_, of_.type(), 1.0, {})});
  }

  // New ops carry the place of the op that they are made from, and no segment.
  InsertionScope at_end(const Op* origin) {
    if (origin == nullptr) return InsertionScope(graph_, nullptr);
    return InsertionScope(graph_, nullptr, *origin, origin->loc(), "");
  }

  // Whether this differentiation made the value, so that it may name it.
  bool is_new(Value v) const { return v.op() != nullptr && v.op()->position() > last_old_; }

  // Null when nothing contributes.
  Value gradient(Value v) {
    auto it = contributions_.find(v);
    if (it == contributions_.end()) return {};
    std::vector<Contribution>& all = it->second;
    // They arrive from the last user to the first.
    std::stable_sort(all.begin(), all.end(), [](const Contribution& a, const Contribution& b) {
      return a.user != b.user ? a.user < b.user : a.operand < b.operand;
    });
    Value total = all[0].value;
    if (all.size() > 1) {
      const Op* origin = v.op();
      if (origin == nullptr) origin = all[0].user < path_.size() ? path_[all[0].user] : of_.op();
      InsertionScope scope = at_end(origin);
      std::vector<Value> terms;
      for (const Contribution& c : all) terms.push_back(c.value);
      total = add_n(std::move(terms), {});
      all = {{all[0].user, all[0].operand, total}};
    }
    if (total.name().empty() && !v.name().empty() && is_new(total)) total.set_name("d_" + v.name());
    return total;
  }

  Value gradient_or_zero(Value v) {
    if (Value g = gradient(v)) return g;
    InsertionScope scope = at_end(v.op() != nullptr ? v.op() : of_.op());
    Value zero = full(graph_, v.type(), 0.0, {});
    if (!v.name().empty()) zero.set_name("d_" + v.name());
    return zero;
  }

  void differentiate(Op& op, size_t at) {
    std::vector<Value> grads;
    bool any = false;
    for (size_t i = 0; i < op.num_results(); ++i) {
      grads.push_back(gradient(op.result(i)));
      any = any || grads.back();
    }
    if (!any) return;
    std::vector<bool> needed;
    for (Value v : op.operands()) needed.push_back(v && active_.contains(v));
    InsertionScope scope = at_end(&op);
    Grads by_operand = op.def().vjp(VjpContext(op, std::move(grads), needed));
    SINTER_CHECK(by_operand.size() == needed.size(), "{} has {} operands and {} gradients",
                 op.name(), needed.size(), by_operand.size());
    for (size_t k = 0; k < needed.size(); ++k) {
      if (!needed[k] || !by_operand[k]) continue;
      Value operand = op.operand(k);
      SINTER_CHECK(by_operand[k].type() == operand.type(),
                   "the derivative of {} by operand {} is {}, expected {}", op.name(), k,
                   by_operand[k].type().str(), operand.type().str());
      contributions_[operand].push_back({at, k, by_operand[k]});
    }
  }

  Graph& graph_;
  Value of_;
  std::vector<Value> wrt_;
  PassContext* context_;
  ValueSet active_;
  std::vector<Op*> path_;  // in the graph's order
  ValueMap<std::vector<Contribution>> contributions_;
  int64_t last_old_ = -1;  // position of the last op that was there before
};

}  // namespace

std::vector<Value> gradients(Graph& graph, Value of, std::span<const Value> wrt) {
  return Differentiation(graph, of, wrt, nullptr).run();
}

namespace {

constexpr std::string_view kPrefix = "grad_";

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    out.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

void append_gradients(Graph& graph, const std::string& of, const std::vector<std::string>& wrt,
                      const std::string& prefix, PassContext& context) {
  Value loss = detail::find_value(graph, of);
  if (!loss) throw Error(fmt::format("autodiff: graph @{} has no value {}", graph.name(), of));
  std::unordered_set<std::string> taken;
  for (const GraphOutput& o : graph.outputs()) taken.insert(o.name);
  std::vector<Value> values;
  for (const std::string& name : wrt) {
    if (!taken.insert(prefix + name).second)
      throw Error(
          fmt::format("autodiff: graph @{} already has an output {}{}; the option prefix "
                      "gives the gradients other names than grad_NAME",
                      graph.name(), prefix, name));
    // The value that bears the name, not an output that is called so: a parameter's next value
    // goes by the name of the parameter.
    Value v = graph.find_input(name);
    if (!v) v = detail::find_value(graph, name);
    if (!v) throw Error(fmt::format("autodiff: graph @{} has no value {}", graph.name(), name));
    values.push_back(v);
  }
  std::vector<Value> grads = Differentiation(graph, loss, values, &context).run();
  for (size_t i = 0; i < wrt.size(); ++i) graph.add_output(prefix + wrt[i], grads[i]);
}

const std::string* string_attribute(const Graph& graph, std::string_view name) {
  auto it = graph.attributes.find(name);
  return it == graph.attributes.end() ? nullptr : std::get_if<std::string>(&it->second);
}

void run_from_options(Module& module, PassContext& context) {
  std::string of(context.option("of"));
  std::vector<std::string> wrt = split(context.option("wrt"));
  if (of.empty() || wrt.empty()) throw Error("autodiff: give both of=VALUE and wrt=VALUE,…");
  std::string prefix(context.option("prefix", kPrefix));
  std::string_view name = context.option("graph");
  std::vector<Graph*> graphs = detail::entry_graphs(module);
  if (!name.empty()) {
    Graph* graph = module.find(name);
    if (graph == nullptr) throw Error(fmt::format("autodiff: there is no graph @{}", name));
    graphs = {graph};
  }
  bool any = false;
  for (Graph* graph : graphs) {
    if (name.empty() && graphs.size() > 1 && !detail::find_value(*graph, of)) continue;
    append_gradients(*graph, of, wrt, prefix, context);
    any = true;
  }
  if (!any) throw Error(fmt::format("autodiff: no graph has a value {}", of));
}

}  // namespace

void run_autodiff(Module& module, PassContext& context) {
  if (context.has_option("of") || context.has_option("wrt"))
    return run_from_options(module, context);
  for (Graph* graph : detail::entry_graphs(module)) {
    const std::string* loss = string_attribute(*graph, "loss");
    if (loss == nullptr) continue;
    auto wrt = graph->attributes.find("wrt");
    const auto* names = wrt == graph->attributes.end()
                            ? nullptr
                            : std::get_if<std::vector<std::string>>(&wrt->second);
    if (names == nullptr)
      throw Error(
          fmt::format("autodiff: graph @{} has a loss and no list of names wrt", graph->name()));
    append_gradients(*graph, *loss, *names, std::string(kPrefix), context);
    graph->attributes.erase("loss");
  }
}

}  // namespace sinter
