// inline: puts the ops of a graph in place of each call of it.
//
// Its place is in front of differentiation, which then sees nothing but ops. What has a derivative
// of its own (custom_vjp) or runs more than once (scan) stays, and is replaced by its ops in
// expand. Calls in a graph that is called are inlined likewise. A graph that loses its last call is
// removed.

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

namespace sinter {

namespace {

void inline_calls(Graph& graph, PassContext& context) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op* before = op->prev();
    if (!op->is("call")) {
      if (op->def().has_callee && op->def().expand)
        context.remark(op->loc(),
                       fmt::format("kept: {} @{} is more than a call", op->name(), op->callee()));
      op = op->next();
      continue;
    }
    context.remark(op->loc(), fmt::format("inlined: @{}", op->callee()));
    detail::expand_in_place(*op);
    // What was called may call in turn.
    op = before != nullptr ? before->next() : graph.front();
  }
}

}  // namespace

void run_inline(Module& module, PassContext& context) {
  std::vector<Graph*> entries = detail::entry_graphs(module);
  for (const auto& graph : module.graphs()) inline_calls(*graph, context);
  detail::erase_uncalled(module, entries);
}

}  // namespace sinter
