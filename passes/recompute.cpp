// recompute: computes the values of a user's segment again for the backward pass, in place of
// keeping them.
//
// A segment is the ops marked `{segment = "NAME"}`. Its inputs are kept, and so are its outputs:
// what forward ops outside of it, or the graph's caller, read. Any other value of the segment that
// a backward op (one with `from`) needs is computed again by copies of the segment's ops, with the
// segment `NAME.recompute`. Each copy stands right in front of the first op that needs it: a
// segment may take a gradient inside itself and read it, and then some copies cannot come sooner.
// cse leaves ops of different segments apart, and so does not undo this. Copies give the same bits
// as the originals, random ops included.
//
// With `off` segments are ignored, and their marks removed.

#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <map>
#include <unordered_map>
#include <unordered_set>

namespace sinter {

namespace {

constexpr std::string_view kSuffix = ".recompute";

bool is_backward(const Op& op) {
  return op.from().known();
}

struct BackwardUse {
  Op* op;
  size_t operand;
};

class Segment {
 public:
  Segment(std::string name, std::vector<Op*> ops,
          const std::unordered_set<Value, ValueHash>& outputs)
      : name_(std::move(name)), ops_(std::move(ops)), outputs_(outputs) {}

  void run(PassContext& context) {
    find_uses(context);
    if (uses_.empty()) return;
    find_needed_ops();
    int64_t bytes = clone();
    for (const BackwardUse& use : uses_)
      use.op->set_operand(use.operand, copies_.at(use.op->operand(use.operand)));
    context.remark(ops_.front()->loc(),
                   fmt::format("segment {}: {} ops are computed again, {} bytes need not be kept",
                               name_, needed_.size(), bytes));
  }

 private:
  bool is_inside(const Op& op) const { return op.segment() == name_ && !is_backward(op); }

  bool is_segment_output(Value v) const {
    if (outputs_.contains(v)) return true;
    for (const Use& use : v.uses())
      if (!is_inside(*use.op) && !is_backward(*use.op)) return true;
    return false;
  }

  void find_uses(PassContext& context) {
    for (Op* op : ops_)
      for (size_t i = 0; i < op->num_results(); ++i) {
        Value v = op->result(i);
        bool kept = is_segment_output(v), needed = false;
        for (const Use& use : v.uses()) {
          if (!is_backward(*use.op)) continue;
          needed = true;
          if (!kept) uses_.push_back({use.op, static_cast<size_t>(use.operand)});
        }
        if (kept) kept_.insert(v);
        if (needed)
          context.remark(op->loc(),
                         fmt::format("{}: {}", kept ? "kept" : "recomputed", detail::describe(v)));
      }
  }

  // The ops behind those uses, up to what is kept.
  void find_needed_ops() {
    std::vector<Op*> work;
    auto want = [&](Value v) {
      if (!v || v.op() == nullptr || !is_inside(*v.op()) || kept_.contains(v)) return;
      if (needed_.insert(v.op()).second) work.push_back(v.op());
    };
    for (const BackwardUse& use : uses_) want(use.op->operand(use.operand));
    while (!work.empty()) {
      Op* op = work.back();
      work.pop_back();
      for (Value v : op->operands()) want(v);
    }
  }

  // For each needed op, the backward op in front of which its copy belongs.
  std::unordered_map<const Op*, Op*> first_uses() const {
    std::unordered_map<const Op*, Op*> first;
    auto need = [&](Value v, Op* at) {
      if (!v || v.op() == nullptr || !needed_.contains(v.op()) || kept_.contains(v)) return;
      auto [it, is_new] = first.emplace(v.op(), at);
      if (!is_new && at->position() < it->second->position()) it->second = at;
    };
    for (const BackwardUse& use : uses_) need(use.op->operand(use.operand), use.op);
    // Users come after what they use, so that their own places are known by then.
    for (size_t i = ops_.size(); i-- > 0;)
      if (auto it = first.find(ops_[i]); it != first.end()) {
        Op* at = it->second;
        for (Value v : ops_[i]->operands()) need(v, at);
      }
    return first;
  }

  // The bytes of the values that backward ops read from copies.
  int64_t clone() {
    std::unordered_map<const Op*, Op*> first = first_uses();
    for (Op* op : ops_) {
      if (!needed_.contains(op)) continue;
      InsertionScope scope(op->graph(), first.at(op), *op, op->loc(), "");
      std::vector<Value> operands;
      for (Value v : op->operands()) {
        auto it = copies_.find(v);
        operands.push_back(v && it != copies_.end() && !kept_.contains(v) ? it->second : v);
      }
      Op& copy = clone_op(*op, op->graph(), std::move(operands));
      copy.set_segment(name_ + std::string(kSuffix));
      for (size_t i = 0; i < op->num_results(); ++i) copies_[op->result(i)] = copy.result(i);
    }
    std::unordered_set<Value, ValueHash> seen;
    int64_t bytes = 0;
    for (const BackwardUse& use : uses_)
      if (Value v = use.op->operand(use.operand); seen.insert(v).second) bytes += v.type().bytes();
    return bytes;
  }

  std::string name_;
  std::vector<Op*> ops_;  // in order
  const std::unordered_set<Value, ValueHash>& outputs_;
  std::vector<BackwardUse> uses_;
  std::unordered_set<Value, ValueHash> kept_;
  std::unordered_set<Op*> needed_;
  ValueMap<Value> copies_;
};

void recompute(Graph& graph, PassContext& context) {
  std::map<std::string, std::vector<Op*>> by_name;
  std::vector<std::string> order;
  for (Op& op : graph) {
    const std::string& name = op.segment();
    if (name.empty() || name.ends_with(kSuffix) || is_backward(op)) continue;
    std::vector<Op*>& ops = by_name[name];
    if (ops.empty()) order.push_back(name);
    ops.push_back(&op);
  }
  std::unordered_set<Value, ValueHash> outputs;
  for (const GraphOutput& o : graph.outputs()) outputs.insert(o.value);
  for (const std::string& name : order) Segment(name, by_name[name], outputs).run(context);
}

}  // namespace

void run_recompute(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module)) {
    if (!context.has_option("off")) {
      recompute(*graph, context);
      continue;
    }
    for (Op& op : *graph) op.set_segment("");
  }
}

}  // namespace sinter
