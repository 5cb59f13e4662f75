// order: moves ops earlier where that frees memory.
//
// An op that reads values for the last time, and whose results take fewer bytes of the arena than
// those values, moves to right behind the last op that it waits for: an update of a parameter
// follows its gradient, and the gradient need not be kept to the end. What makes the next value of
// a state waits for those who read the old one too, and for the ops that check indices, so that it
// can be written in place. All other ops keep their order, and the copies that recompute made never
// move, since early is what they must not be. If the plan's peak does not fall, nothing moves.

#include <sinter/passes/detail/state_update.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/layout.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <unordered_set>

namespace sinter {

namespace {

// Where an op stands: behind op `anchor` of the old order; those that moved come by their number.
struct Place {
  int64_t anchor = 0, number = 0;
  friend bool operator<(const Place& a, const Place& b) {
    return a.anchor != b.anchor ? a.anchor < b.anchor : a.number < b.number;
  }
};

class Reordering {
 public:
  explicit Reordering(Graph& graph) : graph_(graph), views_(graph) {
    for (Op& op : graph) ops_.push_back(&op);
    find_storage();
  }

  // How many ops should move.
  size_t decide() {
    places_.resize(ops_.size());
    int64_t number = 0;
    size_t moved = 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
      places_[i] = {static_cast<int64_t>(i), 0};
      std::optional<Place> ready = ready_place(i);
      if (!ready || ready->anchor + 1 >= static_cast<int64_t>(i) || !frees_memory(i)) continue;
      places_[i] = {ready->anchor, ++number};
      ++moved;
    }
    return moved;
  }

  void apply() {
    std::vector<size_t> order(ops_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return places_[a] < places_[b]; });
    for (size_t i : order) graph_.move_before(*ops_[i], nullptr);
  }
  void restore() {
    for (Op* op : ops_) graph_.move_before(*op, nullptr);
  }

 private:
  struct Storage {
    size_t last_use = 0;  // op
    bool in_arena = true;
    std::vector<size_t> readers;  // of a state: ops
  };

  // A view is another value's storage.
  Value root(Value v) const {
    const StridedView* view = views_.find(v);
    return view == nullptr ? v : view->root;
  }

  void find_storage() {
    for (Value v : graph_.inputs()) storage_[v].in_arena = false;
    for (size_t i = 0; i < ops_.size(); ++i) {
      index_[ops_[i]] = i;
      if (detail::checks_indices(*ops_[i])) checks_.push_back(i);
      for (Value v : ops_[i]->operands()) {
        if (!v) continue;
        Storage& s = storage_[root(v)];
        s.last_use = i;
        if (!s.in_arena && graph_.module().find_state(root(v).name())) s.readers.push_back(i);
      }
    }
    for (const GraphOutput& o : graph_.outputs()) {
      storage_[root(o.value)].in_arena = false;
      Value old = graph_.find_input(o.name);
      if (old && graph_.module().find_state(o.name)) replaces_[root(o.value)] = old;
    }
  }

  // Right behind the last operand; nullopt for an op that waits for inputs alone, or must stay.
  std::optional<Place> ready_place(size_t at) const {
    const Op& op = *ops_[at];
    if (op.segment().ends_with(".recompute")) return std::nullopt;
    std::optional<Place> ready;
    for (Value v : op.operands()) {
      if (!v || v.op() == nullptr) continue;
      const Place& place = places_[index_.at(v.op())];
      if (!ready || *ready < place) ready = place;
    }
    if (!ready) return ready;
    auto wait_for = [&](const std::vector<size_t>& ops) {
      for (size_t i : ops)
        if (i < at) ready = std::max(*ready, places_[i]);
    };
    for (size_t i = 0; i < op.num_results(); ++i)
      if (auto it = replaces_.find(op.result(i)); it != replaces_.end()) {
        wait_for(storage_.at(it->second).readers);
        wait_for(checks_);
      }
    return ready;
  }

  bool frees_memory(size_t at) {
    const Op& op = *ops_[at];
    if (views_.is_free(op)) return false;
    int64_t freed = 0;
    std::vector<Value> seen;
    for (Value v : op.operands()) {
      if (!v) continue;
      Value storage = root(v);
      if (std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
      seen.push_back(storage);
      const Storage& s = storage_[storage];
      if (s.in_arena && s.last_use == at) freed += storage.type().bytes();
    }
    for (size_t i = 0; i < op.num_results(); ++i)
      if (storage_[root(op.result(i))].in_arena) freed -= op.result(i).type().bytes();
    return freed > 0;
  }

  Graph& graph_;
  Views views_;
  std::vector<Op*> ops_;
  std::vector<Place> places_;
  std::unordered_map<const Op*, size_t> index_;
  ValueMap<Storage> storage_;
  ValueMap<Value> replaces_;  // the next value of a state: the old one
  std::vector<size_t> checks_;
};

}  // namespace

void run_order(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module)) {
    Reordering reordering(*graph);
    size_t moved = reordering.decide();
    if (moved == 0) continue;
    int64_t before = plan_memory(*graph).arena_bytes;
    reordering.apply();
    int64_t after = plan_memory(*graph).arena_bytes;
    if (after < before) {
      context.remark({}, fmt::format("@{}: moved {} ops earlier; the arena shrinks from {} to {} "
                                     "bytes",
                                     graph->name(), moved, before, after));
    } else {
      reordering.restore();
      context.remark({}, fmt::format("@{}: not reordered: {} ops could move, and the arena would "
                                     "take {} bytes, not {}",
                                     graph->name(), moved, after, before));
    }
  }
}

}  // namespace sinter
