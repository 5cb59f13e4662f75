// Which values to keep for the backward pass so that they fit a number of bytes.
//
// A smallest cut between what must be kept and what backward ops read: each forward value is an
// edge that costs its bytes, a value that may be computed again follows from its operands, any
// other one comes from the source. At first only ops that cost nothing but bandwidth, and that
// kernels can take in, are computed again: pointwise ops, views, literals, random numbers, and
// composites of these. Where that is not enough, other ops join, those that free the most bytes for
// their work first; equal ones are taken far apart, so that what must be redone at a time stays
// short.
//
// That counts what is kept and the gradients on their way, not what lives for a while as it is
// computed again, nor what fusion makes of it. So the plan is made, on a copy of the graph, and as
// long as it takes more than the budget, less is kept.

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/min_cut.h>
#include <sinter/passes/detail/recomputation.h>
#include <sinter/passes/detail/util.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace sinter::detail {

namespace {

// Work that takes as long as moving a byte, on today's cards.
constexpr double kFlopsPerByte = 200;

bool is_free_kind(OpKind kind) {
  return kind == OpKind::Pointwise || kind == OpKind::View || kind == OpKind::Source ||
         kind == OpKind::Random;
}

// Whether ops are free, by what they expand into.
class FreeOps {
 public:
  bool operator()(const Op& op) {
    OpKind kind = op.def().kind;
    if (kind != OpKind::Composite) return is_free_kind(kind);
    auto [it, is_new] = known_.emplace(&op.def(), false);
    if (!is_new) return it->second;
    Module scratch;
    Graph& graph = scratch.add_graph("g");
    std::vector<Value> operands;
    for (Value v : op.operands())
      operands.push_back(v ? graph.add_input(fmt::format("x{}", operands.size()), v.type())
                           : Value());
    expand_in_place(clone_op(op, graph, std::move(operands)));
    bool all = true;
    for (Op& inner : graph) all = all && (*this)(inner);
    return known_[&op.def()] = all;
  }

 private:
  std::unordered_map<const OpDef*, bool> known_;
};

// 0, 1/2, 1/4, 3/4, 1/8, …
double van_der_corput(size_t i) {
  double value = 0, digit = 0.5;
  for (; i > 0; i /= 2, digit /= 2)
    if (i % 2 == 1) value += digit;
  return value;
}

// The most bytes that results of backward ops take at a time: gradients on their way.
int64_t gradient_peak(const Graph& graph) {
  ValueMap<size_t> uses_left;
  for (Op& op : graph)
    for (Value v : op.operands())
      if (v) ++uses_left[v];
  int64_t live = 0, peak = 0;
  for (Op& op : graph) {
    if (!is_backward(op)) continue;
    auto counts = [&](Value v) {
      return v && v.op() != nullptr && is_backward(*v.op()) && !graph.is_output(v);
    };
    for (size_t i = 0; i < op.num_results(); ++i)
      if (counts(op.result(i)) && uses_left[op.result(i)] > 0) live += op.result(i).type().bytes();
    peak = std::max(peak, live);
    for (Value v : op.operands())
      if (counts(v) && --uses_left[v] == 0) live -= v.type().bytes();
  }
  return peak;
}

class Budget {
 public:
  explicit Budget(Graph& graph) {
    for (Op& op : graph)
      if (!is_backward(op)) ops_.push_back(&op);
    for (const GraphOutput& o : graph.outputs()) outputs_.insert(o.value);
    FreeOps is_free;
    for (Op* op : ops_) {
      if (op->def().kind == OpKind::Opaque) continue;
      (is_free(*op) ? repeatable_ : costly_).push_back(op);
    }
    sort_costly();
  }

  // The fewest bytes that can be kept.
  int64_t least() { return kept_with(costly_.size()); }

  // `budget` is no less than that.
  ValueSet choose(int64_t budget) {
    size_t low = 0, high = costly_.size();
    // What is kept shrinks as more ops join.
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (kept_with(middle) <= budget)
        high = middle;
      else
        low = middle + 1;
    }
    kept_bytes_ = kept_with(low);
    ValueSet kept = outputs_;
    for (const auto& [v, edge] : edges_)
      if (network_.is_cut(edge)) kept.insert(v);
    return kept;
  }

  const std::vector<Op*>& ops() const { return ops_; }
  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  void sort_costly() {
    auto gain = [](const Op* op) {
      Cost cost = op->def().cost(*op);
      double bytes = 0;
      for (size_t i = 0; i < op->num_results(); ++i)
        bytes += static_cast<double>(op->result(i).type().bytes());
      return bytes / (1 + cost.bytes + cost.flops / kFlopsPerByte);
    };
    std::vector<std::pair<double, Op*>> all;
    for (Op* op : costly_) all.emplace_back(gain(op), op);
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t begin = 0; begin < all.size();) {
      size_t end = begin;
      while (end < all.size() && all[end].first == all[begin].first) ++end;
      std::vector<std::pair<double, size_t>> order;
      for (size_t i = begin; i < end; ++i) order.emplace_back(van_der_corput(i - begin + 1), i);
      // Place i of the group gets the i-th member of the sequence.
      std::vector<size_t> rank(end - begin);
      std::sort(order.begin(), order.end());
      for (size_t i = 0; i < order.size(); ++i) rank[order[i].second - begin] = i;
      for (size_t i = begin; i < end; ++i) costly_[i] = all[begin + rank[i - begin]].second;
      begin = end;
    }
  }

  // The bytes that a smallest cut keeps when the first `count` costly ops may be repeated.
  int64_t kept_with(size_t count) {
    std::unordered_set<const Op*> may(repeatable_.begin(), repeatable_.end());
    may.insert(costly_.begin(), costly_.begin() + static_cast<int64_t>(count));
    network_ = {};
    edges_.clear();
    int source = network_.add_node(), sink = network_.add_node();
    ValueMap<int> to;  // the node from which users read
    for (Op* op : ops_)
      for (size_t i = 0; i < op->num_results(); ++i) {
        Value v = op->result(i);
        if (outputs_.contains(v)) continue;  // there anyway
        int in = network_.add_node(), out = network_.add_node();
        edges_.emplace_back(v, network_.add_edge(in, out, v.type().bytes()));
        to[v] = out;
        if (!may.contains(op)) {
          network_.add_edge(source, in, FlowNetwork::kInfinite);
        } else {
          for (Value operand : op->operands())
            if (auto it = to.find(operand); operand && it != to.end())
              network_.add_edge(it->second, in, FlowNetwork::kInfinite);
        }
        bool read = std::any_of(v.uses().begin(), v.uses().end(),
                                [](const Use& use) { return is_backward(*use.op); });
        if (read) network_.add_edge(out, sink, FlowNetwork::kInfinite);
      }
    return network_.run(source, sink);
  }

  std::vector<Op*> ops_, repeatable_, costly_;
  ValueSet outputs_;
  FlowNetwork network_;
  std::vector<std::pair<Value, int>> edges_;
  int64_t kept_bytes_ = 0;
};

struct Outcome {
  int64_t kept = 0;  // bytes
  size_t ops = 0;    // computed again
  double flops = 0;  // theirs
};

// Keeps at most `bytes` of activations.
Outcome keep_at_most(Graph& graph, int64_t bytes, PassContext& context) {
  Budget choice(graph);
  ValueSet kept = choice.choose(bytes);
  Recomputation again(choice.ops(), std::move(kept), "budget.recompute");
  again.run(context);
  return {choice.kept_bytes(), again.num_ops(), again.flops()};
}

// The arena of the plan when at most `bytes` of activations are kept; nullopt: all of them.
int64_t planned_arena(const Graph& graph, std::optional<int64_t> bytes) {
  std::unique_ptr<Module> module = graph.module().clone();
  Graph& copy = *module->find(graph.name());
  for (Graph* other : entry_graphs(*module))
    if (other != &copy) module->erase_graph(*other);
  PassManager manager;
  manager.verify_each = false;
  if (bytes) {
    std::vector<Remark> unsaid;
    PassContext context("recompute", {}, unsaid, manager.plans);
    keep_at_most(copy, *bytes, context);
  }
  const PassInfo* self = find_pass("recompute");
  manager.run(*module, rest_of_pipeline({{self, {}}}));
  return manager.plans.at(graph.name()).arena_bytes;
}

// How often less is tried, and how often more again once a plan fits.
constexpr int kAttempts = 8, kRefinements = 2;

// How many bytes to keep so that the plan fits, and its arena. To keep half as much may take more:
// what is kept shortens what is computed again at a time.
std::pair<std::optional<int64_t>, int64_t> search(const Graph& graph, int64_t budget,
                                                  std::optional<int64_t> first, int64_t all,
                                                  int64_t fewest) {
  std::optional<int64_t> fits = first;
  int64_t arena = planned_arena(graph, fits), best = arena, too_much = 0;
  for (int i = 0; arena > budget && i < kAttempts && fits != fewest; ++i) {
    too_much = fits.value_or(all);
    fits = std::max({fewest, too_much - (arena - budget), too_much / 2});
    arena = planned_arena(graph, fits);
    best = std::min(best, arena);
  }
  // The fewest are not the best to keep: with nothing kept, all is computed again at once.
  for (int64_t share = 64; arena > budget && share > 1; share /= 2) {
    too_much = 0;
    fits = std::max(fewest, all / share);
    arena = planned_arena(graph, fits);
    best = std::min(best, arena);
  }
  if (arena > budget)
    throw Error(fmt::format(
        "recompute: a budget of {} bytes is too small for @{}: {} is the least that was found",
        budget, graph.name(), best));
  for (int i = 0; i < kRefinements && too_much > 0; ++i) {
    int64_t more = (*fits + too_much) / 2, takes = planned_arena(graph, more);
    if (takes > budget) {
      too_much = more;
    } else {
      fits = more;
      arena = takes;
    }
  }
  return {fits, arena};
}

}  // namespace

void recompute_within(Graph& graph, int64_t budget, PassContext& context) {
  const int64_t before = activation_bytes(graph);
  if (before == 0) return;
  const int64_t gradients = gradient_peak(graph), fewest = Budget(graph).least();
  std::optional<int64_t> bytes;
  if (before + gradients > budget) bytes = std::max(fewest, budget - gradients);
  int64_t arena = 0;
  std::tie(bytes, arena) = search(graph, budget, bytes, before, fewest);
  if (!bytes) {
    context.remark({}, fmt::format("@{}: {} bytes of activations, and {} of gradients beside them, "
                                   "are within the budget of {}; the plan takes {}",
                                   graph.name(), before, gradients, budget, arena));
    return;
  }
  Outcome done = keep_at_most(graph, *bytes, context);
  context.remark({},
                 fmt::format("@{}: {} of {} bytes of activations are kept, and the plan takes "
                             "{}, within the budget of {}; {} ops are computed again, {:.0f} "
                             "flops",
                             graph.name(), done.kept, before, arena, budget, done.ops, done.flops));
}

}  // namespace sinter::detail
