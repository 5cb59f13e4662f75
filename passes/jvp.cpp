// jvp: forward mode (detail/forward_mode.cpp).
//
// `jvp{of=y,z wrt=x}` adds an input tangent_NAME for each value of `wrt`, and the outputs
// tangent_NAME for each of `of`: the derivative along the given direction. Where those names are
// taken they are tangent2_NAME.

#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/pass.h>

namespace sinter {

void run_jvp(Module& module, PassContext& context) {
  std::vector<std::string> of = detail::names_of("jvp", context.option("of"));
  std::vector<std::string> wrt = detail::names_of("jvp", context.option("wrt"));
  if (of.empty() || wrt.empty()) throw Error("jvp: give both of=VALUE,… and wrt=VALUE,…");
  for (Graph* graph : detail::graphs_with(module, context, "jvp", of[0])) {
    std::vector<Value> values = detail::values_named(*graph, "jvp", of, true);
    std::vector<Value> by = detail::values_named(*graph, "jvp", wrt, false);
    std::vector<Value> directions = detail::add_inputs(*graph, "tangent", wrt, by);
    std::vector<Value> out = detail::forward_mode(*graph, values, by, directions, &context);
    detail::add_outputs(*graph, "tangent", of, out);
  }
}

}  // namespace sinter
