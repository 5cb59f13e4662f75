#pragma once
// Computing forward values again for the backward pass: what recompute does once it is known which
// values are kept.

#include <sinter/passes/pass.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sinter::detail {

using ValueSet = std::unordered_set<Value, ValueHash>;

// An op of the backward pass: one made from another.
bool is_backward(const Op& op);

// Of the results of `ops` (forward ops, in order), those in `kept` stay; any other one that a
// backward op reads is computed again by copies of the ops behind it, up to what is kept or no
// result of `ops`. The copies are in the segment `segment`, which no other op may bear, so that cse
// leaves them alone. Each stands right in front of the first op that needs it.
class Recomputation {
 public:
  Recomputation(std::vector<Op*> ops, ValueSet kept, std::string segment)
      : ops_(std::move(ops)), kept_(std::move(kept)), segment_(std::move(segment)) {}

  // A remark for each value that the backward pass reads: kept or recomputed, its bytes, and the
  // flops of its op.
  void run(PassContext& context);

  size_t num_ops() const { return needed_.size(); }  // computed again
  int64_t bytes() const { return bytes_; }           // of the values that need not be kept
  double flops() const { return flops_; }            // of the ops that are computed again

 private:
  struct BackwardUse {
    Op* op;
    size_t operand;
  };
  bool can_copy(Value v) const;
  void find_uses(PassContext& context);
  void find_needed_ops();
  std::unordered_map<const Op*, Op*> first_uses() const;
  void clone();

  std::vector<Op*> ops_;
  ValueSet kept_;
  std::string segment_;
  std::unordered_set<const Op*> inside_;
  std::vector<BackwardUse> uses_;
  std::unordered_set<Op*> needed_;
  ValueMap<Value> copies_;
  int64_t bytes_ = 0;
  double flops_ = 0;
};

// Recomputes what keeps the arena of the graph's plan, that the passes after this one make, within
// `budget` bytes: at the least cost, with the smallest set of values kept. Throws Error where
// nothing does.
void recompute_within(Graph& graph, int64_t budget, PassContext& context);

// Bytes of forward values, graph inputs aside, that backward ops read. 0: there is no backward
// pass.
int64_t activation_bytes(const Graph& graph);

}  // namespace sinter::detail
