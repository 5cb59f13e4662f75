#pragma once
// Reductions over axes.
//
// Sums of bf16 and f16 are kept in f32 and rounded once. The order of addition is part of the
// meaning: elements are numbered row-major over the reduced axes and folded as ReduceOrder says.

#include <sinter/ir/body.h>
#include <sinter/ir/graph.h>

namespace sinter {

struct ReduceAttrs {
  Axes axes;
  bool keep = false;
  int64_t lanes = 0;
  int64_t vector = 0;
  static constexpr auto fields() {
    return std::tuple{field("axes", &ReduceAttrs::axes, "the axes reduced; [] means all"),
                      field("keep", &ReduceAttrs::keep, "reduced axes stay, with extent 1"),
                      field("lanes", &ReduceAttrs::lanes, "lanes of the order; 0 means 1"),
                      field("vector", &ReduceAttrs::vector, "slots of a lane; 0 means 1")};
  }
  ReduceOrder order() const { return {lanes > 0 ? lanes : 1, vector > 0 ? vector : 1}; }
};

// The axes that `attrs` reduces, sorted: all of them when none is named.
std::vector<int64_t> reduced_axes(const ReduceAttrs& attrs, int64_t rank);
// `shape` with `axes` (sorted) removed, or set to 1.
Shape reduced_shape(const Shape& shape, const std::vector<int64_t>& axes, bool keep);
// With what a sum, prod, max or min folds its elements.
Fn combine_of(const Op& op);
// A value reduced over `axes` of a tensor of `shape` (with or without the axes kept), broadcast
// back to that shape.
Value unreduce(Value reduced, const Shape& shape, const std::vector<int64_t>& axes,
               SourceLocation loc = SourceLocation::here());

// The sum over `axes` (none named: all); 0 for no elements.
Value sum(Value x, std::vector<int64_t> axes = {}, bool keep = false,
          SourceLocation loc = SourceLocation::here());
// The product over `axes`; 1 for no elements. Its gradient is right with any number of zeros.
Value prod(Value x, std::vector<int64_t> axes = {}, bool keep = false,
           SourceLocation loc = SourceLocation::here());
// The largest element; NaN survives, ties share the gradient evenly, -inf for no elements.
Value max(Value x, std::vector<int64_t> axes = {}, bool keep = false,
          SourceLocation loc = SourceLocation::here());
// The smallest element; NaN survives, ties share the gradient evenly, inf for no elements.
Value min(Value x, std::vector<int64_t> axes = {}, bool keep = false,
          SourceLocation loc = SourceLocation::here());

}  // namespace sinter
