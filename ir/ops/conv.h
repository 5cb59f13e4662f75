#pragma once
// Convolutions (cross-correlations, as deep learning has them) and the two rearrangements that they
// are made of.
//
// Layouts: x [N, C, spatial…], w [O, C / groups, kernel…], result [N, O, outputs…]; output o of an
// axis reads x at o * stride + tap * dilation - padding. Lists have one entry for each spatial
// axis; an empty one means stride 1, padding 0, dilation 1.
//
// A convolution is w [O, C·kernel] times the columns [C·kernel, N·outputs] of x, one product for
// each group; its gradients are the two products of that matmul, and col2im. bf16 and f16 add up in
// f32 and round once, the bias included.

#include <sinter/ir/graph.h>

namespace sinter {

struct ConvAttrs {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  static constexpr auto fields() {
    return std::tuple{
        field("stride", &ConvAttrs::stride, "from one output's window to the next; [] means 1"),
        field("padding", &ConvAttrs::padding, "zeros on both sides of an axis; [] means none"),
        field("dilation", &ConvAttrs::dilation, "from one tap to the next; [] means 1"),
        field("groups", &ConvAttrs::groups, "parts of the channels that do not mix")};
  }
};
struct Im2colAttrs {
  std::vector<int64_t> kernel, stride, padding, dilation;
  static constexpr auto fields() {
    return std::tuple{
        field("kernel", &Im2colAttrs::kernel, "the window's extents, one for each spatial axis"),
        field("stride", &Im2colAttrs::stride, "from one window to the next; [] means 1"),
        field("padding", &Im2colAttrs::padding, "zeros on both sides of an axis; [] means none"),
        field("dilation", &Im2colAttrs::dilation, "from one tap to the next; [] means 1")};
  }
};
struct Col2imAttrs {
  std::vector<int64_t> extents, stride, padding, dilation;
  static constexpr auto fields() {
    return std::tuple{
        field("extents", &Col2imAttrs::extents, "the result's spatial extents"),
        field("stride", &Col2imAttrs::stride, "from one window to the next; [] means 1"),
        field("padding", &Col2imAttrs::padding, "zeros on both sides of an axis; [] means none"),
        field("dilation", &Col2imAttrs::dilation, "from one tap to the next; [] means 1")};
  }
};

// x [N, C, L] and w [O, C / groups, K]: [N, O, outputs], plus bias [O] where given.
Value conv1d(Value x, Value w, Value bias = {}, ConvAttrs attrs = {},
             SourceLocation loc = SourceLocation::here());
// x [N, C, H, W] and w [O, C / groups, KH, KW]: [N, O, outputs…], plus bias [O] where given.
Value conv2d(Value x, Value w, Value bias = {}, ConvAttrs attrs = {},
             SourceLocation loc = SourceLocation::here());
// x [N, C, spatial…] as the columns [C, kernel…, N, outputs…] that windows read; 0 for padding.
Value im2col(Value x, Im2colAttrs attrs, SourceLocation loc = SourceLocation::here());
// The transpose of im2col: columns added up at the places of [N, C, extents…] they were read from.
Value col2im(Value columns, Col2imAttrs attrs, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
