// plan-memory: gives every value of the entry graphs its place.
//
// Values live from the op that makes them to their last use, both inclusive, so that an op's result
// never shares bytes with its operands, but for this: a large result of a pointwise kernel may take
// over, as an alias of it, an operand that the kernel is the last to read, each element where it
// writes. The gradient of the logits lies on the logits. A view (layout.h) is a part of another
// value's storage, which lives as long as any of its names. A value that is an output is written to
// that output's storage; inputs stay where the caller put them; the next value of a state is
// written where the state lies, if nothing can go wrong by it, and else copied there. All else lies
// in one arena: the largest values are placed first, each into the smallest gap that holds it.
//
// With `off`, every value has bytes of its own, and states are copied at the end.

#include <fmt/format.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/same_place.h>
#include <sinter/passes/detail/state_update.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/layout.h>
#include <sinter/passes/native.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace sinter {

namespace {

constexpr int64_t kAlignment = 256;
// A value is large that takes this part of the arena.
constexpr int64_t kLarge = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

class Planner {
 public:
  explicit Planner(const Graph& graph) : graph_(graph) {}

  MemoryPlan plan(bool share) {
    plan_.graph = graph_.name();
    collect();
    find_roots();
    place_outputs();
    place_states(share);
    if (share)
      share_arena();
    else
      stack();
    stage();
    plan_.lookup_ = std::move(index_);
    return std::move(plan_);
  }

 private:
  size_t add(Value v, PlannedValue::Where where, int64_t at) {
    PlannedValue p;
    p.value = v;
    p.where = where;
    p.bytes = v.type().bytes();
    p.first = p.last = at;
    index_[v] = plan_.values.size();
    plan_.values.push_back(p);
    return plan_.values.size() - 1;
  }

  // One entry per value, with its own lifetime.
  void collect() {
    for (Value v : graph_.inputs()) {
      size_t i = add(v, PlannedValue::Input, 0);
      plan_.values[i].index = v.index();
      (graph_.module().find_state(v.name()) ? plan_.state_bytes : plan_.input_bytes) +=
          v.type().bytes();
    }
    int64_t at = 0;
    for (Op& op : graph_) {
      if (detail::checks_indices(op)) last_check_ = at;
      for (Value v : op.operands())
        if (v) plan_.values[index_.at(v)].last = at;
      for (size_t i = 0; i < op.num_results(); ++i) add(op.result(i), PlannedValue::Arena, at);
      if (int64_t bytes = native_scratch(op, graph_.module().target); bytes > 0)
        plan_.scratch.push_back({&op, 0, bytes, at});
      ++at;
    }
    count_ = at;
    end_ = std::max<int64_t>(at - 1, 0);
    for (const PlannedValue& p : plan_.values) last_use_.push_back(p.last);
    for (const GraphOutput& o : graph_.outputs()) {
      bool is_state = graph_.module().find_state(o.name) != nullptr;
      // States have moments of their own; see place_states().
      if (!is_state || o.value.op() == nullptr) plan_.values[index_.at(o.value)].last = end_;
      if (!is_state) plan_.output_bytes += o.value.type().bytes();
    }
  }

  // Views name the storage of another value, whose life covers theirs.
  void find_roots() {
    Views views(graph_);
    root_.resize(plan_.values.size());
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      root_[i] = i;
      PlannedValue& p = plan_.values[i];
      const StridedView* view = views.find(p.value);
      if (view == nullptr) continue;
      root_[i] = index_.at(view->root);
      p.where = PlannedValue::Alias;
      p.index = static_cast<int>(root_[i]);
      p.offset = view->offset * size_of(p.value.dtype());
      PlannedValue& root = plan_.values[root_[i]];
      made_.try_emplace(root_[i], root.first);
      root.first = std::min(root.first, p.first);
      root.last = std::max(root.last, p.last);
      last_use_[root_[i]] = std::max(last_use_[root_[i]], last_use_[i]);
    }
  }

  size_t root_of(Value v) const { return root_[index_.at(v)]; }
  // Whether a value is a part of its storage only.
  bool is_part(Value v) const {
    return plan_.values[index_.at(v)].bytes != plan_.values[root_of(v)].bytes;
  }

  // An alias that is an output takes its storage's owner with it, unless it is a part of it.
  void place_outputs() {
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      if (graph_.module().find_state(graph_.outputs()[k].name)) continue;
      Value v = graph_.outputs()[k].value;
      PlannedValue& root = plan_.values[root_of(v)];
      if (root.where != PlannedValue::Arena || is_part(v)) continue;
      root.where = PlannedValue::Output;
      root.index = static_cast<int>(k);
    }
  }

  // The state outputs; `in_place` false: all of them are copied at the end.
  void place_states(bool in_place) {
    std::vector<size_t> times(plan_.values.size());  // how many outputs lie in a storage
    for (const GraphOutput& o : graph_.outputs()) ++times[root_of(o.value)];
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      const GraphOutput& o = graph_.outputs()[k];
      if (!graph_.module().find_state(o.name)) continue;
      size_t root = root_of(o.value);
      Value old = graph_.find_input(o.name);
      if (old && index_.at(old) == root) continue;
      PlannedValue& next = plan_.values[root];
      StateUpdate update;
      update.output = k;
      // A value that is written in parts is whole where its own op stands.
      auto whole = made_.find(root);
      int64_t made = whole != made_.end() ? whole->second : next.first;
      update.after = in_place ? std::max(made, last_check_) : count_;
      if (old) update.after = std::max(update.after, last_use_[index_.at(old)]);
      bool old_is_output = old && times[index_.at(old)] > 0;
      if (old_is_output) update.after = count_;
      update.reason = in_place ? why_copied(root, is_part(o.value), old, old_is_output, times[root])
                               : "plan-memory is off";
      update.in_place = update.reason.empty();
      if (update.in_place) {
        next.where = PlannedValue::State;
        next.index = static_cast<int>(k);
      } else if (is_state(next)) {
        update.after = count_;
        update.staged = 0;  // where: once the arena is packed
      }
      next.last = std::max(next.last, update.in_place ? end_ : std::min(update.after, end_));
      plan_.updates.push_back(std::move(update));
    }
    std::stable_sort(plan_.updates.begin(), plan_.updates.end(),
                     [](const StateUpdate& a, const StateUpdate& b) { return a.after < b.after; });
  }

  bool is_state(const PlannedValue& p) const {
    return p.where == PlannedValue::Input && graph_.module().find_state(p.value.name());
  }

  std::string why_copied(size_t root, bool part, Value old, bool old_is_output,
                         size_t times) const {
    const PlannedValue& next = plan_.values[root];
    if (part) return "its next value is a part of another one";
    if (next.where == PlannedValue::Input) return "it becomes an input's value";
    if (times > 1 || next.where != PlannedValue::Arena)
      return "its next value is an output besides";
    if (last_check_ >= next.first) return "an index is checked afterwards";
    const Op& op = *next.value.op();
    std::vector<size_t> operands;
    if (old) {
      size_t state = index_.at(old);
      if (old_is_output || last_use_[state] > next.first) return "its old value is read afterwards";
      for (size_t i = 0; i < op.operands().size(); ++i)
        if (Value v = op.operand(i); v && root_of(v) == state) {
          if (is_part(v)) return "a part of its old value is read";
          operands.push_back(i);
        }
    }
    return detail::why_not_in_place(op, static_cast<size_t>(next.value.index()), operands);
  }

  // What lies in the arena: values, and the scratch memory of ops.
  struct Item {
    int64_t bytes, first, last;
    int64_t* offset;
  };
  std::vector<Item> arena_items() {
    std::vector<Item> out;
    for (PlannedValue& p : plan_.values)
      if (p.where == PlannedValue::Arena && p.bytes > 0)
        out.push_back({p.bytes, p.first, p.last, &p.offset});
    for (PlannedScratch& s : plan_.scratch) out.push_back({s.bytes, s.at, s.at, &s.offset});
    return out;
  }

  // Large results take over the storage of an operand, if the arena shrinks by it.
  void share_arena() {
    const MemoryPlan before = plan_;
    pack();
    MemoryPlan apart = std::move(plan_);
    plan_ = before;
    if (take_over(apart.arena_bytes / kLarge) > 0) pack();
    if (plan_.arena_bytes == 0 || plan_.arena_bytes >= apart.arena_bytes) plan_ = std::move(apart);
  }

  // Where a kernel is the last to read an operand, element by element where it writes a result of
  // the same size. How many results of `least` bytes or more.
  size_t take_over(int64_t least) {
    // Outputs are copied from where they lie, those of states behind the op that ends their life.
    std::set<size_t> copied;
    for (const GraphOutput& o : graph_.outputs()) copied.insert(root_of(o.value));
    size_t count = 0;
    int64_t at = -1;
    for (Op& op : graph_) {
      ++at;
      if (!op.is("fusion")) continue;
      std::vector<size_t> taken;
      for (size_t r = 0; r < op.num_results(); ++r) {
        const size_t result = index_.at(op.result(r));
        PlannedValue& p = plan_.values[result];
        if (p.where != PlannedValue::Arena || p.bytes < least || p.first != at) continue;
        for (size_t i = 0; i < op.operands().size(); ++i) {
          const size_t root = root_of(op.operand(i));
          if (!dies_whole(op, i, at) || plan_.values[root].bytes != p.bytes ||
              size_of(op.operand(i).dtype()) != size_of(p.value.dtype()) || copied.contains(root) ||
              std::find(taken.begin(), taken.end(), root) != taken.end() ||
              !detail::reads_where_it_writes(op, i))
            continue;
          taken.push_back(root);
          move_onto(result, root);
          ++count;
          break;
        }
      }
    }
    return count;
  }
  // Whether an operand's storage is the arena's, is read whole, by it alone, and never again.
  bool dies_whole(const Op& op, size_t operand, int64_t at) const {
    const Value v = op.operand(operand);
    const PlannedValue& root = plan_.values[root_of(v)];
    if (root.where != PlannedValue::Arena || root.last != at || is_part(v)) return false;
    size_t names = 0;
    for (Value other : op.operands()) names += root_of(other) == root_of(v);
    return names == 1;
  }
  // With all that is in the storage of the value already.
  void move_onto(size_t value, size_t root) {
    plan_.values[root].last = std::max(plan_.values[root].last, plan_.values[value].last);
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      if (root_[i] != value) continue;
      root_[i] = root;
      plan_.values[i].where = PlannedValue::Alias;
      plan_.values[i].index = static_cast<int>(root);
    }
  }

  void pack() {
    std::vector<Item> order = arena_items();
    std::stable_sort(order.begin(), order.end(),
                     [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    struct Placed {
      int64_t offset, end, first, last;
    };
    std::vector<Placed> placed;  // by offset
    for (const Item& p : order) {
      int64_t size = aligned(p.bytes), covered = 0;
      int64_t best = -1, best_gap = 0;
      for (const Placed& other : placed) {
        if (other.last < p.first || other.first > p.last) continue;
        int64_t gap = other.offset - covered;
        if (gap >= size && (best < 0 || gap < best_gap)) {
          best = covered;
          best_gap = gap;
        }
        covered = std::max(covered, other.end);
      }
      *p.offset = best < 0 ? covered : best;
      Placed here{*p.offset, *p.offset + size, p.first, p.last};
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), here,
                           [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
          here);
      plan_.arena_bytes = std::max(plan_.arena_bytes, here.end);
    }
  }

  void stack() {
    for (const Item& item : arena_items()) {
      *item.offset = plan_.arena_bytes;
      plan_.arena_bytes += aligned(item.bytes);
    }
  }

  void stage() {
    for (StateUpdate& u : plan_.updates) {
      if (u.staged < 0) continue;
      u.staged = plan_.arena_bytes;
      plan_.arena_bytes += aligned(graph_.outputs()[u.output].value.type().bytes());
    }
  }

  const Graph& graph_;
  MemoryPlan plan_;
  ValueMap<size_t> index_;
  std::vector<size_t> root_;
  std::map<size_t, int64_t> made_;  // of roots that have views: the op that makes them
  std::vector<int64_t> last_use_;   // the last op that reads a value; its views too, for a root
  int64_t last_check_ = -1;         // the last op that may find an index out of range
  int64_t count_ = 0, end_ = 0;     // of ops; the last op
};

namespace {

std::string label(const PlannedValue& p) {
  return detail::name_of(p.value);
}

std::string label(const PlannedScratch& s) {
  return fmt::format("(scratch of {})", s.op->name());
}

std::string place(const MemoryPlan& plan, const PlannedValue& p) {
  const Graph& graph = p.value.graph();
  auto at = static_cast<size_t>(p.index);
  switch (p.where) {
    case PlannedValue::Arena:
      return fmt::format("arena +{}", p.offset);
    case PlannedValue::Input: {
      const State* state = graph.module().find_state(p.value.name());
      if (state == nullptr) return "input";
      return state->cast_of.empty() ? "state" : "state, cast of " + state->cast_of;
    }
    case PlannedValue::Output:
      return fmt::format("output {}", graph.outputs()[at].name);
    case PlannedValue::State:
      return fmt::format("state {}", graph.outputs()[at].name);
    case PlannedValue::Alias:
      return fmt::format("alias of {}{}", label(plan.values[at]),
                         p.offset == 0 ? "" : fmt::format(" +{}", p.offset));
  }
  return "";
}

}  // namespace

const PlannedValue* MemoryPlan::find(Value v) const {
  auto it = lookup_.find(v);
  return it == lookup_.end() ? nullptr : &values[it->second];
}

const PlannedScratch* MemoryPlan::find_scratch(const Op& op) const {
  for (const PlannedScratch& s : scratch)
    if (s.op == &op) return &s;
  return nullptr;
}

void MemoryPlan::check() const {
  check_states();
  // Sweeps over the ops; the live ranges of the arena are kept by offset, so that a newcomer can
  // only collide with its neighbours.
  struct Span {
    int64_t offset, bytes, first, last;
    const PlannedValue* value;
    const PlannedScratch* scratch;
    std::string name() const { return value != nullptr ? label(*value) : label(*scratch); }
  };
  std::vector<Span> spans;
  for (const PlannedScratch& s : scratch)
    spans.push_back({s.offset, s.bytes, s.at, s.at, nullptr, &s});
  for (const PlannedValue& p : values) {
    SINTER_CHECK(p.first <= p.last, "{} ends before it begins", label(p));
    if (p.where == PlannedValue::Alias) {
      SINTER_CHECK(p.index >= 0 && static_cast<size_t>(p.index) < values.size(),
                   "{} is an alias of nothing", label(p));
      const PlannedValue& root = values[static_cast<size_t>(p.index)];
      SINTER_CHECK(root.where != PlannedValue::Alias, "{} is an alias of an alias", label(p));
      SINTER_CHECK(root.first <= p.first && p.last <= root.last && p.offset >= 0 &&
                       p.offset + p.bytes <= root.bytes,
                   "{} outlives or exceeds {}", label(p), label(root));
    }
    if (p.where != PlannedValue::Arena || p.bytes == 0) continue;
    spans.push_back({p.offset, p.bytes, p.first, p.last, &p, nullptr});
  }
  std::vector<const Span*> starts, ends;
  for (const Span& p : spans) {
    SINTER_CHECK(p.offset >= 0 && p.offset % kAlignment == 0, "{} lies at {}", p.name(), p.offset);
    SINTER_CHECK(p.offset + p.bytes <= arena_bytes, "{} leaves the arena", p.name());
    starts.push_back(&p);
    ends.push_back(&p);
  }
  auto by = [](auto key) {
    return [key](const Span* a, const Span* b) { return a->*key < b->*key; };
  };
  std::stable_sort(starts.begin(), starts.end(), by(&Span::first));
  std::stable_sort(ends.begin(), ends.end(), by(&Span::last));
  std::map<int64_t, const Span*> live;
  size_t ended = 0;
  for (const Span* p : starts) {
    for (; ended < ends.size() && ends[ended]->last < p->first; ++ended)
      live.erase(ends[ended]->offset);
    auto after = live.lower_bound(p->offset);
    const Span* clash = nullptr;
    if (after != live.end() && after->first < p->offset + p->bytes) clash = after->second;
    if (after != live.begin() &&
        std::prev(after)->second->offset + std::prev(after)->second->bytes > p->offset)
      clash = std::prev(after)->second;
    SINTER_CHECK(clash == nullptr, "{} and {} live at once and overlap", clash->name(), p->name());
    live[p->offset] = p;
  }
}

// Nobody reads the old value of a state once the next one may be there.
void MemoryPlan::check_states() const {
  for (const StateUpdate& u : updates) {
    if (values.empty()) continue;
    const Graph& g = values[0].value.graph();
    SINTER_CHECK(u.output < g.outputs().size(), "@{} has no output {}", graph, u.output);
    const PlannedValue* next = find(g.outputs()[u.output].value);
    const PlannedValue* old = find(g.find_input(g.outputs()[u.output].name));
    SINTER_CHECK(next != nullptr, "the next value of {} has no place", g.outputs()[u.output].name);
    if (next->where == PlannedValue::Alias) next = &values[static_cast<size_t>(next->index)];
    SINTER_CHECK((next->where == PlannedValue::State) == u.in_place, "{} is not where it is said",
                 label(*next));
    if (old == nullptr) continue;
    int64_t from = u.in_place ? next->first : u.after;
    SINTER_CHECK(old->last <= from && !(u.in_place && g.is_output(old->value)),
                 "{} is read after it was overwritten", label(*old));
  }
}

std::string MemoryPlan::str() const {
  int64_t outside = state_bytes + input_bytes + output_bytes;
  std::string out =
      fmt::format("plan @{}: arena {} bytes, state {}, inputs {}, outputs {}, in all {}\n", graph,
                  arena_bytes, state_bytes, input_bytes, output_bytes, arena_bytes + outside);
  size_t widths[3] = {5, 4, 5};
  std::vector<std::array<std::string, 6>> rows;
  auto row = [&](std::string name, std::string type, std::string where, int64_t bytes,
                 int64_t first, int64_t last, const Op* op) {
    rows.push_back({std::move(name), std::move(type), std::move(where), std::to_string(bytes),
                    fmt::format("{}..{}", first, last),
                    op != nullptr && op->loc().known() ? op->loc().str() : ""});
    for (size_t i = 0; i < 3; ++i) widths[i] = std::max(widths[i], rows.back()[i].size());
  };
  for (const PlannedValue& p : values)
    row(label(p), p.value.type().str(), place(*this, p), p.bytes, p.first, p.last, p.value.op());
  for (const PlannedScratch& s : scratch)
    row(label(s), "", fmt::format("arena +{}", s.offset), s.bytes, s.at, s.at, s.op);
  auto line = [&](const auto& name, const auto& type, const auto& where, const auto& bytes,
                  const auto& life, const auto& loc) {
    std::string text = fmt::format("  {:<{}} {:<{}} {:<{}} {:>12} {:>11}  {}", name, widths[0],
                                   type, widths[1], where, widths[2], bytes, life, loc);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line("value", "type", "place", "bytes", "ops", "line");
  for (const auto& r : rows) line(r[0], r[1], r[2], r[3], r[4], r[5]);
  for (const StateUpdate& u : updates)
    if (!u.in_place)
      out += fmt::format("  state {} is copied after op {}: {}\n",
                         values[0].value.graph().outputs()[u.output].name, u.after, u.reason);
  return out;
}

MemoryPlan plan_memory(const Graph& graph, bool share) {
  return Planner(graph).plan(share);
}

void run_plan_memory(Module& module, PassContext& context) {
  bool share = !context.has_option("off");
  context.plans.clear();
  for (Graph* graph : detail::entry_graphs(module)) {
    MemoryPlan plan = plan_memory(*graph, share);
    plan.check();
    context.remark({}, fmt::format("@{}: arena {} bytes for {} values", graph->name(),
                                   plan.arena_bytes, plan.values.size()));
    for (const StateUpdate& u : plan.updates)
      if (!u.in_place) {
        const GraphOutput& o = graph->outputs()[u.output];
        const Op* op = o.value.op();
        context.remark(op != nullptr ? op->loc() : SourceLocation{},
                       fmt::format("@{}: state {} is not updated in place, {} bytes are copied: {}",
                                   graph->name(), o.name, o.value.type().bytes(), u.reason));
      }
    context.plans[graph->name()] = std::move(plan);
  }
}

}  // namespace sinter
