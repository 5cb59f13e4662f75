#pragma once
// Reads and writes at places that the data decides.
//
// Indices are i32 or i64. One outside its axis is an error when executed: the message has op,
// position, value and limit. Only dynamic_slice and dynamic_update_slice, whose starts are clamped
// so that the window fits (as XLA does), accept any start. Writes are deterministic: what goes to
// one place is taken in the order of the index tensor.

#include <sinter/ir/graph.h>

namespace sinter {

struct GatherAttrs {
  Axis axis{0};
  static constexpr auto fields() {
    return std::tuple{field("axis", &GatherAttrs::axis, "the axis of x that ids index")};
  }
};
struct TakeAlongAxisAttrs {
  Axis axis{-1};
  static constexpr auto fields() {
    return std::tuple{field("axis", &TakeAlongAxisAttrs::axis, "the axis of x that ids index")};
  }
};
struct TakeAlongAxisBackwardAttrs {
  Axis axis{-1};
  int64_t extent = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("axis", &TakeAlongAxisBackwardAttrs::axis, "the axis that ids index"),
        field("extent", &TakeAlongAxisBackwardAttrs::extent, "the result's extent of it")};
  }
};
struct MaskedFillAttrs {
  Number value;
  static constexpr auto fields() {
    return std::tuple{field("value", &MaskedFillAttrs::value, "what stands where the mask holds")};
  }
};
struct DynamicSliceAttrs {
  std::vector<int64_t> sizes;
  static constexpr auto fields() {
    return std::tuple{field("sizes", &DynamicSliceAttrs::sizes, "the result's extents")};
  }
};

// x with ids in place of index `axis` (numpy's take): x.shape before the axis, ids.shape, x.shape
// behind it. x is of any dtype.
Value gather(Value x, Value ids, int64_t axis = 0, SourceLocation loc = SourceLocation::here());
// x where the slice at each ids[p] of `axis` is that of `updates` at p, the last p winning; updates
// has the shape that gather(x, ids, axis) has.
Value scatter(Value x, Value ids, Value updates, int64_t axis = 0,
              SourceLocation loc = SourceLocation::here());
// x plus, at each ids[p] of `axis`, the slice of `updates` at p: the updates of one place add up in
// rising p, in f32 for bf16 and f16, then x is added and the sum rounded once.
Value scatter_add(Value x, Value ids, Value updates, int64_t axis = 0,
                  SourceLocation loc = SourceLocation::here());
// x[…, ids[…, p, …], …]: ids has x's shape but for `axis`; axes of extent 1 are broadcast.
Value take_along_axis(Value x, Value ids, int64_t axis = -1,
                      SourceLocation loc = SourceLocation::here());
// The gradient of take_along_axis by x, whose extent along `axis` is `extent`.
Value take_along_axis_backward(Value ids, Value dy, int64_t axis, int64_t extent,
                               SourceLocation loc = SourceLocation::here());
// `value` where mask (bool, broadcast to x's shape) holds, else x.
Value masked_fill(Value x, Value mask, Number value, SourceLocation loc = SourceLocation::here());
// The window of extents `sizes` that begins at start [rank of x], moved to lie within x.
Value dynamic_slice(Value x, Value start, std::vector<int64_t> sizes,
                    SourceLocation loc = SourceLocation::here());
// x with `update` in place of that window.
Value dynamic_update_slice(Value x, Value update, Value start,
                           SourceLocation loc = SourceLocation::here());

}  // namespace sinter
