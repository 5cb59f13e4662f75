#pragma once
// What several passes share.

#include <sinter/ir/graph.h>

#include <string>
#include <string_view>
#include <vector>

namespace sinter::detail {

// The graphs that no op calls, in the module's order: those that are run by name. Sub-graphs that
// the C++ functions made (attribute `private`) are none, whether called or not.
std::vector<Graph*> entry_graphs(const Module& module);

// Removes sub-graphs that lost their last call, and those that only they called: private ones, and
// what was no entry graph at first and is one now. How many.
size_t erase_uncalled(Module& module, const std::vector<Graph*>& entries_at_first);

// Replaces a composite op by its expansion, which keeps the op's location, `from`, segment and
// value names; the values that stand for its results.
// With `keep` the op stays behind without uses, so that values which a caller holds stay valid.
std::vector<Value> expand_in_place(Op& op, bool keep = false);

// The view of a value of another dtype, in front of what is being inserted; operands and result
// have that dtype alone.
Op& view_as(const Op& view, std::vector<Value> operands);

// The output of that name, else the input or other value; null when there is none.
Value find_value(const Graph& graph, std::string_view name);

// Whether the op reports values that are out of range, and so does something even where nothing
// reads its result: it has an attribute `what`, by which messages call those values.
bool is_check(const Op& op);

// How many of the ops belong to the backward pass.
size_t count_backward(const std::vector<Op*>& ops);
// Whether one of the ops is a copy that recompute made.
bool recomputes(const std::vector<Op*>& ops);
// How many views other than reshapes read the value: each may leave elements out.
size_t count_views(Value v);

// The name of an operand in the op's definition, or its number among variadic ones.
std::string operand_name(const Op& op, size_t i);

// What a kernel of these ops is called after: "mul_exp_sum", the first that compute something.
std::string kernel_stem(const std::vector<Op*>& ops);

// "%h: f32[8,64], 2048 bytes"; an unnamed value is called after its op.
std::string describe(Value v);

// "%h", or for a value that nobody named the op and the nearest named values that it comes from:
// "(fusion of %x, %w)".
std::string name_of(Value v);

// `wanted`, else what SINTER_DUMP names, made where it is missing. Nothing asked for: "". A folder
// that cannot be had: "", and why in `problem`, for dumping fails no compile.
std::string dump_folder(std::string wanted, std::string& problem);

// Writes a file and the folders above it; whether that worked.
bool write_text(const std::string& path, std::string_view text);

}  // namespace sinter::detail
