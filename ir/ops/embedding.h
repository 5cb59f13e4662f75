#pragma once
// Rows of a table by index, the gradient of that, and checks of indices.

#include <sinter/ir/graph.h>

namespace sinter {

struct EmbeddingBackwardAttrs {
  int64_t vocab = 0;
  static constexpr auto fields() {
    return std::tuple{field("vocab", &EmbeddingBackwardAttrs::vocab, "rows of the table")};
  }
};
struct CheckIndexAttrs {
  int64_t low = 0, high = 0, ignore = 0;
  bool has_ignore = false;
  std::string what = "index";
  std::string place = "position";
  static constexpr auto fields() {
    return std::tuple{field("low", &CheckIndexAttrs::low, "the smallest index allowed"),
                      field("high", &CheckIndexAttrs::high, "the end, exclusive"),
                      field("ignore", &CheckIndexAttrs::ignore, "allowed too, if has_ignore"),
                      field("has_ignore", &CheckIndexAttrs::has_ignore, "whether `ignore` counts"),
                      field("what", &CheckIndexAttrs::what, "what messages call the index"),
                      field("place", &CheckIndexAttrs::place, "what messages call its place")};
  }
};

// "embedding: index 7 at position 3 is outside 0..4": how executors report a bad index that `op`
// found.
std::string bad_index_message(const Op& op, int64_t position, int64_t value, int64_t low,
                              int64_t high);

// Row ids[i] of `table` [v,c] for each id (i32 or i64, any shape): ids.shape + [c].
Value embedding(Value table, Value ids, SourceLocation loc = SourceLocation::here());
// The gradient by the table [vocab,c]: row v is the sum of dy's rows whose id is v.
Value embedding_backward(Value ids, Value dy, int64_t vocab,
                         SourceLocation loc = SourceLocation::here());
// t itself; an element outside low..high-1 (other than `ignore`) is reported and becomes low.
// `what` begins the message: "cross_entropy: target".
Value check_index(Value t, int64_t low, int64_t high, std::optional<int64_t> ignore = {},
                  std::string what = "index", std::string place = "position",
                  SourceLocation loc = SourceLocation::here());

}  // namespace sinter
