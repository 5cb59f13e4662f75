#pragma once
// Matrix products.

#include <sinter/ir/graph.h>

namespace sinter {

struct MatmulAttrs {
  bool transpose_a = false, transpose_b = false;
  static constexpr auto fields() {
    return std::tuple{field("transpose_a", &MatmulAttrs::transpose_a, "a is given as [..., k, m]"),
                      field("transpose_b", &MatmulAttrs::transpose_b, "b is given as [..., n, k]")};
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
// The product plus c, rounded once; no broadcasting.
Value matmul_add(Value a, Value b, Value c, bool transpose_a = false, bool transpose_b = false,
                 SourceLocation loc = SourceLocation::here());

}  // namespace sinter
