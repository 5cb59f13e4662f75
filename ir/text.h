#pragma once
// The text of the IR: printing and parsing round-trip exactly, whatever the locale. See docs/ir.md
// for the grammar.

#include <sinter/ir/graph.h>

#include <memory>
#include <string>
#include <string_view>

namespace sinter {

struct PrintOptions {
  // `loc("f.cpp":12) from("f.cpp":9) with("f.cpp":11, "f.cpp":13)` after each type: the op's own
  // place, that of the op it was made from, and those of the others it was made from.
  bool locations = false;
};

std::string print(const Module& module, const PrintOptions& options = {});
std::string print(const Graph& graph, const PrintOptions& options = {});
// One op as it prints inside its graph, for messages; unnamed values print as `%_`.
std::string print(const Op& op);

// Throws Error with FILE:LINE:COL. Types are checked against each op's rule. Without `loc(…)` an
// op's location is its place in the text.
std::unique_ptr<Module> parse_module(std::string_view text, std::string_view file_name);

}  // namespace sinter
