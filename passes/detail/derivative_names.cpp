#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/detail/util.h>

#include <algorithm>

namespace sinter::detail {

std::vector<std::string> names_of(std::string_view pass, std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    std::string name(list.substr(0, comma));
    if (std::find(out.begin(), out.end(), name) != out.end())
      throw Error(fmt::format("{}: {} is named twice", pass, name));
    out.push_back(std::move(name));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

std::vector<Graph*> graphs_with(Module& module, const PassContext& context, std::string_view pass,
                                std::string_view value) {
  if (std::string_view name = context.option("graph"); !name.empty()) {
    Graph* graph = module.find(name);
    if (graph == nullptr) throw Error(fmt::format("{}: there is no graph @{}", pass, name));
    return {graph};
  }
  std::vector<Graph*> graphs = entry_graphs(module);
  // Alone, a graph may say itself what it lacks.
  if (graphs.size() == 1) return graphs;
  std::erase_if(graphs, [&](Graph* graph) { return !find_value(*graph, value); });
  if (graphs.empty()) throw Error(fmt::format("{}: no graph has a value {}", pass, value));
  return graphs;
}

std::vector<Value> values_named(const Graph& graph, std::string_view pass,
                                std::span<const std::string> names, bool outputs_first) {
  std::vector<Value> values;
  for (const std::string& name : names) {
    Value v;
    if (!outputs_first) v = graph.find_input(name);
    if (!v) v = find_value(graph, name);
    if (!v) throw Error(fmt::format("{}: graph @{} has no value {}", pass, graph.name(), name));
    values.push_back(v);
  }
  return values;
}

std::vector<std::string> numbered_names(std::string_view stem, std::span<const std::string> names,
                                        const std::function<bool(const std::string&)>& taken) {
  for (int number = 1;; ++number) {
    std::vector<std::string> out;
    for (const std::string& name : names)
      out.push_back(number == 1 ? fmt::format("{}_{}", stem, name)
                                : fmt::format("{}{}_{}", stem, number, name));
    if (std::none_of(out.begin(), out.end(), taken)) return out;
  }
}

bool has_output(const Graph& graph, std::string_view name) {
  return std::any_of(graph.outputs().begin(), graph.outputs().end(),
                     [&](const GraphOutput& o) { return o.name == name; });
}

void add_outputs(Graph& graph, std::string_view stem, std::span<const std::string> names,
                 std::span<const Value> values) {
  auto free =
      numbered_names(stem, names, [&](const std::string& name) { return has_output(graph, name); });
  for (size_t i = 0; i < free.size(); ++i) graph.add_output(free[i], values[i]);
}

std::vector<Value> add_inputs(Graph& graph, std::string_view stem,
                              std::span<const std::string> names, std::span<const Value> like) {
  auto free = numbered_names(stem, names, [&](const std::string& name) {
    return static_cast<bool>(graph.find_input(name));
  });
  std::vector<Value> inputs;
  for (size_t i = 0; i < free.size(); ++i)
    inputs.push_back(graph.add_input(free[i], like[i].type()));
  return inputs;
}

}  // namespace sinter::detail
