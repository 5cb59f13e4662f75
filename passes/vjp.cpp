// vjp: reverse mode from given cotangents.
//
// `vjp{of=y,z wrt=x}` adds an input cotangent_NAME for each value of `of`, and the outputs
// grad_NAME for each of `wrt`; where those names are taken, cotangent2_NAME and grad2_NAME. What
// nothing depends on gets zeros, or with unused=refuse an error.

#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/pass.h>

namespace sinter {

void run_vjp(Module& module, PassContext& context) {
  std::vector<std::string> of = detail::names_of("vjp", context.option("of"));
  std::vector<std::string> wrt = detail::names_of("vjp", context.option("wrt"));
  if (of.empty() || wrt.empty()) throw Error("vjp: give both of=VALUE,… and wrt=VALUE,…");
  std::string_view unused = context.option("unused", "zeros");
  if (unused != "zeros" && unused != "refuse")
    throw Error(fmt::format("vjp: unused is zeros or refuse, not {}", unused));
  for (Graph* graph : detail::graphs_with(module, context, "vjp", of[0])) {
    std::vector<Value> values = detail::values_named(*graph, "vjp", of, true);
    std::vector<Value> by = detail::values_named(*graph, "vjp", wrt, false);
    std::vector<Value> cotangents = detail::add_inputs(*graph, "cotangent", of, values);
    detail::ReverseOptions options;
    options.pass = "vjp";
    options.context = &context;
    if (unused == "refuse") options.unused = detail::ReverseOptions::Refused;
    std::vector<Value> grads = detail::reverse_mode(*graph, values, cotangents, by, options);
    detail::add_outputs(*graph, "grad", wrt, grads);
  }
}

}  // namespace sinter
