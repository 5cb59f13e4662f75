// The instructions of sm_80 and later that CUDA C has no words for; all inline assembly of the
// portable templates is here. It follows prelude.cuh and prelude_common.h. Tests replace this file
// by a twin with the same signatures (tests/emulator/ptx.h), so kernels hold no assembly.

// An entry of a template. Text in front of a template may rename it: `#define entry entry_1f3a`.
#define SN_KERNEL extern "C" __global__
// The block's dynamic shared memory.
#define SN_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

// --- Shared memory as the instructions below address it ---

SN_FN uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- Asynchronous copies, global to shared, 16 bytes and so aligned ---

SN_FN void cp_async_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Zeros where `keep` is false; nothing is read then, and `global` may be anything.
SN_FN void cp_async_16_or_zero(uint32_t shared, const void* global, bool keep) {
  const int bytes = keep ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
// 4 bytes, or zeros.
SN_FN void cp_async_4_or_zero(uint32_t shared, const void* global, bool keep) {
  const int bytes = keep ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
SN_FN void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most `Pending` of this thread's groups are under way.
template <int Pending>
SN_FN void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// --- Fragments: lane 8i + r gives the address of row r (16 bytes) of matrix i ---

SN_FN void ldmatrix_x4(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
SN_FN void ldmatrix_x4_trans(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
SN_FN void ldmatrix_x2(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}
SN_FN void ldmatrix_x2_trans(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

// --- d += a b: a is 16x16 by rows, b 16x8 by columns, d 16x8 in f32. Lane 4g + t holds
//     a[0..3]: (row g, k 2t,2t+1), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..)
//     b0, b1:  (k 2t,2t+1, column g), (2t + 8.., g)
//     d[0..3]: (row g, columns 2t, 2t+1), (row g + 8, the same) ---

template <typename E>
SN_FN void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_16x8x16<bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16x8x16<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- Sums in global memory: d of a product, 128 floats of a warp, in an order of its own ---

#if __CUDA_ARCH__ >= 900
// Four floats of a lane lie together.
SN_FN void store_fragment(float* to, const float (&d)[4]) {
  reinterpret_cast<float4*>(to)[threadIdx.x % 32] = make_float4(d[0], d[1], d[2], d[3]);
}
SN_FN void load_fragment(float (&d)[4], const float* from) {
  const float4 x = reinterpret_cast<const float4*>(from)[threadIdx.x % 32];
  d[0] = x.x;
  d[1] = x.y;
  d[2] = x.z;
  d[3] = x.w;
}
SN_FN void add_fragment(float* to, const float (&d)[4]) {
  asm volatile(
      "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + threadIdx.x % 32 * 4),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3])
      : "memory");
}
#else
// Those of the lanes lie together.
SN_FN void store_fragment(float* to, const float (&d)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[32 * i + threadIdx.x % 32] = d[i];
}
SN_FN void load_fragment(float (&d)[4], const float* from) {
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = from[32 * i + threadIdx.x % 32];
}
SN_FN void add_fragment(float* to, const float (&d)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 32 * i + threadIdx.x % 32),
                 "f"(d[i])
                 : "memory");
}
#endif

// --- Flags between blocks ---

SN_FN uint32_t load_relaxed(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
SN_FN uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
// What this thread stores relaxed from here on comes after all that it did or, before a barrier,
// others of its block.
SN_FN void fence_release() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
SN_FN void store_relaxed(uint32_t* flag, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// --- Barriers of `threads` threads, a multiple of 32; 0 is __syncthreads's own ---

SN_FN void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
SN_FN void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- Functions of one instruction; relative error about 2^-22, subnormals are 0 ---

SN_FN float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
SN_FN float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
