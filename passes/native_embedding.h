#pragma once
// What the kernel `sorted` of embedding_backward works in; see
// codegen/templates/embedding_backward.cuh.

#include <sinter/ir/graph.h>

namespace sinter {

struct EmbeddingScratch {
  int64_t rows = 32;     // sorted positions that one block adds up
  int64_t chunks = 0;    // of so many
  int64_t elements = 0;  // ids
  // Bytes from the start: the sorted ids and their positions, a second buffer for each, a pair of
  // integers for each row of the result, and two partial sums for each chunk.
  int64_t keys = 0, order = 0, spare_keys = 0, spare_order = 0, ranges = 0, partials = 0;
  int64_t bytes = 0;
};
EmbeddingScratch embedding_scratch(const Op& op);

}  // namespace sinter
