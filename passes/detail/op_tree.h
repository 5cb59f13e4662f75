#pragma once
// A tree that holds for each op of a graph the path up through its latest operand. An op below
// another one in it depends on it, however far apart they stand: a backward op on the forward of
// its layer. Valid for the ops that the graph had, in the order that they had.

#include <sinter/ir/graph.h>

#include <unordered_map>
#include <utility>

namespace sinter::detail {

class OpTree {
 public:
  explicit OpTree(const Graph& graph);
  // False says nothing: `op` may depend on `above` by another path.
  bool is_below(const Op* op, const Op* above) const {
    const auto &inner = span_.at(op), &outer = span_.at(above);
    return op != above && outer.first <= inner.first && inner.second <= outer.second;
  }

 private:
  std::unordered_map<const Op*, std::pair<int64_t, int64_t>> span_;
};

}  // namespace sinter::detail
