#pragma once
// Batched matrix products on the host: C = A·B, or C = D + A·B, row-major.
//
// Operands are rounded to `compute` on reading; sums are f64 for f64, f32 for f32, bf16 and f16,
// and wrap for i32, i64 and u32; the result is rounded once to C's type. K = 0 gives zeros (or D).
// f64 and f32 go through OpenBLAS, which is set to one thread for the whole process; the work is
// split over batches, or over the rows or columns of a few large matrices, by a rule that sees the
// shapes and the pool's size alone. So results repeat in bits, and do not depend on strides.

#include <sinter/ir/type.h>

#include <cstdint>

namespace sinter {

class ThreadPool;

// A matrix, or one for each batch, with unit stride along its stored rows. Strides are in elements;
// batch stride 0 means that all batches share one matrix.
struct GemmMatrix {
  const void* data = nullptr;
  DType dtype = DType::F32;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
  // The product sees the transpose of what is stored.
  bool transposed = false;
};

struct Gemm {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  GemmMatrix a;  // m × k, stored k × m when transposed
  GemmMatrix b;  // k × n, stored n × k when transposed
  DType compute = DType::F32;
  // Added to the product when data is set; may be the result itself. Never transposed.
  GemmMatrix d;
  void* c = nullptr;  // m × n
  DType c_dtype = DType::F32;
  int64_t c_row_stride = 0;
  int64_t c_batch_stride = 0;
};

// C does not overlap A or B.
void gemm(const Gemm& g, ThreadPool& pool);
void gemm(const Gemm& g);  // on ThreadPool::global()

// The product of dense row-major operands of these logical sizes, to be adjusted further.
Gemm dense_gemm(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, const void* a,
                bool transpose_a, const void* b, bool transpose_b, void* c);

}  // namespace sinter
