#pragma once
// Ops that only move elements: each result element is one operand element or a constant.
//
// Axes given to the functions may be negative. `broadcast` is also `broadcast_to` (operand.h).

#include <sinter/ir/graph.h>

namespace sinter {

struct BroadcastAttrs {
  ResultType type;
  static constexpr auto fields() { return std::tuple{field("type", &BroadcastAttrs::type)}; }
};
struct ReshapeAttrs {
  ResultType type;
  static constexpr auto fields() { return std::tuple{field("type", &ReshapeAttrs::type)}; }
};
struct PermuteAttrs {
  Axes axes;
  static constexpr auto fields() {
    return std::tuple{
        field("axes", &PermuteAttrs::axes, "result axis i is the operand's axis axes[i]")};
  }
};
struct SliceAttrs {
  std::vector<int64_t> start, limit, stride;
  static constexpr auto fields() {
    return std::tuple{field("start", &SliceAttrs::start, "first index of each axis"),
                      field("limit", &SliceAttrs::limit, "end of each axis, exclusive"),
                      field("stride", &SliceAttrs::stride, "step of each axis; [] means 1")};
  }
};
struct ConcatAttrs {
  Axis axis{0};
  static constexpr auto fields() {
    return std::tuple{field("axis", &ConcatAttrs::axis, "the axis along which operands follow")};
  }
};
struct PadAttrs {
  std::vector<int64_t> low, high;
  Number value;
  std::vector<int64_t> interior;
  std::string mode = "constant";
  static constexpr auto fields() {
    return std::tuple{field("low", &PadAttrs::low, "elements in front of each axis"),
                      field("high", &PadAttrs::high, "elements behind each axis"),
                      field("value", &PadAttrs::value, "the elements added"),
                      field("interior", &PadAttrs::interior,
                            "elements between neighbours of each axis; [] means none"),
                      field("mode", &PadAttrs::mode,
                            "constant: `value`; edge: the nearest element; reflect: x mirrored at "
                            "its first and last element")};
  }
};

// x in another shape of as many elements, in row-major order; x itself when it has that shape.
Value reshape(Value x, Shape shape, SourceLocation loc = SourceLocation::here());
// Result axis i is x's axis axes[i].
Value permute(Value x, std::vector<int64_t> axes, SourceLocation loc = SourceLocation::here());
// x with axes a and b exchanged.
Value transpose(Value x, int64_t a = -2, int64_t b = -1,
                SourceLocation loc = SourceLocation::here());
// Elements start, start + stride, … below limit of each axis; an empty stride means 1.
Value slice(Value x, std::vector<int64_t> start, std::vector<int64_t> limit,
            std::vector<int64_t> stride = {}, SourceLocation loc = SourceLocation::here());
// A slice of one axis; negative start and limit count from the end.
Value slice_axis(Value x, int64_t axis, int64_t start, int64_t limit, int64_t stride = 1,
                 SourceLocation loc = SourceLocation::here());
// The values one after another along `axis`.
Value concat(std::vector<Value> values, int64_t axis, SourceLocation loc = SourceLocation::here());
// x with low[i] elements of `value` in front of axis i and high[i] behind.
Value pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high, Number value = 0,
          std::vector<int64_t> interior = {}, SourceLocation loc = SourceLocation::here());
// The same with elements of x around it: mode "edge" repeats the nearest one, "reflect" mirrors x
// at its first and last element, which needs less padding than x has elements.
Value pad_mode(Value x, std::vector<int64_t> low, std::vector<int64_t> high, std::string mode,
               SourceLocation loc = SourceLocation::here());

}  // namespace sinter
