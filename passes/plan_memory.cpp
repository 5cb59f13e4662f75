// plan-memory: gives every value of the entry graphs its place.
//
// Values live from the op that makes them to their last use, both inclusive, so that an op's result
// never shares bytes with its operands. A reshape is the same storage as its operand (unless the
// pass layout was switched off), and lives as long as any of its names. A value that is an output
// is written to that output's storage; inputs stay where the caller put them. All else lies in one
// arena: the largest values are placed first, each into the smallest gap that holds it.
//
// With `off`, every value has bytes of its own.

#include <fmt/format.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/layout.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <array>
#include <map>

namespace sinter {

namespace {

constexpr int64_t kAlignment = 256;

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
    if (share)
      pack();
    else
      stack();
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
      for (Value v : op.operands())
        if (v) plan_.values[index_.at(v)].last = at;
      for (size_t i = 0; i < op.num_results(); ++i) add(op.result(i), PlannedValue::Arena, at);
      ++at;
    }
    end_ = std::max<int64_t>(at - 1, 0);
    for (const GraphOutput& o : graph_.outputs()) {
      plan_.values[index_.at(o.value)].last = end_;
      if (!graph_.module().find_state(o.name)) plan_.output_bytes += o.value.type().bytes();
    }
  }

  // Views name the storage of their operand, whose life covers theirs.
  void find_roots() {
    root_.resize(plan_.values.size());
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      root_[i] = i;
      PlannedValue& p = plan_.values[i];
      if (p.value.op() == nullptr || !is_free_view(*p.value.op())) continue;
      root_[i] = root_[index_.at(p.value.op()->operand(0))];
      p.where = PlannedValue::Alias;
      p.index = static_cast<int>(root_[i]);
      PlannedValue& root = plan_.values[root_[i]];
      root.last = std::max(root.last, p.last);
    }
  }

  // An alias that is an output takes its storage's owner with it.
  void place_outputs() {
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      PlannedValue& root = plan_.values[root_[index_.at(graph_.outputs()[k].value)]];
      if (root.where != PlannedValue::Arena) continue;
      root.where = PlannedValue::Output;
      root.index = static_cast<int>(k);
    }
  }

  std::vector<size_t> arena_values() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < plan_.values.size(); ++i)
      if (plan_.values[i].where == PlannedValue::Arena && plan_.values[i].bytes > 0)
        out.push_back(i);
    return out;
  }

  void pack() {
    std::vector<size_t> order = arena_values();
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return plan_.values[a].bytes > plan_.values[b].bytes;
    });
    struct Placed {
      int64_t offset, end, first, last;
    };
    std::vector<Placed> placed;  // by offset
    for (size_t i : order) {
      PlannedValue& p = plan_.values[i];
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
      p.offset = best < 0 ? covered : best;
      Placed here{p.offset, p.offset + size, p.first, p.last};
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), here,
                           [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
          here);
      plan_.arena_bytes = std::max(plan_.arena_bytes, here.end);
    }
  }

  void stack() {
    for (size_t i : arena_values()) {
      plan_.values[i].offset = plan_.arena_bytes;
      plan_.arena_bytes += aligned(plan_.values[i].bytes);
    }
  }

  const Graph& graph_;
  MemoryPlan plan_;
  ValueMap<size_t> index_;
  std::vector<size_t> root_;
  int64_t end_ = 0;
};

namespace {

std::string label(const PlannedValue& p) {
  if (!p.value.name().empty()) return "%" + p.value.name();
  return fmt::format("({})", p.value.op()->name());
}

std::string place(const MemoryPlan& plan, const PlannedValue& p) {
  const Graph& graph = p.value.graph();
  auto at = static_cast<size_t>(p.index);
  switch (p.where) {
    case PlannedValue::Arena:
      return fmt::format("arena +{}", p.offset);
    case PlannedValue::Input:
      return graph.module().find_state(p.value.name()) ? "state" : "input";
    case PlannedValue::Output:
      return fmt::format("output {}", graph.outputs()[at].name);
    case PlannedValue::Alias:
      return fmt::format("alias of {}", label(plan.values[at]));
  }
  return "";
}

}  // namespace

const PlannedValue* MemoryPlan::find(Value v) const {
  auto it = lookup_.find(v);
  return it == lookup_.end() ? nullptr : &values[it->second];
}

void MemoryPlan::check() const {
  // Sweeps over the ops; the live ranges of the arena are kept by offset, so that a newcomer can
  // only collide with its neighbours.
  std::vector<const PlannedValue*> starts, ends;
  for (const PlannedValue& p : values) {
    SINTER_CHECK(p.first <= p.last, "{} ends before it begins", label(p));
    if (p.where == PlannedValue::Alias) {
      SINTER_CHECK(p.index >= 0 && static_cast<size_t>(p.index) < values.size(),
                   "{} is an alias of nothing", label(p));
      const PlannedValue& root = values[static_cast<size_t>(p.index)];
      SINTER_CHECK(root.where != PlannedValue::Alias, "{} is an alias of an alias", label(p));
      SINTER_CHECK(root.first <= p.first && p.last <= root.last && p.bytes == root.bytes,
                   "{} outlives or exceeds {}", label(p), label(root));
    }
    if (p.where != PlannedValue::Arena || p.bytes == 0) continue;
    SINTER_CHECK(p.offset >= 0 && p.offset % kAlignment == 0, "{} lies at {}", label(p), p.offset);
    SINTER_CHECK(p.offset + p.bytes <= arena_bytes, "{} leaves the arena", label(p));
    starts.push_back(&p);
    ends.push_back(&p);
  }
  auto by = [](auto key) {
    return [key](const PlannedValue* a, const PlannedValue* b) { return a->*key < b->*key; };
  };
  std::stable_sort(starts.begin(), starts.end(), by(&PlannedValue::first));
  std::stable_sort(ends.begin(), ends.end(), by(&PlannedValue::last));
  std::map<int64_t, const PlannedValue*> live;
  size_t ended = 0;
  for (const PlannedValue* p : starts) {
    for (; ended < ends.size() && ends[ended]->last < p->first; ++ended)
      live.erase(ends[ended]->offset);
    auto after = live.lower_bound(p->offset);
    const PlannedValue* clash = nullptr;
    if (after != live.end() && after->first < p->offset + p->bytes) clash = after->second;
    if (after != live.begin() &&
        std::prev(after)->second->offset + std::prev(after)->second->bytes > p->offset)
      clash = std::prev(after)->second;
    SINTER_CHECK(clash == nullptr, "{} and {} live at once and overlap", label(*clash), label(*p));
    live[p->offset] = p;
  }
}

std::string MemoryPlan::str() const {
  int64_t outside = state_bytes + input_bytes + output_bytes;
  std::string out =
      fmt::format("plan @{}: arena {} bytes, state {}, inputs {}, outputs {}, in all {}\n", graph,
                  arena_bytes, state_bytes, input_bytes, output_bytes, arena_bytes + outside);
  size_t widths[3] = {5, 4, 5};
  std::vector<std::array<std::string, 5>> rows;
  for (const PlannedValue& p : values) {
    SourceLocation loc = p.value.op() != nullptr ? p.value.op()->loc() : SourceLocation{};
    rows.push_back({label(p), p.value.type().str(), place(*this, p),
                    fmt::format("{}..{}", p.first, p.last), loc.known() ? loc.str() : ""});
    for (size_t i = 0; i < 3; ++i) widths[i] = std::max(widths[i], rows.back()[i].size());
  }
  auto line = [&](const auto& name, const auto& type, const auto& where, const auto& bytes,
                  const auto& life, const auto& loc) {
    std::string text = fmt::format("  {:<{}} {:<{}} {:<{}} {:>12} {:>11}  {}", name, widths[0],
                                   type, widths[1], where, widths[2], bytes, life, loc);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line("value", "type", "place", "bytes", "ops", "line");
  for (size_t i = 0; i < rows.size(); ++i)
    line(rows[i][0], rows[i][1], rows[i][2], values[i].bytes, rows[i][3], rows[i][4]);
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
    context.plans[graph->name()] = std::move(plan);
  }
}

}  // namespace sinter
