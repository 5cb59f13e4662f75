// dce: removes ops that no output depends on, and the sub-graphs that lose their last call. A check
// stays, read or not: that it reports is its purpose.

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <unordered_set>

namespace sinter {

namespace {

bool is_used(const Op& op, const std::unordered_set<Value, ValueHash>& outputs) {
  for (size_t i = 0; i < op.num_results(); ++i) {
    Value v = op.result(i);
    if (!v.uses().empty() || outputs.contains(v)) return true;
  }
  return false;
}

// Backwards, so that one walk removes whole chains.
size_t remove_unused_ops(Graph& graph) {
  std::unordered_set<Value, ValueHash> outputs;
  for (const GraphOutput& o : graph.outputs()) outputs.insert(o.value);
  size_t removed = 0;
  for (Op* op = graph.back(); op != nullptr;) {
    Op* before = op->prev();
    if (!is_used(*op, outputs) && !detail::is_check(*op)) {
      graph.erase(*op);
      ++removed;
    }
    op = before;
  }
  return removed;
}

}  // namespace

void run_dce(Module& module, PassContext& context) {
  std::vector<Graph*> entries = detail::entry_graphs(module);
  size_t removed = 0;
  for (const auto& graph : module.graphs()) removed += remove_unused_ops(*graph);
  size_t graphs = detail::erase_uncalled(module, entries);
  if (removed + graphs > 0)
    context.remark({}, fmt::format("removed {} ops and {} sub-graphs", removed, graphs));
}

}  // namespace sinter
