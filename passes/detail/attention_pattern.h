#pragma once
// Composed attention: softmax(scores) v in single ops, as people write it.

#include <sinter/passes/detail/attention_mask.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace sinter::detail {

// A float added to the scores.
struct AddedBias {
  Value value;  // of the shape of the scores, or broadcast to it by its op
  double factor = 1;
  Shape scores;  // the shape of the scores where it is added
};
// What the rows of scores are multiplied by, or divided.
struct RowFactor {
  Value value;
  Shape scores;
  bool divides = false;
};
// A condition of that sort.
struct MaskPart {
  Condition condition;
  Shape scores;
};

// What was found. Values are as they stand in the graph.
struct AttentionPattern {
  Op* scores = nullptr;   // the product of q and k
  Op* softmax = nullptr;  // where the probabilities are made
  Op* product = nullptr;  // that of the probabilities and v
  Op* last = nullptr;     // whose result is that of attention: the product, or a division after it
  const Op* dropout = nullptr;
  double scale = 1;
  double softcap = 0;
  Band band;
  std::vector<MaskPart> masks;
  std::vector<AddedBias> biases;
  std::vector<RowFactor> factors;
  Value slopes;  // one for each head, or one; the part of the scores is -slope |key - own place|
  double slopes_factor = 1;
  int64_t batch = 1, heads = 1, queries = 0, keys = 0;
};

// Ops that nothing reads, such as canonicalize leaves behind.
std::unordered_set<const Op*> dead_ops(const Graph& graph);

// Whether `v` is a parameter, or a view of one.
bool is_weight(Value v);

// What may be the last op of a softmax that is followed by a product, and comes from one; or the
// division by its sum after that product.
bool may_be_attention(const Op& op);

// Reads the composed attention whose softmax ends with `op`. Einsums among its products are
// expanded. Where it is none, or none that the op `attention` stands for, says why in `why`.
std::optional<AttentionPattern> find_attention(Op& op, const std::unordered_set<const Op*>& dead,
                                               std::string& why);

}  // namespace sinter::detail
