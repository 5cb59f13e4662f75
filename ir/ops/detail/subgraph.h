#pragma once
// What ops that call sub-graphs share.

#include <sinter/ir/op_def.h>

namespace sinter::detail {

// Copies the ops of `body` to the insertion point of `to` with `inputs` for its inputs; the values
// of its outputs. A copied op keeps its own place, so that the user's line survives, or has that of
// `caller` where it has none; `from` and `segment` are for those that have none of their own.
std::vector<Value> inline_graph(const Graph& body, Graph& to, std::span<const Value> inputs,
                                const Op& caller, const SourceLocation& from,
                                const std::string& segment);
// The same in place of `caller`.
std::vector<Value> inline_graph(const Graph& body, std::span<const Value> inputs, const Op& caller);

// The sub-graph that an op calls, or that its attribute names.
const Graph& callee_of(const Op& op);
const Graph& callee_of(const Op& op, const std::string& name);

// A new graph of the module called `stem` or `stem_N`, that no one runs by name.
Graph& add_body(Module& module, const std::string& stem);
// An input called `name` or `name_N`.
Value add_input(Graph& graph, const std::string& name, TensorType type);
// `body` for many examples, as a new graph: inputs have a leading axis where `carried`, all outputs
// have one.
Graph& add_batched(const Graph& body, const std::vector<bool>& carried, const BatchContext& c);

// "input h of @body is f32[3], got h0 (f32[4])" where operand i does not fit it; nullopt when it
// does.
std::optional<Diagnostic> misfit(const InferContext& c, const Graph& callee, size_t i);
// "@body takes 2 operands, got 3"; nullopt when they are as many.
std::optional<Diagnostic> miscount(const InferContext& c, const Graph& callee);

}  // namespace sinter::detail
