#include <sinter/passes/detail/recomputation.h>

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/layout.h>

namespace sinter::detail {

bool is_backward(const Op& op) {
  return op.from().known();
}

void Recomputation::run(PassContext& context) {
  inside_.insert(ops_.begin(), ops_.end());
  find_uses(context);
  if (uses_.empty()) return;
  find_needed_ops();
  clone();
  for (const BackwardUse& use : uses_)
    use.op->set_operand(use.operand, copies_.at(use.op->operand(use.operand)));
}

bool Recomputation::can_copy(Value v) const {
  return v && v.op() != nullptr && inside_.contains(v.op()) && !kept_.contains(v);
}

void Recomputation::find_uses(PassContext& context) {
  ValueSet again;
  for (Op* op : ops_)
    for (size_t i = 0; i < op->num_results(); ++i) {
      Value v = op->result(i);
      bool kept = kept_.contains(v), needed = false;
      for (const Use& use : v.uses()) {
        if (!is_backward(*use.op)) continue;
        needed = true;
        if (!kept) uses_.push_back({use.op, static_cast<size_t>(use.operand)});
      }
      if (!needed) continue;
      const double flops = op->def().cost(*op).flops;  // spared, or spent once more
      if (kept) {
        context.remark(op->loc(), fmt::format("kept: {}, {:.0f} flops", describe(v), flops));
        continue;
      }
      bytes_ += v.type().bytes();
      context.remark(op->loc(), fmt::format("recomputed: {}, {:.0f} flops", describe(v), flops));
    }
}

// The ops behind those uses, up to what is kept.
void Recomputation::find_needed_ops() {
  std::vector<Op*> work;
  auto want = [&](Value v) {
    if (can_copy(v) && needed_.insert(v.op()).second) work.push_back(v.op());
  };
  for (const BackwardUse& use : uses_) want(use.op->operand(use.operand));
  while (!work.empty()) {
    Op* op = work.back();
    work.pop_back();
    flops_ += op->def().cost(*op).flops;
    for (Value v : op->operands()) want(v);
  }
}

// For each needed op, the backward op in front of which its copy belongs.
std::unordered_map<const Op*, Op*> Recomputation::first_uses() const {
  std::unordered_map<const Op*, Op*> first;
  auto need = [&](Value v, Op* at) {
    if (!can_copy(v) || !needed_.contains(v.op())) return;
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

void Recomputation::clone() {
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
    copy.set_segment(segment_);
    for (size_t i = 0; i < op->num_results(); ++i) copies_[op->result(i)] = copy.result(i);
  }
}

int64_t activation_bytes(const Graph& graph) {
  ValueSet seen;
  int64_t bytes = 0;
  for (Op& op : graph) {
    if (!is_backward(op)) continue;
    for (Value v : op.operands()) {
      while (v && v.op() != nullptr && is_free_view(*v.op())) v = v.op()->operand(0);
      if (!v || v.op() == nullptr || is_backward(*v.op())) continue;
      if (seen.insert(v).second) bytes += v.type().bytes();
    }
  }
  return bytes;
}

}  // namespace sinter::detail
