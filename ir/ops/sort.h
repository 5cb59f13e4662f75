#pragma once
// Sorting along an axis, by a network of comparisons that every executor runs alike.
//
// The order is stable: of equal elements (0 and -0 are equal) the one with the lower index comes
// first, in rising and in falling order. NaN comes last in both. Indices are i32.

#include <sinter/ir/graph.h>

namespace sinter {

struct SortAttrs {
  Axis axis{-1};
  bool descending = false;
  static constexpr auto fields() {
    return std::tuple{field("axis", &SortAttrs::axis, "the axis sorted"),
                      field("descending", &SortAttrs::descending, "the largest first")};
  }
};
struct TopKAttrs {
  int64_t k = 1;
  Axis axis{-1};
  bool largest = true;
  static constexpr auto fields() {
    return std::tuple{field("k", &TopKAttrs::k, "how many elements"),
                      field("axis", &TopKAttrs::axis, "the axis they are taken from"),
                      field("largest", &TopKAttrs::largest, "the largest ones, else the smallest")};
  }
};

struct Sorted {
  Value values, indices;  // values[i] is x at indices[i]
};
// x (numeric) in rising or falling order along `axis`, with where each element came from.
Sorted sort(Value x, int64_t axis = -1, bool descending = false,
            SourceLocation loc = SourceLocation::here());
// The indices of that alone.
Value argsort(Value x, int64_t axis = -1, bool descending = false,
              SourceLocation loc = SourceLocation::here());
// The k largest (or smallest) elements of `axis`, in falling (rising) order.
Sorted topk(Value x, int64_t k, int64_t axis = -1, bool largest = true,
            SourceLocation loc = SourceLocation::here());

}  // namespace sinter
