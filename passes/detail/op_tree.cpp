#include <sinter/passes/detail/op_tree.h>

#include <vector>

namespace sinter::detail {

OpTree::OpTree(const Graph& graph) {
  std::unordered_map<const Op*, std::vector<const Op*>> below;
  std::vector<const Op*> roots;
  for (const Op& op : graph) {
    const Op* latest = nullptr;
    for (Value v : op.operands())
      if (const Op* up = v ? v.op() : nullptr)
        if (latest == nullptr || up->position() > latest->position()) latest = up;
    (latest ? below[latest] : roots).push_back(&op);
  }
  int64_t time = 0;
  std::vector<std::pair<const Op*, size_t>> stack;
  for (const Op* root : roots) {
    stack.emplace_back(root, 0);
    while (!stack.empty()) {
      auto& [op, next] = stack.back();
      if (next == 0) span_[op].first = time++;
      const std::vector<const Op*>& children = below[op];
      if (next < children.size()) {
        const Op* child = children[next++];
        stack.emplace_back(child, 0);
      } else {
        span_[op].second = time;
        stack.pop_back();
      }
    }
  }
}

}  // namespace sinter::detail
