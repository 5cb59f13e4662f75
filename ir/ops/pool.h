#pragma once
// Pooling over sliding windows.
//
// x [N, C, spatial…], result [N, C, outputs…]: output o of an axis takes x at o * stride - padding
// and the kernel - 1 places behind. The padding is at most half the kernel, so that every window
// holds an element. An empty stride is the kernel, an empty padding 0. Any number of spatial axes.

#include <sinter/ir/graph.h>

namespace sinter {

struct PoolAttrs {
  std::vector<int64_t> kernel, stride, padding;
  static constexpr auto fields() {
    return std::tuple{
        field("kernel", &PoolAttrs::kernel, "the window's extents, one for each spatial axis"),
        field("stride", &PoolAttrs::stride, "from one window to the next; [] means the kernel"),
        field("padding", &PoolAttrs::padding, "places added on both sides; [] means none")};
  }
};
struct AveragePoolAttrs {
  std::vector<int64_t> kernel, stride, padding;
  bool count_padding = true;
  static constexpr auto fields() {
    return std::tuple{
        field("kernel", &AveragePoolAttrs::kernel,
              "the window's extents, one for each spatial axis"),
        field("stride", &AveragePoolAttrs::stride,
              "from one window to the next; [] means the kernel"),
        field("padding", &AveragePoolAttrs::padding, "zeros on both sides; [] means none"),
        field("count_padding", &AveragePoolAttrs::count_padding,
              "whether the zeros of the padding count as elements")};
  }
};

// The largest element of each window; NaN survives, ties share the gradient evenly.
Value max_pool(Value x, PoolAttrs attrs, SourceLocation loc = SourceLocation::here());
// The mean of each window, in f32 for bf16 and f16, rounded once.
Value avg_pool(Value x, AveragePoolAttrs attrs, SourceLocation loc = SourceLocation::here());
// The gradient of max_pool: dy, each window's shared evenly by the elements of x that equal y.
Value max_pool_backward(Value x, Value y, Value dy, PoolAttrs attrs,
                        SourceLocation loc = SourceLocation::here());

}  // namespace sinter
