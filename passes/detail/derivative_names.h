#pragma once
// What the passes of differentiation and batching share: their options, and names for what they
// add.

#include <sinter/passes/pass.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace sinter::detail {

// "a,b" as names; throws for a name given twice, in the name of the pass.
std::vector<std::string> names_of(std::string_view pass, std::string_view list);

// The graphs that a pass with the option `graph` works on: the one named, else those run by name
// that have a value `value`. Throws when there is none.
std::vector<Graph*> graphs_with(Module& module, const PassContext& context, std::string_view pass,
                                std::string_view value);

// The values of these names: inputs and ops' results before outputs, where a parameter's next value
// goes by the parameter's name, or the other way round. Throws for a name that none has.
std::vector<Value> values_named(const Graph& graph, std::string_view pass,
                                std::span<const std::string> names, bool outputs_first);

// STEM_NAME for each name, or STEM2_NAME, STEM3_NAME, … with the first number for which none of
// them is taken: the second derivative's outputs stand beside those of the first.
std::vector<std::string> numbered_names(std::string_view stem, std::span<const std::string> names,
                                        const std::function<bool(const std::string&)>& taken);
bool has_output(const Graph& graph, std::string_view name);

// `value` as an output under the first of these names that is free.
void add_outputs(Graph& graph, std::string_view stem, std::span<const std::string> names,
                 std::span<const Value> values);
// Inputs STEM_NAME of the types of `like`.
std::vector<Value> add_inputs(Graph& graph, std::string_view stem,
                              std::span<const std::string> names, std::span<const Value> like);

}  // namespace sinter::detail
