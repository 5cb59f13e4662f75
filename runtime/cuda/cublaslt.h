#pragma once
// Matrix products by cuBLASLt, which is opened at run time like NVRTC.
//
// Contract: D[m,n] = op(A)[m,k] · op(B)[k,n] (+ C[m,n], or + bias[n]), row-major, batched with
// strides. Sums run
// in f32 for f32, bf16 and f16 operands, in f64 for f64, and are rounded once, to the type of D:
// reductions between splits of k in a narrower type are excluded. f32 stays f32: TF32 is used only
// when asked for. The algorithm is the heuristic's first choice for the logical shape, types and
// transpositions, or the one that a tuning record names; strides and alignment do not enter, except
// where that choice cannot run on them.
// So one shape gives the same bits wherever its operands lie.
//
// Plans are made while compiling and only launch work afterwards, which makes them fit for capture
// in a CUDA graph. Errors throw DeviceError with call, status and the product's description.

#include <sinter/ir/type.h>
#include <sinter/runtime/cuda/driver.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sinter::cuda {

// What cuBLASLt should be lent; more gains nothing on any architecture up to Hopper.
constexpr std::size_t kMatmulWorkspace = std::size_t{32} << 20;

struct MatmulSpec {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType input = DType::F32;   // of A and B: f64, f32, bf16 or f16
  DType output = DType::F32;  // of C and D: the input's type, or f32 for bf16 and f16
  bool transpose_a = false;   // A is stored [k,m]
  bool transpose_b = false;   // B is stored [n,k]
  bool accumulate = false;    // add C; C may be D itself
  bool bias = false;          // add bias[n], of D's type, to every row; not for f64
  bool allow_tf32 = false;

  int64_t batch = 1;
  // Elements from one matrix to the next; 0 reads one matrix for the whole batch (A and B only).
  int64_t batch_stride_a = 0;
  int64_t batch_stride_b = 0;
  int64_t batch_stride_c = 0;  // of C and of D
  // Elements from one stored row to the next; 0 means dense.
  int64_t row_stride_a = 0;
  int64_t row_stride_b = 0;
  int64_t row_stride_c = 0;
  // A power of two that divides every address passed to run(), in bytes.
  int64_t alignment = 16;
  std::size_t workspace = kMatmulWorkspace;  // bytes that run() will be lent at most

  // "bf16[8x64,64x32] batch 12 -> f32", for errors and plans.
  std::string str() const;
};

// Whether cuBLASLt can be opened; `why` (when given) receives the reason if not.
bool cublaslt_available(std::string* why = nullptr);
// As cublasLtGetVersion gives it (130100 for 13.1.0). Part of the tuning record.
std::size_t cublaslt_version();

class MatmulPlan {
 public:
  // Chooses the algorithm; takes up to a millisecond for a shape not seen before on this device.
  // With `encoded` (not empty) it is that one, if it runs on these operands.
  MatmulPlan(Device& device, const MatmulSpec& spec, const std::string& encoded = {});
  // Plans with up to `count` algorithms, the likeliest first; none where there is nothing to
  // choose.
  static std::vector<MatmulPlan> candidates(Device& device, const MatmulSpec& spec, int count);
  ~MatmulPlan();
  MatmulPlan(MatmulPlan&&) noexcept;
  MatmulPlan& operator=(MatmulPlan&&) noexcept;

  const MatmulSpec& spec() const;
  // Bytes that the chosen algorithm needs; at most spec().workspace.
  std::size_t workspace_bytes() const;
  // Names the algorithm for plans and tuning records, e.g. "algo 67 tile 20 stages 36 split-k 1".
  std::string algorithm() const;
  // The algorithm for a later plan, in this library's version: hexadecimal digits.
  std::string encoded() const;

  // Enqueues the product. `c` is read only with `accumulate`, and may equal `d` then, or is the
  // bias; the overload without it accumulates into `d`. `workspace` (of workspace_bytes(), aligned
  // to 256) must not be in use by work that may run at the same time.
  void run(const Stream& stream, DevicePtr a, DevicePtr b, DevicePtr c, DevicePtr d,
           DevicePtr workspace) const;
  void run(const Stream& stream, DevicePtr a, DevicePtr b, DevicePtr d, DevicePtr workspace) const {
    run(stream, a, b, d, d, workspace);
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sinter::cuda
