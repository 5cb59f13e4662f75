// layout: says which ops are free views of their operand.
//
// Every value is dense and row-major, so a reshape is its operand's storage under another shape,
// and every other op that rearranges elements writes a new value. With `off` a graph is marked
// `layout = "dense"`, and reshapes are copies too.

#include <sinter/passes/layout.h>

#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

namespace sinter {

bool is_free_view(const Op& op) {
  return op.is("reshape") && !op.graph().attributes.contains("layout");
}

void run_layout(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module)) {
    if (context.has_option("off")) {
      graph->attributes["layout"] = std::string("dense");
      continue;
    }
    graph->attributes.erase("layout");
    for (Op& op : *graph) {
      if (is_free_view(op))
        context.remark(op.loc(), fmt::format("view: {} of {}", detail::describe(op.result()),
                                             detail::describe(op.operand(0))));
      else if (op.def().kind == OpKind::View)
        context.remark(op.loc(),
                       fmt::format("copy: {} writes {}", op.name(), detail::describe(op.result())));
    }
  }
}

}  // namespace sinter
