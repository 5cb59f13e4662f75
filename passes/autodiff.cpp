// autodiff: appends the gradients of a loss, by reverse mode (detail/reverse_mode.cpp).
//
// It differentiates what its options name, and else the graphs with the attributes `loss = "NAME"`
// (an output) and `wrt = ["w", …]` (inputs), which minimize() writes; there it takes the attribute
// `loss` away. The results are the outputs grad_NAME, in the order of wrt; where the options are
// used and such a result is there already, as from a first derivative, grad2_NAME.

#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

namespace sinter {

namespace {

constexpr std::string_view kStem = "grad", kPrefix = "grad_";

void append_gradients(Graph& graph, const std::string& of, const std::vector<std::string>& wrt,
                      std::optional<std::string> prefix, PassContext& context) {
  Value loss = detail::values_named(graph, "autodiff", {&of, 1}, true)[0];
  std::vector<Value> values = detail::values_named(graph, "autodiff", wrt, false);
  if (prefix)
    for (const std::string& name : wrt)
      if (detail::has_output(graph, *prefix + name))
        throw Error(fmt::format("autodiff: graph @{} already has an output {}{}", graph.name(),
                                *prefix, name));
  detail::ReverseOptions options;
  options.context = &context;
  Value one;
  std::vector<Value> grads = detail::reverse_mode(graph, {&loss, 1}, {&one, 1}, values, options);
  if (!prefix) return detail::add_outputs(graph, kStem, wrt, grads);
  for (size_t i = 0; i < wrt.size(); ++i) graph.add_output(*prefix + wrt[i], grads[i]);
}

const std::string* string_attribute(const Graph& graph, std::string_view name) {
  auto it = graph.attributes.find(name);
  return it == graph.attributes.end() ? nullptr : std::get_if<std::string>(&it->second);
}

void run_from_options(Module& module, PassContext& context) {
  std::string of(context.option("of"));
  std::vector<std::string> wrt = detail::names_of("autodiff", context.option("wrt"));
  if (of.empty() || wrt.empty()) throw Error("autodiff: give both of=VALUE and wrt=VALUE,…");
  std::optional<std::string> prefix;
  if (context.has_option("prefix")) prefix = context.option("prefix");
  for (Graph* graph : detail::graphs_with(module, context, "autodiff", of))
    append_gradients(*graph, of, wrt, prefix, context);
}

}  // namespace

void run_autodiff(Module& module, PassContext& context) {
  if (context.has_option("of") || context.has_option("wrt"))
    return run_from_options(module, context);
  for (Graph* graph : detail::entry_graphs(module)) {
    const std::string* loss = string_attribute(*graph, "loss");
    if (loss == nullptr) continue;
    auto wrt = graph->attributes.find("wrt");
    const auto* names = wrt == graph->attributes.end()
                            ? nullptr
                            : std::get_if<std::vector<std::string>>(&wrt->second);
    if (names == nullptr)
      throw Error(
          fmt::format("autodiff: graph @{} has a loss and no list of names wrt", graph->name()));
    append_gradients(*graph, *loss, *names, std::string(kPrefix), context);
    graph->attributes.erase("loss");
  }
}

}  // namespace sinter
