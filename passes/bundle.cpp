// bundle: small kernels of one body that do not wait for each other become one launch.
//
// A kernel that moves little takes as long to launch as to run, and a training step has hundreds:
// the last stages of sums, squares of gradients, updates of biases. kBundle calls of one graph
// become one call of a graph that holds its ops as often; a call that several of them share an
// operand with reads it once. What is left over stays as it is, so that a deeper model takes no
// more kernels. A bundle waits for all that its members wait for, and stands where the last of them
// stood; calls that depend on each other, by way of other bundles too, are not put together, nor
// those whose operands would take up memory meanwhile.
//
// The host has no launches to save, and is left alone.

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/state_update.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/iteration_space.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace sinter {

namespace {

// Blocks of a model come in multiples of this.
constexpr size_t kBundle = 6;
// For each multiprocessor, the bytes that a kernel moves before its launch hardly counts.
constexpr double kSmallBytes = 1 << 15;
// What a call reads of what others made is kept until the last of its bundle; so it may take this
// share of all that is made, or so many bytes.
constexpr int64_t kShareKept = 8192, kBytesKept = 1 << 12;
// Bodies have this many ops, and calls as many operands and results, at most.
constexpr size_t kMostOps = 64, kMostArguments = 24;

struct Unit {
  std::vector<Op*> ops;  // by position
  int64_t reach = 0;     // the last position among them and all that they wait for
};

class Bundler {
 public:
  // `bodies`: what calls of a graph are made, by it and by the operands that they share.
  Bundler(Graph& graph, PassContext& context, std::map<std::string, std::string>& bodies)
      : graph_(graph), context_(context), bodies_(bodies) {
    for (Op& op : graph) {
      units_.push_back(std::make_unique<Unit>());
      units_.back()->ops.push_back(&op);
      units_.back()->reach = op.position();
      unit_of_[&op] = units_.back().get();
      for (size_t r = 0; r < op.num_results(); ++r) made_ += op.result(r).type().bytes();
    }
  }

  void run() {
    std::map<std::string, std::vector<Op*>> open;  // by callee and segment
    for (Op& op : graph_) {
      if (!is_small(op)) continue;
      std::vector<Op*>& group = open[op.callee() + '\n' + op.segment()];
      if (!group.empty() && waits_for(op, group)) group.clear();
      group.push_back(&op);
      if (group.size() < kBundle) continue;
      // Other bundles may have made one wait for another meanwhile.
      if (std::none_of(group.begin(), group.end(),
                       [&](Op* member) { return waits_for(*member, group); }))
        put_together(group);
      group.clear();
    }
    if (bundles_ > 0) emit();
  }

 private:
  const Graph& body_of(const Op& op) const { return *graph_.module().find(op.callee()); }

  bool is_small(const Op& op) {
    if (!op.is("fusion") || op.callee().empty()) return false;
    const auto most = kSmallBytes * static_cast<double>(graph_.module().target.multiprocessors);
    if (op.def().cost(op).bytes > most) return false;
    int64_t kept = 0;
    for (Value v : op.operands()) kept += v.op() != nullptr ? v.type().bytes() : 0;
    if (kept > std::max(made_ / kShareKept, kBytesKept)) return false;
    const Graph& body = body_of(op);
    if (body.size() > kMostOps || op.operands().size() + op.num_results() > kMostArguments)
      return false;
    auto [known, fresh] = plain_.try_emplace(op.callee());
    if (fresh) known->second = is_plain(body) && !detail::checks_indices(op);
    return known->second;
  }
  // Whether the kernel of several copies of the body is as good as that of one: each result has an
  // element, a row or a column wherever the others have one.
  static bool is_plain(const Graph& body) {
    std::vector<const Op*> ops;
    for (Op& op : body) {
      if (op.def().kind == OpKind::Scatter) return false;
      ops.push_back(&op);
    }
    std::vector<Value> results;
    for (const GraphOutput& o : body.outputs()) results.push_back(o.value);
    Result<IterationSpace> space = iteration_space(ops, results);
    return space.ok() && space.value().kind != IterationSpace::Prefix && !space.value().elements &&
           !space.value().by_parts;
  }

  // Whether an op waits for one of the group, by way of other ops.
  bool waits_for(const Op& op, const std::vector<Op*>& group) const {
    const int64_t first = group.front()->position();
    std::unordered_set<const Unit*> seen;
    std::vector<const Op*> stack{&op};
    while (!stack.empty()) {
      const Op* top = stack.back();
      stack.pop_back();
      for (Value v : top->operands()) {
        const Op* up = v ? v.op() : nullptr;
        if (up == nullptr) continue;
        const Unit* unit = unit_of_.at(up);
        if (unit->reach < first || !seen.insert(unit).second) continue;
        for (const Op* member : unit->ops) {
          if (std::find(group.begin(), group.end(), member) != group.end()) return true;
          stack.push_back(member);
        }
      }
    }
    return false;
  }

  void put_together(const std::vector<Op*>& group) {
    Unit& unit = *unit_of_.at(group.front());
    unit.ops = group;
    for (Op* op : group) {
      unit.reach = std::max(unit.reach, unit_of_.at(op)->reach);
      unit_of_[op] = &unit;
    }
    ++bundles_;
    // What reads the first of them waits for the last.
    std::vector<Unit*> stack{&unit};
    while (!stack.empty()) {
      Unit* top = stack.back();
      stack.pop_back();
      for (const Op* op : top->ops)
        for (size_t r = 0; r < op->num_results(); ++r)
          for (const Use& use : op->result(r).uses()) {
            Unit* user = unit_of_.at(use.op);
            if (user->reach >= top->reach) continue;
            user->reach = top->reach;
            stack.push_back(user);
          }
    }
  }

  // All units in an order that respects what each waits for and otherwise follows its last op.
  std::vector<Unit*> sequence() const {
    std::unordered_map<Unit*, size_t> waiting;
    std::unordered_map<Unit*, std::vector<Unit*>> next;
    std::vector<Unit*> all;
    for (const auto& owned : units_) {
      Unit* unit = owned.get();
      if (unit_of_.at(unit->ops.front()) != unit) continue;
      all.push_back(unit);
      std::unordered_set<Unit*> from;
      for (const Op* op : unit->ops)
        for (Value v : op->operands())
          if (v && v.op()) from.insert(unit_of_.at(v.op()));
      waiting[unit] = from.size();
      for (Unit* u : from) next[u].push_back(unit);
    }
    using Item = std::pair<int64_t, Unit*>;
    auto later = [](const Item& a, const Item& b) { return a.first > b.first; };
    std::priority_queue<Item, std::vector<Item>, decltype(later)> ready(later);
    auto add = [&](Unit* u) { ready.push({u->ops.back()->position(), u}); };
    for (Unit* unit : all)
      if (waiting.at(unit) == 0) add(unit);
    std::vector<Unit*> order;
    while (!ready.empty()) {
      Unit* unit = ready.top().second;
      ready.pop();
      order.push_back(unit);
      for (Unit* n : next[unit])
        if (--waiting.at(n) == 0) add(n);
    }
    SINTER_CHECK(order.size() == all.size(), "bundle made a cycle in @{}", graph_.name());
    return order;
  }

  void emit() {
    for (Unit* unit : sequence())
      for (Op* op : unit->ops) graph_.move_before(*op, nullptr);
    for (const auto& owned : units_)
      if (owned->ops.size() > 1 && unit_of_.at(owned->ops.front()) == owned.get())
        write(owned->ops);
  }

  void write(const std::vector<Op*>& calls) {
    Module& module = graph_.module();
    Op& last = *calls.back();
    // Operands, each once, and what each call's are among them.
    std::vector<Value> inputs;
    std::vector<std::vector<size_t>> places;
    ValueMap<size_t> place;
    std::string key = last.callee();
    for (const Op* call : calls) {
      places.emplace_back();
      for (Value v : call->operands()) {
        auto [at, fresh] = place.emplace(v, inputs.size());
        if (fresh) inputs.push_back(v);
        places.back().push_back(at->second);
        key += fmt::format(" {}", at->second);
      }
    }
    std::string& callee = bodies_[key];
    if (callee.empty()) {
      const Graph& body = body_of(last);
      callee = module.unique_graph_name(body.name());
      Graph& bundle = module.add_graph(callee);
      std::vector<Value> given;
      for (size_t i = 0; i < inputs.size(); ++i)
        given.push_back(bundle.add_input(fmt::format("in{}", i), inputs[i].type()));
      std::vector<Value> results;
      for (const auto& own : places) {
        ValueMap<Value> map;
        for (size_t i = 0; i < own.size(); ++i) map[body.inputs()[i]] = given[own[i]];
        clone_ops(body, bundle, map);
        for (const GraphOutput& o : body.outputs()) results.push_back(map.at(o.value));
      }
      for (size_t i = 0; i < results.size(); ++i)
        bundle.add_output(fmt::format("out{}", i), results[i]);
    }
    OpInit init;
    init.operands = inputs;
    init.loc = last.loc();
    init.from = last.from();
    init.segment = last.segment();
    init.callee = callee;
    Op& bundled = graph_.create(last.def(), std::move(init));
    graph_.move_before(bundled, &last);
    std::vector<SourceLocation> with;
    size_t result = 0;
    for (Op* call : calls) {
      std::vector<SourceLocation> own = call->with();
      own.push_back(call->loc());
      for (const SourceLocation& loc : own)
        if (loc.known() && !(loc == last.loc()) &&
            std::find(with.begin(), with.end(), loc) == with.end())
          with.push_back(loc);
      for (size_t r = 0; r < call->num_results(); ++r, ++result) {
        bundled.result(result).set_name(call->result(r).name());
        call->result(r).replace_all_uses_with(bundled.result(result));
      }
    }
    bundled.set_with(std::move(with));
    context_.remark(last.loc(), fmt::format("bundled: {} calls of @{} as @{}", calls.size(),
                                            last.callee(), callee));
    for (Op* call : calls) graph_.erase(*call);
  }

  Graph& graph_;
  PassContext& context_;
  std::map<std::string, std::string>& bodies_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::unordered_map<const Op*, Unit*> unit_of_;
  std::unordered_map<std::string, bool> plain_;  // by callee
  size_t bundles_ = 0;
  int64_t made_ = 0;  // bytes
};

}  // namespace

void run_bundle(Module& module, PassContext& context) {
  if (!module.target.is_cuda()) return;
  std::vector<Graph*> entries = detail::entry_graphs(module);
  std::map<std::string, std::string> bodies;
  for (Graph* graph : entries) Bundler(*graph, context, bodies).run();
  detail::erase_uncalled(module, entries);
}

}  // namespace sinter
