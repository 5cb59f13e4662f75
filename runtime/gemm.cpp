#include <sinter/runtime/gemm.h>

#include <cblas.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/numeric.h>
#include <sinter/runtime/thread_pool.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <type_traits>

namespace sinter {
namespace {

// Below this many multiplications a product stays on the calling thread.
constexpr double kSerialWork = 32768;
// Rows or columns of one piece of a split matrix: a multiple of every BLAS kernel's tile.
constexpr int64_t kTile = 48;

const char* address(const void* base, int64_t index, DType dtype) {
  return static_cast<const char*>(base) + index * size_of(dtype);
}
char* address(void* base, int64_t index, DType dtype) {
  return static_cast<char*>(base) + index * size_of(dtype);
}

// One row from `from` rounded to `compute` and widened to T, which is its type of sums.
template <typename T>
void load_row(DType from, const void* source, DType compute, T* target, int64_t count) {
  constexpr DType sum = dtype_of<T>;
  if (from == compute || compute == sum) return convert_elements(from, source, sum, target, count);
  if (from == DType::F32 && compute == DType::BF16) {
    const auto* values = static_cast<const float*>(source);
    for (int64_t i = 0; i < count; ++i)
      target[i] = static_cast<T>(bf16_to_f32(f32_to_bf16(values[i])));
    return;
  }
  uint64_t cell = 0;
  for (int64_t i = 0; i < count; ++i) {
    convert_element(from, source, i, compute, &cell, 0);
    convert_element(compute, &cell, 0, sum, target, i);
  }
}

// An operand as BLAS reads it: the caller's memory, or a dense copy in the type of sums.
template <typename T>
struct Operand {
  const T* data = nullptr;
  int64_t row_stride = 0, batch_stride = 0;
  bool transposed = false;
  std::unique_ptr<T[]> copy;
};

template <typename T>
Operand<T> prepare(const GemmMatrix& x, int64_t rows, int64_t columns, int64_t batch, DType compute,
                   ThreadPool& pool) {
  Operand<T> result;
  result.transposed = x.transposed;
  // BLAS cannot read rows that overlap (a row stride of 0, say).
  const bool readable = x.row_stride >= columns || rows <= 1;
  if (x.dtype == dtype_of<T> && compute == dtype_of<T> && readable) {
    result.data = static_cast<const T*>(x.data);
    result.row_stride = x.row_stride;
    result.batch_stride = x.batch_stride;
    return result;
  }
  const int64_t copies = x.batch_stride == 0 ? 1 : batch;
  result.copy.reset(new T[static_cast<size_t>(copies * rows * columns)]);
  result.data = result.copy.get();
  result.row_stride = columns;
  result.batch_stride = x.batch_stride == 0 ? 0 : rows * columns;
  pool.parallel_for(
      0, copies * rows,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          load_row(x.dtype,
                   address(x.data, i / rows * x.batch_stride + i % rows * x.row_stride, x.dtype),
                   compute, result.copy.get() + i * columns, columns);
      },
      std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)));
  return result;
}

// How one product is cut: `pieces` of each matrix, along rows or columns. One rule of the shapes
// and the pool's size, so that it is the same for every run.
struct Split {
  int64_t pieces = 1;
  int64_t step = 0;
  bool rows = true;
};

Split split(const Gemm& g, int threads) {
  Split result;
  result.rows = g.m >= g.n;
  const int64_t extent = result.rows ? g.m : g.n;
  const int64_t wanted = g.batch >= threads ? 1 : (threads + g.batch - 1) / g.batch;
  result.step = (extent + wanted - 1) / wanted;
  if (wanted > 1) result.step = (result.step + kTile - 1) / kTile * kTile;
  result.pieces = (extent + result.step - 1) / result.step;
  return result;
}

double work(const Gemm& g) {
  return static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
         static_cast<double>(g.k);
}

// fn(batch, first row, rows, first column, columns) for all pieces, in parallel.
template <typename F>
void for_pieces(const Gemm& g, ThreadPool& pool, F&& fn) {
  const Split s = split(g, work(g) < kSerialWork ? 1 : pool.size());
  auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i % s.pieces * s.step;
      const int64_t extent = std::min(s.step, (s.rows ? g.m : g.n) - start);
      if (s.rows)
        fn(i / s.pieces, start, extent, int64_t{0}, g.n);
      else
        fn(i / s.pieces, int64_t{0}, g.m, start, extent);
    }
  };
  if (work(g) < kSerialWork)
    run(0, g.batch * s.pieces);
  else
    pool.parallel_for(0, g.batch * s.pieces, run);
}

int blas_int(int64_t value) {
  SINTER_CHECK(value <= INT_MAX, "matrix extent {} is beyond the 32-bit BLAS interface", value);
  return static_cast<int>(value);
}

template <typename T>
void blas_gemm(const Gemm& g, ThreadPool& pool) {
  [[maybe_unused]] static const bool single = (openblas_set_num_threads(1), true);
  constexpr DType sum = dtype_of<T>;
  const bool direct = g.c_dtype == sum;
  Operand<T> a, b;
  if (g.k > 0) {
    a = prepare<T>(g.a, g.a.transposed ? g.k : g.m, g.a.transposed ? g.m : g.k, g.batch, g.compute,
                   pool);
    b = prepare<T>(g.b, g.b.transposed ? g.n : g.k, g.b.transposed ? g.k : g.n, g.batch, g.compute,
                   pool);
  }
  for_pieces(
      g, pool, [&](int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns) {
        // A result of another type is summed aside and rounded once.
        std::unique_ptr<T[]> aside;
        T* c = nullptr;
        int64_t stride = columns;
        char* result =
            address(g.c, batch * g.c_batch_stride + row * g.c_row_stride + column, g.c_dtype);
        if (direct) {
          c = reinterpret_cast<T*>(result);
          stride = g.c_row_stride;
        } else {
          aside.reset(new T[static_cast<size_t>(rows * columns)]);
          c = aside.get();
        }
        if (g.d.data) {
          const char* d = address(
              g.d.data, batch * g.d.batch_stride + row * g.d.row_stride + column, g.d.dtype);
          for (int64_t i = 0; i < rows; ++i) {
            const char* source =
                address(static_cast<const void*>(d), i * g.d.row_stride, g.d.dtype);
            if (source != reinterpret_cast<char*>(c + i * stride))
              convert_elements(g.d.dtype, source, sum, c + i * stride, columns);
          }
        }
        if (g.k == 0) {
          if (!g.d.data)
            for (int64_t i = 0; i < rows; ++i) std::fill_n(c + i * stride, columns, T{});
        } else {
          const T* pa = a.data + batch * a.batch_stride + row * (a.transposed ? 1 : a.row_stride);
          const T* pb =
              b.data + batch * b.batch_stride + column * (b.transposed ? b.row_stride : 1);
          const auto ta = a.transposed ? CblasTrans : CblasNoTrans;
          const auto tb = b.transposed ? CblasTrans : CblasNoTrans;
          // BLAS refuses a stride below the row's length, which a matrix of one row may have.
          const int lda = blas_int(std::max(a.row_stride, a.transposed ? rows : g.k));
          const int ldb = blas_int(std::max(b.row_stride, b.transposed ? g.k : columns));
          const int ldc = blas_int(std::max(stride, columns));
          const T beta = g.d.data ? T{1} : T{0};
          if constexpr (std::is_same_v<T, double>)
            cblas_dgemm(CblasRowMajor, ta, tb, blas_int(rows), blas_int(columns), blas_int(g.k), 1,
                        pa, lda, pb, ldb, beta, c, ldc);
          else
            cblas_sgemm(CblasRowMajor, ta, tb, blas_int(rows), blas_int(columns), blas_int(g.k), 1,
                        pa, lda, pb, ldb, beta, c, ldc);
        }
        if (!direct)
          for (int64_t i = 0; i < rows; ++i)
            convert_elements(sum, c + i * stride, g.c_dtype,
                             address(static_cast<void*>(result), i * g.c_row_stride, g.c_dtype),
                             columns);
      });
}

// Unsigned arithmetic in the stored width: products and sums wrap.
template <typename U>
void integer_gemm(const Gemm& g, ThreadPool& pool) {
  for_pieces(g, pool,
             [&](int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns) {
               const U* a = static_cast<const U*>(g.a.data) + batch * g.a.batch_stride;
               const U* b = static_cast<const U*>(g.b.data) + batch * g.b.batch_stride;
               const U* d = static_cast<const U*>(g.d.data);
               for (int64_t i = row; i < row + rows; ++i) {
                 U* c = static_cast<U*>(g.c) + batch * g.c_batch_stride + i * g.c_row_stride;
                 for (int64_t j = column; j < column + columns; ++j) {
                   U sum = d ? d[batch * g.d.batch_stride + i * g.d.row_stride + j] : U{0};
                   for (int64_t k = 0; k < g.k; ++k)
                     sum += a[g.a.transposed ? k * g.a.row_stride + i : i * g.a.row_stride + k] *
                            b[g.b.transposed ? j * g.b.row_stride + k : k * g.b.row_stride + j];
                   c[j] = sum;
                 }
               }
             });
}

}  // namespace

void gemm(const Gemm& g, ThreadPool& pool) {
  if (g.batch == 0 || g.m == 0 || g.n == 0) return;
  if (is_integer(g.compute)) {
    SINTER_CHECK(g.a.dtype == g.compute && g.b.dtype == g.compute && g.c_dtype == g.compute &&
                     (!g.d.data || g.d.dtype == g.compute),
                 "integer matmul of {} and {} into {}", to_string(g.a.dtype), to_string(g.b.dtype),
                 to_string(g.c_dtype));
    return g.compute == DType::I64 ? integer_gemm<uint64_t>(g, pool)
                                   : integer_gemm<uint32_t>(g, pool);
  }
  SINTER_CHECK(is_float(g.compute), "matmul in {}", to_string(g.compute));
  return g.compute == DType::F64 ? blas_gemm<double>(g, pool) : blas_gemm<float>(g, pool);
}

void gemm(const Gemm& g) {
  gemm(g, ThreadPool::global());
}

Gemm dense_gemm(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, const void* a,
                bool transpose_a, const void* b, bool transpose_b, void* c) {
  Gemm g;
  g.batch = batch;
  g.m = m;
  g.n = n;
  g.k = k;
  g.a = {a, dtype, transpose_a ? m : k, m * k, transpose_a};
  g.b = {b, dtype, transpose_b ? k : n, k * n, transpose_b};
  g.compute = dtype;
  g.c = c;
  g.c_dtype = dtype;
  g.c_row_stride = n;
  g.c_batch_stride = m * n;
  return g;
}

}  // namespace sinter
