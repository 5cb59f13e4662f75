#pragma once
// What several passes share.

#include <sinter/ir/graph.h>

#include <string>
#include <string_view>
#include <vector>

namespace sinter::detail {

// The graphs that no op calls, in the module's order: those that are run by name.
std::vector<Graph*> entry_graphs(const Module& module);

// Replaces a composite op by its expansion, which keeps the op's location, `from`, segment and
// value names; the values that stand for its results.
std::vector<Value> expand_in_place(Op& op);

// The output of that name, else the input or other value; null when there is none.
Value find_value(const Graph& graph, std::string_view name);

// "%h: f32[8,64], 2048 bytes"; an unnamed value is called after its op.
std::string describe(Value v);

// `wanted`, else what SINTER_DUMP names, made where it is missing. Nothing asked for: "". A folder
// that cannot be had: "", and why in `problem`, for dumping fails no compile.
std::string dump_folder(std::string wanted, std::string& problem);

// Writes a file and the folders above it; whether that worked.
bool write_text(const std::string& path, std::string_view text);

}  // namespace sinter::detail
