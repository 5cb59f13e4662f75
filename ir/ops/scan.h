#pragma once
// Loops over a leading axis: a body graph runs once for each row, and hands values on to its next
// run.

#include <sinter/ir/graph.h>

namespace sinter {

struct ScanAttrs {
  int64_t carries = 0, stacked = 0, length = -1;
  bool reverse = false, recompute = false;
  static constexpr auto fields() {
    return std::tuple{
        field("carries", &ScanAttrs::carries, "how many operands, the first, are carried"),
        field("stacked", &ScanAttrs::stacked, "how many of those behind are read row by row"),
        field("length", &ScanAttrs::length, "steps; -1: the rows of the stacked operands"),
        field("reverse", &ScanAttrs::reverse, "from the last row to the first"),
        field("recompute", &ScanAttrs::recompute,
              "the gradient computes the body again and keeps the carries alone")};
  }
};

// Runs `body` once for each row of `stacked` (values [length, …]; their first axis). The inputs of
// the body are the carries, a row of each stacked value, and the constants; its outputs are the
// next carries, of their types, and a row of each stacked result. Gives the last carries and the
// stacked results [length, …]. `options` needs a `length` only where nothing is stacked; `carries`
// and `stacked` are set here.
std::vector<Value> scan(Graph& body, std::vector<Value> carries, std::vector<Value> stacked,
                        std::vector<Value> constants, ScanAttrs options = {},
                        SourceLocation loc = SourceLocation::here());

// How often the op's body runs.
int64_t scan_length(const Op& op);

}  // namespace sinter
