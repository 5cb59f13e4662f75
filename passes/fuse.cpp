// fuse: ops that can share one kernel become one `fusion` op calling a graph of them.
//
// Ops are visited last to first. An op joins the group of a consumer when the group keeps an
// iteration space (iteration_space.h), no cycle arises, and nothing costly would be computed many
// times over. Views and constants are never stored for their own sake: each group that reads
// through one gets a copy, if one reader alone makes a kernel. So does a cheap op with one large
// operand and consumers in several groups, since reading that operand costs no more than reading
// the result; and a function (exp, silu) where a group of the backward pass would have it kept.
// Afterwards groups over the same data are merged, also where one reads what the other makes, and
// column sums with what makes their elements. Equal bodies become one graph.
//
// Switched off, every op becomes a kernel of its own.

#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/passes/detail/op_cost.h>
#include <sinter/passes/detail/op_tree.h>
#include <sinter/passes/detail/stored_views.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/iteration_space.h>
#include <sinter/passes/layout.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace sinter {
namespace {

constexpr size_t kMaxOps = 64;        // bounds registers, and recursion over a body
constexpr size_t kMaxArguments = 24;  // inputs and results of one kernel
// How far apart readers of one value may stand, counted in its readers, to be looked at together:
// every layer reads a table of positions.
constexpr size_t kMaxSiblings = 8;
// How many units are looked at to find out whether one depends on another.
constexpr size_t kMaxVisits = 1 << 17;
constexpr int64_t kCachedElements = 32768;  // reading so many again and again costs little
constexpr int64_t kShortestRow = 8;         // neighbours that fill a sector of memory

struct Group {
  std::vector<Op*> ops;  // members by position; copies of views and cheap ops are not among them
  IterationSpace space;
  bool merged_away = false;

  // Elements that the kernel visits.
  int64_t work() const { return space.p * std::max(space.q, space.r); }
};

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context, std::map<std::string, std::string>& bodies, bool off)
      : graph_(graph), views_(graph), tree_(graph), context_(context), bodies_(bodies), off_(off) {
    for (const GraphOutput& output : graph.outputs()) outputs_.insert(output.value);
  }

  void run() {
    classify();
    detail::store_unreadable(
        graph_,
        {[this](const Op& op) { return is_kernel(op); },
         [this](const Op& op) { return copied(op); }, [this](Op& op) { return store_view(op); }},
        context_);
    std::vector<Op*> order;
    for (Op& op : graph_) order.push_back(&op);
    for (size_t i = order.size(); i-- > 0;) visit(*order[i]);
    if (!off_) {
      merge_siblings();
      merge_columns();
    }
    emit();
  }

 private:
  bool is_output(Value v) const { return outputs_.contains(v); }

  // ---- what kind of op it is

  bool copied(const Op& op) const { return copied_.contains(&op); }
  Group* group_of(const Op& op) const {
    auto it = group_of_.find(&op);
    return it == group_of_.end() ? nullptr : it->second;
  }

  // Decides which views and constants are copied into their consumers. One with a consumer that is
  // no kernel, or that is an output, must be stored; a reshape then stays as it is, an alias.
  void classify() {
    std::vector<Op*> order;
    for (Op& op : graph_) order.push_back(&op);
    for (size_t i = order.size(); i-- > 0;) {
      Op& op = *order[i];
      OpKind kind = op.def().kind;
      if (views_.is_strided(op)) kept_.insert(&op);
      if (kept_.contains(&op) || !detail::fusible(op) ||
          (kind != OpKind::View && kind != OpKind::Source))
        continue;
      bool stored = off_ || is_output(op.result()) || detail::is_part_of_stored(op);
      for (const Use& use : op.result().uses())
        stored = stored || !detail::fusible(*use.op) || kept_.contains(use.op);
      if (!stored)
        copied_.insert(&op);
      else if (stays_view(op))
        kept_.insert(&op);
    }
  }
  bool stays_view(const Op& op) const {
    return views_.is_free(op) && (off_ || !op.is("slice") || detail::is_part_of_stored(op));
  }
  bool store_view(Op& op) {
    if (copied_.erase(&op) == 0) return false;
    if (!stays_view(op)) return true;
    kept_.insert(&op);
    for (Value v : op.operands())
      if (v.op() != nullptr && v.op()->def().kind == OpKind::View) store_view(*v.op());
    return true;
  }
  bool is_kernel(const Op& op) const { return detail::fusible(op) && !kept_.contains(&op); }

  // ---- who uses what

  // The ops that read a result, through copies.
  void readers(const Op& op, std::vector<Op*>& out) const {
    std::vector<const Op*> stack{&op};
    std::unordered_set<const Op*> seen;
    while (!stack.empty()) {
      const Op* top = stack.back();
      stack.pop_back();
      for (size_t r = 0; r < top->num_results(); ++r)
        for (const Use& use : top->result(r).uses()) {
          if (!seen.insert(use.op).second) continue;
          if (copied(*use.op))
            stack.push_back(use.op);
          else
            out.push_back(use.op);
        }
    }
  }

  // A group, or an op that is in none.
  struct Unit {
    const Group* group;
    const Op* op;
    const void* key() const { return group ? static_cast<const void*>(group) : op; }
  };
  Unit unit_of(const Op& op) const {
    const Group* g = group_of(op);
    return {g, g ? nullptr : &op};
  }
  static std::vector<const Op*> members(const Unit& u) {
    if (!u.group) return {u.op};
    return {u.group->ops.begin(), u.group->ops.end()};
  }
  // The last position among the unit's ops and all that it waits for. A group's ops may stand
  // apart, and with it what waits for its first one waits for its last.
  int64_t reach(const Unit& u) const {
    auto it = reach_.find(u.key());
    if (it != reach_.end()) return it->second;
    return u.group ? u.group->ops.back()->position() : u.op->position();
  }
  // After a change of `g`: what it waits for, and what waits for it, reach as far.
  void spread(const Group& g) {
    Unit changed{&g, nullptr};
    int64_t& own = reach_[&g];
    own = g.ops.back()->position();
    for (const Op* op : g.ops)
      for (Value v : op->operands())
        if (Op* up = v ? v.op() : nullptr; up && group_of(*up) != &g)
          own = std::max(own, reach(unit_of(*up)));
    std::vector<Unit> stack{changed};
    while (!stack.empty()) {
      Unit top = stack.back();
      stack.pop_back();
      int64_t least = reach(top);
      for (const Op* op : members(top))
        for (size_t r = 0; r < op->num_results(); ++r)
          for (const Use& use : op->result(r).uses()) {
            Unit user = unit_of(*use.op);
            if (reach(user) >= least) continue;
            reach_[user.key()] = least;
            stack.push_back(user);
          }
    }
  }

  // Whether `from` feeds `to` along any path outside `to`; groups count as one. Looks from `to` up:
  // what reaches less far than `from` begins does not depend on it, which leaves little to look at.
  // What is not found out in kMaxVisits steps counts as fed.
  bool reaches(const Op* from, const Group* to) const {
    const Group* source = group_of(*from);
    if (source == to) return true;
    for (const Op* s : members({source, from}))
      for (const Op* t : to->ops)
        if (tree_.is_below(t, s)) return true;
    int64_t first = source ? source->ops.front()->position() : from->position();
    std::vector<const Op*> stack(to->ops.begin(), to->ops.end());
    std::unordered_set<const void*> seen{to};
    while (!stack.empty()) {
      const Op* top = stack.back();
      stack.pop_back();
      for (Value v : top->operands()) {
        const Op* up = v ? v.op() : nullptr;
        if (!up) continue;
        Unit unit = unit_of(*up);
        if (source ? unit.group == source : up == from) return true;
        if (!seen.insert(unit.key()).second || reach(unit) < first) continue;
        if (seen.size() > kMaxVisits) return true;
        for (const Op* op : members(unit)) stack.push_back(op);
      }
    }
    return false;
  }

  // Whether `from` feeds `to` by way of ops in neither: as one kernel they would wait for
  // themselves.
  bool detours(const Group* from, const Group* to) const {
    int64_t first = from->ops.front()->position();
    // Ops of `to` with the copies that it reads through, and those outside.
    std::vector<std::pair<const Op*, bool>> stack;
    for (const Op* op : to->ops) stack.emplace_back(op, true);
    std::unordered_set<const void*> seen{to}, copies;
    while (!stack.empty()) {
      auto [top, direct] = stack.back();
      stack.pop_back();
      for (Value v : top->operands()) {
        const Op* up = v ? v.op() : nullptr;
        if (!up) continue;
        Unit unit = unit_of(*up);
        if (unit.group == from) {
          if (direct) continue;
          return true;
        }
        if (direct && copied(*up)) {
          if (copies.insert(up).second) stack.emplace_back(up, true);
          continue;
        }
        if (!seen.insert(unit.key()).second || reach(unit) < first) continue;
        if (seen.size() > kMaxVisits) return true;
        for (const Op* op : members(unit)) stack.emplace_back(op, false);
      }
    }
    return false;
  }

  // Whether an operand of `op` comes from `g` by way of ops outside.
  bool waits_for(const Op& op, const Group& g, const std::unordered_set<const Op*>& inside) const {
    std::vector<const Op*> stack{&op};
    std::unordered_set<const Op*> seen{&op};
    int64_t first = g.ops.front()->position();
    while (!stack.empty()) {
      const Op* top = stack.back();
      stack.pop_back();
      if (top != &op && group_of(*top) == &g) return true;
      if (seen.size() > kMaxVisits) return true;
      if (top != &op && inside.contains(top)) continue;
      std::vector<const Op*> tops{top};
      if (const Group* other = group_of(*top)) tops.assign(other->ops.begin(), other->ops.end());
      for (const Op* t : tops)
        for (Value v : t->operands()) {
          const Op* up = v ? v.op() : nullptr;
          // Members read directly are no detour.
          if (!up || (t == &op && inside.contains(up))) continue;
          if (reach(unit_of(*up)) < first) continue;
          if (seen.insert(up).second) stack.push_back(up);
        }
    }
    return false;
  }

  // ---- sets of ops

  // The ops of a body: members and the copies they read through, by position.
  std::vector<Op*> body_ops(const std::vector<Op*>& members) const {
    std::vector<Op*> all = members;
    std::unordered_set<const Op*> seen(members.begin(), members.end());
    for (size_t i = 0; i < all.size(); ++i)
      for (Value v : all[i]->operands()) {
        Op* op = v ? v.op() : nullptr;
        if (op && copied(*op) && seen.insert(op).second) all.push_back(op);
      }
    std::sort(all.begin(), all.end(),
              [](const Op* a, const Op* b) { return a->position() < b->position(); });
    return all;
  }

  // Values that a set of members must store. A member that nothing reads (dce is off) stores its
  // result all the same, so that each has a place in the iteration space.
  std::vector<Value> results_of(const std::vector<Op*>& members) const {
    std::unordered_set<const Op*> inside(members.begin(), members.end());
    std::vector<Value> results;
    for (Op* op : members) {
      std::vector<Op*> users;
      readers(*op, users);
      bool outside =
          std::any_of(users.begin(), users.end(), [&](Op* u) { return !inside.contains(u); });
      size_t before = results.size();
      for (size_t r = 0; r < op->num_results(); ++r)
        if (outside || is_output(op->result(r))) results.push_back(op->result(r));
      if (users.empty() && results.size() == before) results.push_back(op->result());
    }
    return results;
  }

  // Whether one of the readers would make an op of one element a row, say, again at every element,
  // where a division takes longer than to read what it gives. Rows make it once each.
  static bool slows(const Op& op, const std::vector<Group*>& readers) {
    int64_t mine = op.result().type().elements();
    return detail::has_division(op) &&
           std::any_of(readers.begin(), readers.end(), [&](const Group* g) {
             return g->space.kind != IterationSpace::Row && mine > 1 && mine < g->work();
           });
  }
  // Whether an op is made again by each of several readers, and not stored for them.
  bool is_repeated(const Op& op, const std::vector<Group*>& readers) const {
    auto as_large = [&](const Group* g) { return g->work() < 2 * op.result().type().elements(); };
    bool repeated =
        detail::is_cheap(op) || (bridges_passes(op, readers) && detail::is_cheaper_than_kept(op) &&
                                 std::all_of(readers.begin(), readers.end(), as_large));
    return repeated && large_operands(op) <= 1 && !slows(op, readers) && !narrows(op);
  }
  static bool is_backward(const Group& g) { return detail::count_backward(g.ops) == g.ops.size(); }
  static bool in_forward(const Group& g) { return detail::count_backward(g.ops) == 0; }
  // Whether groups of the forward pass and of the backward pass read the op's result.
  static bool bridges_passes(const Op& op, const std::vector<Group*>& readers) {
    auto backward = [](const Group* g) { return is_backward(*g); };
    return !op.from().known() && std::any_of(readers.begin(), readers.end(), backward) &&
           !std::all_of(readers.begin(), readers.end(), backward);
  }

  // Operands as large as the result, seen through copied broadcasts.
  int large_operands(const Op& op) const {
    int count = 0;
    for (Value v : op.operands()) {
      while (v.op() && copied(*v.op()) && !v.op()->operands().empty()) v = v.op()->operand(0);
      bool constant = v.op() && copied(*v.op());
      count += !constant && v.type().elements() >= op.result().type().elements();
    }
    return count;
  }

  // Whether the op's result is narrower than what would be stored in its place if each reader made
  // it: the residual stream, a sum in f32, is stored as the bf16 that it is rounded to.
  bool narrows(const Op& op) const {
    const Op* reader = &op;
    const int64_t width = size_of(op.result().dtype());
    for (;;) {
      const Op* from = large_operand(*reader);
      // What is no kernel's result, or has other readers, is stored as it is.
      if (from == nullptr || !is_kernel(*from)) return false;
      if (size_of(from->result().dtype()) <= width || is_output(from->result())) return false;
      std::vector<Op*> users;
      readers(*from, users);
      if (users.size() != 1) return false;
      if (!detail::is_cheap(*from) || large_operands(*from) > 1) return true;
      reader = from;
    }
  }
  // The op that makes an operand as large as the op's result, seen through what is copied.
  const Op* large_operand(const Op& op) const {
    for (Value v : op.operands()) {
      while (v.op() && copied(*v.op()) && !v.op()->operands().empty()) v = v.op()->operand(0);
      bool constant = v.op() && copied(*v.op());
      if (!constant && v.type().elements() >= op.result().type().elements()) return v.op();
    }
    return nullptr;
  }

  // ---- joining
  static std::vector<Op*> united(std::vector<Op*> a, const std::vector<Op*>& b) {
    a.insert(a.end(), b.begin(), b.end());
    std::sort(a.begin(), a.end(),
              [](const Op* x, const Op* y) { return x->position() < y->position(); });
    return a;
  }

  // The space of a kernel of these members, or why there can be none.
  Result<IterationSpace> kernel_space(const std::vector<Op*>& members,
                                      std::span<const Value> once = {}) const {
    if (members.size() > kMaxOps)
      return Diagnostic{{}, fmt::format("a kernel holds at most {} ops", kMaxOps)};
    return space_of(members, once, kMaxArguments);
  }
  Result<IterationSpace> space_of(const std::vector<Op*>& members, std::span<const Value> once = {},
                                  size_t arguments = SIZE_MAX) const {
    std::vector<Op*> body = body_ops(members);
    std::vector<const Op*> ops(body.begin(), body.end());
    std::vector<Value> results = results_of(members);
    if (count_buffers(ops, results) > arguments)
      return Diagnostic{{}, fmt::format("a kernel takes at most {} inputs and results", arguments)};
    return iteration_space(ops, results, once);
  }

  // The path from a per-row op up to a reduction over rows of `elements / rows`, the op included.
  std::vector<Op*> path_to_reduction(Op& op, int64_t elements) const {
    int64_t rows = op.result().type().elements();
    std::vector<Op*> path{&op};
    for (size_t i = 0; i < path.size() && path.size() < 8; ++i) {
      if (path[i]->def().kind == OpKind::Reduce) return path;
      for (Value v : path[i]->operands()) {
        while (v && v.op() && copied(*v.op()) && !v.op()->operands().empty())
          v = v.op()->operand(0);
        Op* up = v ? v.op() : nullptr;
        if (!up || copied(*up) || !is_kernel(*up) || group_of(*up)) continue;
        if (v.type().elements() != rows) continue;
        bool reduction = up->def().kind == OpKind::Reduce &&
                         up->operand(0).type().elements() == elements && elements > rows;
        bool pointwise = up->def().kind == OpKind::Pointwise;
        if (!reduction && !pointwise) continue;
        if (std::find(path.begin(), path.end(), up) == path.end()) path.push_back(up);
        if (reduction) return path;
      }
    }
    return {};
  }

  // Tries to add `op` (and, for a per-row op, the ops up to the reduction it comes from) to `g`.
  std::optional<std::string> try_join(Op& op, Group& g) {
    for (Op* member : g.ops)
      if (member->def().kind == OpKind::Prefix)
        return fmt::format("{} reads only what is stored", member->name());
      else if (member->def().kind == OpKind::Scatter)
        return fmt::format("{} would be repeated for every row of {}", op.name(), member->name());
    int64_t elements = g.work(), mine = op.result().type().elements();
    std::vector<Op*> joining{&op};
    if (op.def().kind == OpKind::Scatter) return "a scatter is stored as a whole";
    if (detail::is_check(op) && (mine > elements || detail::count_views(op.result()) > 0))
      return fmt::format("{} looks at all of its {} elements", op.name(), mine);
    if (g.space.by_parts && detail::count_views(op.result()) > 1 && !detail::is_cheap(op))
      return fmt::format("{} would be computed for each part", op.name());
    if (op.def().kind == OpKind::Prefix) return "a running fold is stored as it is";
    // What a pad or a slice adds to a kernel's elements makes no op run twice.
    if (mine < elements && 2 * mine <= elements && op.def().kind != OpKind::Reduce) {
      bool per_result = mine == g.space.p && g.space.kind != IterationSpace::Pointwise;
      if (!per_result) {
        std::vector<Op*> path = path_to_reduction(op, elements);
        if (!path.empty())
          joining = path;
        else if (!detail::is_cheap(op))
          return fmt::format("{} has {} elements and would be computed {} times", op.name(), mine,
                             mine > 0 ? elements / mine : 0);
        // Reading its result again and again beats reading all that it reads.
        else if (mine > kCachedElements && large_operands(op) > 1)
          return fmt::format("{} reads {} values as large as its own {} elements, {} times",
                             op.name(), large_operands(op), mine, elements / mine);
      }
    }
    std::vector<Op*> members = united(g.ops, joining);
    Result<IterationSpace> space = kernel_space(members);
    if (!space.ok()) return space.error().message;
    // Which elements it would keep company with is seen when all groups stand: see merge_columns.
    if (space.value().elements)
      return fmt::format("it would be stored with its {} column sums", space.value().p);
    std::unordered_set<const Op*> inside(members.begin(), members.end());
    for (Op* j : joining) {
      std::vector<Op*> users;
      readers(*j, users);
      for (Op* u : users)
        if (!inside.contains(u) && reaches(u, &g))
          return fmt::format("{} also feeds an op that the kernel waits for", j->name());
      // A member that stands earlier (a path brought it) may feed what this op waits for.
      if (g.ops.front()->position() < j->position() && waits_for(*j, g, inside))
        return fmt::format("{} waits for an op that the kernel feeds", j->name());
    }
    g.ops = std::move(members);
    g.space = space.value();
    for (Op* j : joining) group_of_[j] = &g;
    spread(g);
    return std::nullopt;
  }

  void visit(Op& op) {
    if (!is_kernel(op) || copied(op) || group_of(op)) return;
    std::vector<Op*> users;
    readers(op, users);
    std::vector<Group*> candidates;
    bool hard = false;
    for (size_t r = 0; r < op.num_results(); ++r) hard = hard || is_output(op.result(r));
    std::sort(users.begin(), users.end(),
              [](const Op* a, const Op* b) { return a->position() < b->position(); });
    for (Op* u : users) {
      Group* g = group_of(*u);
      if (!g)
        hard = true;
      else if (std::find(candidates.begin(), candidates.end(), g) == candidates.end())
        candidates.push_back(g);
    }
    if (!off_ && !hard && candidates.size() > 1 && is_repeated(op, candidates)) {
      copied_.insert(&op);
      bool fits = std::all_of(candidates.begin(), candidates.end(),
                              [&](Group* g) { return kernel_space(g->ops).ok(); });
      if (fits) {
        context_.remark(op.loc(),
                        fmt::format("copied: {} into {} kernels instead of storing {} bytes",
                                    op.name(), candidates.size(), op.result().type().bytes()));
        return;
      }
      copied_.erase(&op);
    }
    if (!off_) {
      std::string declined;
      for (Group* g : candidates) {
        auto reason = try_join(op, *g);
        if (!reason) return;
        if (declined.empty())
          declined =
              fmt::format("not fused: {} into {}: {}", op.name(), g->ops.back()->name(), *reason);
      }
      if (!declined.empty()) context_.remark(op.loc(), declined);
    }
    groups_.push_back(std::make_unique<Group>());
    Group& alone = *groups_.back();
    alone.ops.push_back(&op);
    group_of_[&op] = &alone;
    spread(alone);
    Result<IterationSpace> space = space_of(alone.ops);
    SINTER_CHECK(space.ok(), "{} has no kernel: {}", op.name(), space.error().message);
    alone.space = space.value();
  }

  // ---- groups side by side

  // Merges groups over the same space that read the same large value.
  void merge_siblings() {
    ValueMap<std::vector<Group*>> readers_of;
    std::vector<Value> order;
    for (const auto& g : groups_) {
      std::vector<Op*> body = body_ops(g->ops);
      std::unordered_set<const Op*> inside(body.begin(), body.end());
      std::unordered_set<Value, ValueHash> seen;
      for (Op* op : body)
        for (Value v : op->operands()) {
          if (!v || (v.op() && inside.contains(v.op())) || !seen.insert(v).second) continue;
          auto& list = readers_of[v];
          if (list.empty()) order.push_back(v);
          list.push_back(g.get());
        }
    }
    for (Value v : order) {
      auto& list = readers_of[v];
      for (size_t i = 0; i < list.size(); ++i)
        for (size_t j = i + 1; j < std::min(list.size(), i + 1 + kMaxSiblings); ++j) {
          Group *a = current(list[i]), *b = current(list[j]);
          if (a == b || !worth_merging(v, *a, *b)) continue;
          if (a->ops.size() + b->ops.size() > kMaxOps) continue;
          if (detours(a, b) || detours(b, a)) continue;
          std::vector<Op*> members = united(a->ops, b->ops);
          Result<IterationSpace> space = kernel_space(members);
          // Columns beside their elements: merge_columns says which.
          if (!space.ok() || space.value().elements) continue;
          merge(*a, *b, std::move(members), space.value());
        }
    }
  }
  void merge(Group& a, Group& b, std::vector<Op*> members, const IterationSpace& space) {
    a.space = space;
    for (Op* op : b.ops) group_of_[op] = &a;
    a.ops = std::move(members);
    b.merged_away = true;
    merged_into_[&b] = &a;
    spread(a);
  }

  // Column sums join what makes the elements that they add up and stores elements as well: a
  // gradient in a narrow type, beside the bias gradient from the wide one.
  void merge_columns() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      Group& columns = *groups_[i];
      if (columns.merged_away || columns.space.kind != IterationSpace::Column) continue;
      while (merge_maker(columns)) continue;
    }
  }
  bool merge_maker(Group& columns) {
    for (Op* op : body_ops(columns.ops))
      for (Value v : op->operands()) {
        Op* up = v ? v.op() : nullptr;
        Group* maker = up ? group_of(*up) : nullptr;
        if (!maker || maker == &columns || maker->space.kind != IterationSpace::Pointwise ||
            maker->work() != columns.work() || v.type().elements() != columns.work())
          continue;
        if (detail::recomputes(maker->ops) != detail::recomputes(columns.ops) ||
            in_forward(*maker) != in_forward(columns) || would_wait(*maker, columns))
          continue;
        std::vector<Op*> members = united(columns.ops, maker->ops);
        Result<IterationSpace> space = kernel_space(members, {&v, 1});
        if (!space.ok()) {
          context_.remark(up->loc(),
                          fmt::format("not fused: {} into the columns of {}: {}", up->name(),
                                      columns.ops.back()->name(), space.error().message));
          continue;
        }
        if (!space.value().elements || !suits_columns(space.value())) continue;
        if (detours(maker, &columns) || detours(&columns, maker)) continue;
        merge(columns, *maker, std::move(members), space.value());
        return true;
      }
    return false;
  }
  // Whether the columns read what is made after `maker`: it, and what it reads, would wait for
  // that.
  bool would_wait(const Group& maker, const Group& columns) const {
    for (const Op* op : body_ops(columns.ops))
      for (Value v : op->operands()) {
        const Op* up = v ? v.op() : nullptr;
        if (!up || copied(*up) || group_of(*up) == &maker || group_of(*up) == &columns) continue;
        if (members(unit_of(*up)).back()->position() > maker.ops.back()->position()) return true;
      }
    return false;
  }
  // Whether elements are stored as fast down columns as one after another. The host does not gain
  // where they are many: its cores then add up in short strips, far from one another.
  bool suits_columns(const IterationSpace& s) const {
    return s.inner >= kShortestRow &&
           (graph_.module().target.is_cuda() || s.p * s.r <= kCachedElements);
  }
  Group* current(Group* g) const {
    for (auto it = merged_into_.find(g); it != merged_into_.end(); it = merged_into_.find(g))
      g = it->second;
    return g;
  }
  static bool worth_merging(Value shared, const Group& a, const Group& b) {
    const IterationSpace &x = a.space, &y = b.space;
    if (x.kind != y.kind || x.p != y.p || x.q != y.q || x.r != y.r) return false;
    // A forward op merged with its copy would keep the copy's results alive until the backward.
    if (detail::recomputes(a.ops) != detail::recomputes(b.ops)) return false;
    return shared.type().elements() * 2 >= a.work();
  }

  // ---- writing the result

  void emit() {
    // Units in an order that respects all edges and otherwise follows the last op of each.
    struct Placed {
      Group* group = nullptr;
      Op* op = nullptr;
      int64_t key = 0;
      int waiting = 0;
      std::vector<size_t> next;
    };
    std::vector<Placed> units;
    std::unordered_map<const Group*, size_t> unit_of_group;
    std::unordered_map<const Op*, size_t> unit_of_op;
    for (Op& op : graph_) {
      Group* g = group_of(op);
      if (!g && copied(op)) continue;
      if (g) {
        auto [it, fresh] = unit_of_group.emplace(g, units.size());
        if (fresh) units.push_back({g, nullptr, 0, 0, {}});
        units[it->second].key = op.position();
        unit_of_op[&op] = it->second;
      } else {
        unit_of_op[&op] = units.size();
        units.push_back({nullptr, &op, op.position(), 0, {}});
      }
    }
    for (size_t u = 0; u < units.size(); ++u) {
      std::vector<Op*> users;
      if (units[u].group) {
        for (Op* op : units[u].group->ops) readers(*op, users);
      } else {
        readers(*units[u].op, users);
      }
      std::set<size_t> next;
      for (Op* user : users) next.insert(unit_of_op.at(user));
      next.erase(u);
      units[u].next.assign(next.begin(), next.end());
      for (size_t n : next) ++units[n].waiting;
    }
    std::vector<Op*> old;
    for (Op& op : graph_)
      if (group_of(op) || copied(op)) old.push_back(&op);
    using Item = std::pair<int64_t, size_t>;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> ready;
    for (size_t u = 0; u < units.size(); ++u)
      if (units[u].waiting == 0) ready.push({units[u].key, u});
    std::vector<size_t> sequence;
    while (!ready.empty()) {
      size_t u = ready.top().second;
      ready.pop();
      sequence.push_back(u);
      for (size_t n : units[u].next)
        if (--units[n].waiting == 0) ready.push({units[n].key, n});
    }
    SINTER_CHECK(sequence.size() == units.size(), "fuse made a cycle in @{}", graph_.name());
    // Positions serve as sort keys until every body is made.
    struct Plan {
      Placed* unit;
      std::vector<Op*> body;
      std::vector<Value> results;
    };
    std::vector<Plan> plans;
    for (size_t u : sequence) {
      Plan plan{&units[u], {}, {}};
      if (plan.unit->group) {
        plan.body = body_ops(plan.unit->group->ops);
        plan.results = results_of(plan.unit->group->ops);
      }
      plans.push_back(std::move(plan));
    }
    for (Plan& plan : plans) {
      if (plan.unit->op)
        graph_.move_before(*plan.unit->op, nullptr);
      else
        write_group(*plan.unit->group, plan.body, plan.results);
    }
    for (size_t i = old.size(); i-- > 0;) graph_.erase(*old[i]);
  }

  void write_group(const Group& g, const std::vector<Op*>& body,
                   const std::vector<Value>& results) {
    Module& module = graph_.module();
    std::string name = module.unique_graph_name(detail::kernel_stem(body));
    Graph& callee = module.add_graph(name);
    ValueMap<Value> map;
    std::vector<Value> inputs;
    std::unordered_set<const Op*> inside(body.begin(), body.end());
    double before = 0;
    for (Op* op : body) {
      std::vector<Value> operands;
      for (Value v : op->operands()) {
        if (v && !map.contains(v)) {
          SINTER_CHECK(!v.op() || !inside.contains(v.op()), "a body is out of order");
          map[v] = callee.add_input(fmt::format("in{}", inputs.size()), v.type());
          inputs.push_back(v);
        }
        operands.push_back(v ? map.at(v) : Value());
      }
      OpInit init;
      init.attrs = op->raw_attrs();
      init.operands = std::move(operands);
      Op& copy = callee.create(op->def(), std::move(init));
      for (size_t r = 0; r < op->num_results(); ++r) map[op->result(r)] = copy.result(r);
      if (!copied(*op)) before += op->def().cost(*op).bytes;
    }
    for (size_t i = 0; i < results.size(); ++i)
      callee.add_output(fmt::format("out{}", i), map.at(results[i]));
    // Equal bodies are one graph: layers share their kernels.
    std::string text = print(callee);
    text.erase(0, text.find('('));
    auto [it, fresh] = bodies_.emplace(text, name);
    if (!fresh) module.erase_graph(callee);

    Op& root = *g.ops.back();
    OpInit init;
    init.operands = inputs;
    init.loc = root.loc();
    init.from = root.from();
    init.callee = it->second;
    // One recomputed member makes a recomputed kernel: order must not move it forward.
    init.segment = root.segment();
    for (const Op* op : g.ops)
      if (op->segment().ends_with(".recompute")) init.segment = op->segment();
    Op& fused = graph_.create(OpRegistry::get().at("fusion"), std::move(init));
    std::vector<SourceLocation> with;
    for (Op* op : g.ops)
      if (op->loc().known() && !(op->loc() == root.loc()) &&
          std::find(with.begin(), with.end(), op->loc()) == with.end())
        with.push_back(op->loc());
    fused.set_with(std::move(with));
    for (size_t i = 0; i < results.size(); ++i) {
      fused.result(i).set_name(results[i].name());
      results[i].replace_all_uses_with(fused.result(i));
    }
    if (g.ops.size() > 1)
      context_.remark(root.loc(),
                      fmt::format("fused: {} ops into @{}: {:.0f} bytes moved instead of {:.0f}",
                                  g.ops.size(), it->second, fused.def().cost(fused).bytes, before));
  }

  Graph& graph_;
  Views views_;
  detail::OpTree tree_;
  PassContext& context_;
  std::map<std::string, std::string>& bodies_;
  bool off_;
  std::unordered_set<Value, ValueHash> outputs_;
  std::unordered_set<const Op*> copied_, kept_;
  std::unordered_map<const Op*, Group*> group_of_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unordered_map<Group*, Group*> merged_into_;
  // Units that reach further than their own last op; see reach().
  std::unordered_map<const void*, int64_t> reach_;
};

}  // namespace

void run_fuse(Module& module, PassContext& context) {
  std::map<std::string, std::string> bodies;  // text to name
  for (Graph* g : detail::entry_graphs(module))
    Fuser(*g, context, bodies, context.has_option("off")).run();
}

}  // namespace sinter
