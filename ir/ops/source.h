#pragma once
// Values made from nothing: constants and counters.

#include <sinter/ir/graph.h>
#include <sinter/ir/scalar.h>

namespace sinter {

struct FullAttrs {
  Number value;
  ResultType type;
  static constexpr auto fields() {
    return std::tuple{field("value", &FullAttrs::value, "every element"),
                      field("type", &FullAttrs::type)};
  }
};
struct IotaAttrs {
  Axis axis{0};
  ResultType type;
  static constexpr auto fields() {
    return std::tuple{field("axis", &IotaAttrs::axis, "the axis along which it counts"),
                      field("type", &IotaAttrs::type)};
  }
};

// The element of a `full` of this type, unrounded for floats.
Cell full_cell(const FullAttrs& attrs, DType dtype);

// A tensor whose every element is `value`.
Value full(Graph& graph, TensorType type, Number value,
           SourceLocation loc = SourceLocation::here());
// A `full` of the type and in the graph of `like`.
Value full_like(Value like, Number value, SourceLocation loc = SourceLocation::here());
// 0, 1, 2, … along `axis`, the same along the others.
Value iota(Graph& graph, TensorType type, int64_t axis,
           SourceLocation loc = SourceLocation::here());

}  // namespace sinter
