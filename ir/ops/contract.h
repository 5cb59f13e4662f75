#pragma once
// Matrix products.

#include <sinter/ir/graph.h>

namespace sinter {

struct MatmulAttrs {
  bool transpose_a = false, transpose_b = false;
  std::string compute;
  std::string result;
  static constexpr auto fields() {
    return std::tuple{field("transpose_a", &MatmulAttrs::transpose_a, "a is given as [..., k, m]"),
                      field("transpose_b", &MatmulAttrs::transpose_b, "b is given as [..., n, k]"),
                      field("compute", &MatmulAttrs::compute,
                            "bf16, f16 or tf32: operands are rounded to it on reading; empty: to "
                            "nothing narrower than they are"),
                      field("result", &MatmulAttrs::result, "the result's dtype; empty: a's")};
  }
};

// The extents of one matmul: batch products of [m,k] and [k,n].
struct MatmulSizes {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};
MatmulSizes matmul_sizes(const Op& op);

// The product over the last two axes; leading axes are broadcast, and may be missing on one side.
Value matmul(Value a, Value b, bool transpose_a = false, bool transpose_b = false,
             SourceLocation loc = SourceLocation::here());
// The product in these types; no broadcasting.
Value matmul(Value a, Value b, MatmulAttrs attrs, SourceLocation loc = SourceLocation::here());
// The dtype that operands of the product are rounded to on reading: `compute`, or the operands'
// own. TF32 rounds no operand in the IR: executors without it use f32.
DType matmul_compute(const Op& op);
// The product plus c, rounded once. c is of the result's type, or a row that is added to every row,
// in the result's dtype or in f32, which is rounded to it first.
Value matmul_add(Value a, Value b, Value c, MatmulAttrs attrs,
                 SourceLocation loc = SourceLocation::here());

}  // namespace sinter
