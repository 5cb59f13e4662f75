#pragma once
// Running sums and products along an axis.

#include <sinter/ir/body.h>
#include <sinter/ir/graph.h>

namespace sinter {

struct PrefixAttrs {
  Axis axis;
  bool reverse = false, exclusive = false;
  static constexpr auto fields() {
    return std::tuple{field("axis", &PrefixAttrs::axis, "the axis along which elements run up"),
                      field("reverse", &PrefixAttrs::reverse, "from the end to the start"),
                      field("exclusive", &PrefixAttrs::exclusive, "without the element itself")};
  }
};

// Element i is the sum of elements 0..i of x (numeric) along `axis`, or 0..i-1 if `exclusive`; with
// `reverse`, of i.. and i+1.. to the end. bf16 and f16 add up in f32 and round once, integers wrap.
Value cumsum(Value x, int64_t axis = -1, bool reverse = false, bool exclusive = false,
             SourceLocation loc = SourceLocation::here());
// The same with products. The gradient is right with any number of zeros: it divides by nothing.
Value cumprod(Value x, int64_t axis = -1, bool reverse = false, bool exclusive = false,
              SourceLocation loc = SourceLocation::here());

// The primitive that the two become: along the last axis, and in a fixed order (PrefixOrder), which
// the pass `expand` chooses where `lanes` is 0.
struct RunningAttrs {
  std::string combine = "sum";
  bool reverse = false, exclusive = false;
  int64_t lanes = 0;
  int64_t vector = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("combine", &RunningAttrs::combine, "sum or prod"),
        field("reverse", &RunningAttrs::reverse, "from the end to the start"),
        field("exclusive", &RunningAttrs::exclusive, "without the element itself"),
        field("lanes", &RunningAttrs::lanes, "lanes of the order; 0 means 1"),
        field("vector", &RunningAttrs::vector, "neighbours that a lane takes; 0 means 1")};
  }
  PrefixOrder order() const {
    return {lanes > 0 ? lanes : 1, vector > 0 ? vector : 1, reverse, exclusive};
  }
};
Value running(Value x, RunningAttrs attrs, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
