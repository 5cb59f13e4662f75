#pragma once
// Ops that rearrange, repeat or mask elements, beyond the index maps of view.h.
//
// x is of any dtype. Axes may be negative: they then count from the end.

#include <sinter/ir/graph.h>

#include <utility>

namespace sinter {

struct SqueezeAttrs {
  Axes axes;
  static constexpr auto fields() {
    return std::tuple{
        field("axes", &SqueezeAttrs::axes, "the axes removed; [] means all of extent 1")};
  }
};
struct UnsqueezeAttrs {
  Axes axes;
  static constexpr auto fields() {
    return std::tuple{
        field("axes", &UnsqueezeAttrs::axes, "where the result has its new axes of extent 1")};
  }
};
struct StackAttrs {
  Axis axis{0};
  static constexpr auto fields() {
    return std::tuple{field("axis", &StackAttrs::axis, "the result's axis that counts operands")};
  }
};
struct SplitAttrs {
  std::vector<int64_t> sizes;
  Axis axis{0};
  static constexpr auto fields() {
    return std::tuple{
        field("sizes", &SplitAttrs::sizes, "the extent of each part; they add up to the axis"),
        field("axis", &SplitAttrs::axis, "the axis cut")};
  }
};
struct ReverseAttrs {
  Axes axes;
  static constexpr auto fields() {
    return std::tuple{field("axes", &ReverseAttrs::axes, "the axes turned round")};
  }
};
struct RollAttrs {
  std::vector<int64_t> shift;
  Axes axes;
  static constexpr auto fields() {
    return std::tuple{field("shift", &RollAttrs::shift, "how far elements move along each of axes"),
                      field("axes", &RollAttrs::axes, "the axes along which they move")};
  }
};
struct RepeatAttrs {
  int64_t count = 1;
  Axis axis{0};
  static constexpr auto fields() {
    return std::tuple{field("count", &RepeatAttrs::count, "how often each element stands there"),
                      field("axis", &RepeatAttrs::axis, "the axis along which it does")};
  }
};
struct TileAttrs {
  std::vector<int64_t> counts;
  static constexpr auto fields() {
    return std::tuple{field("counts", &TileAttrs::counts, "how often each axis is laid out")};
  }
};
struct TriangleAttrs {
  int64_t diagonal = 0;
  static constexpr auto fields() {
    return std::tuple{field("diagonal", &TriangleAttrs::diagonal,
                            "the last diagonal kept (tril) or the first (triu); 0: the main one")};
  }
};
struct DiagonalAttrs {
  int64_t offset = 0;
  Axis axis1{-2}, axis2{-1};
  static constexpr auto fields() {
    return std::tuple{
        field("offset", &DiagonalAttrs::offset, "how far above the main diagonal; below if < 0"),
        field("axis1", &DiagonalAttrs::axis1, "the axis of rows"),
        field("axis2", &DiagonalAttrs::axis2, "the axis of columns")};
  }
};
struct OneHotAttrs {
  ResultType type;
  static constexpr auto fields() { return std::tuple{field("type", &OneHotAttrs::type)}; }
};

// x without `axes`, each of extent 1; none named: without any axis of extent 1.
Value squeeze(Value x, std::vector<int64_t> axes = {}, SourceLocation loc = SourceLocation::here());
// x with axes of extent 1, which are the result's axes `axes` (numpy's expand_dims).
Value unsqueeze(Value x, std::vector<int64_t> axes, SourceLocation loc = SourceLocation::here());
// Values of one type side by side along a new axis of the result.
Value stack(std::vector<Value> values, int64_t axis = 0,
            SourceLocation loc = SourceLocation::here());
// x cut along `axis` into parts of these extents, which add up to the axis.
std::vector<Value> split(Value x, std::vector<int64_t> sizes, int64_t axis = 0,
                         SourceLocation loc = SourceLocation::here());
// x cut along `axis` into `parts` of one extent; the axis must be a multiple of it.
std::vector<Value> split_evenly(Value x, int64_t parts, int64_t axis = 0,
                                SourceLocation loc = SourceLocation::here());
// Element i of each of `axes` is x's element n - 1 - i. (slice takes positive strides only.)
Value reverse(Value x, std::vector<int64_t> axes, SourceLocation loc = SourceLocation::here());
// Elements move `shift` places along an axis; those pushed out come in at the other end.
Value roll(Value x, std::vector<int64_t> shift, std::vector<int64_t> axes,
           SourceLocation loc = SourceLocation::here());
// Each element `count` times in a row along `axis` (numpy's repeat).
Value repeat(Value x, int64_t count, int64_t axis, SourceLocation loc = SourceLocation::here());
// The whole of x counts[i] times along axis i (numpy's tile); one count for each axis.
Value tile(Value x, std::vector<int64_t> counts, SourceLocation loc = SourceLocation::here());
// The last two axes with zeros above diagonal `diagonal` (positive ones lie above the main one).
Value tril(Value x, int64_t diagonal = 0, SourceLocation loc = SourceLocation::here());
// The last two axes with zeros below diagonal `diagonal`.
Value triu(Value x, int64_t diagonal = 0, SourceLocation loc = SourceLocation::here());
// x[…, i, i + offset] of axes axis1, axis2, as the result's last axis (numpy's diagonal).
Value diagonal(Value x, int64_t offset = 0, int64_t axis1 = -2, int64_t axis2 = -1,
               SourceLocation loc = SourceLocation::here());
// 1 where the last axis, of extent `depth`, counts what ids (i32 or i64) holds, else 0:
// ids.shape + [depth]. An id outside 0..depth-1 is an error when executed.
Value one_hot(Value ids, int64_t depth, DType dtype = DType::F32,
              SourceLocation loc = SourceLocation::here());

}  // namespace sinter
