#pragma once
// The emulator's twin of codegen/templates/ptx_hopper.cuh: the same signatures, in the namespace
// `device::hopper`.
//
// Asynchronous work is strict: the destination of a TMA load is poisoned when the load is issued,
// and the data comes when no thread of the block can go on without it; stores and additions read
// shared memory when their group is waited for; products are computed when their group is waited
// for, and until then the accumulators hold NaN. Reported are: accumulators or A registers that
// change in flight, ordinary writes to shared memory that an asynchronous read meets before
// fence_async(), tiles that break a rule of the hardware, barriers that are not initialised.

#include <sinter/tests/emulator/ptx.h>

namespace device::hopper {

// As the host would encode it: dimensions from the innermost, which is dense.
struct TensorMap {
  void* base = nullptr;
  int element_bytes = 2;
  int64_t dims[4] = {};
  int64_t strides[4] = {};  // in bytes; that of dimension 0 is the element's
  int box[4] = {};
  int span = 128;  // of the swizzle in bytes: 128, 64, 32
};

inline void forget(int&) {}

void barrier_init(uint32_t barrier, uint32_t count);
inline void barrier_init_fence() {}
void barrier_arrive(uint32_t barrier);
void barrier_arrive_expect(uint32_t barrier, uint32_t bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);

inline void named_sync(uint32_t id, uint32_t count) {
  ::sinter::emulator::barrier_sync(id, count);
}
inline void named_arrive(uint32_t id, uint32_t count) {
  ::sinter::emulator::barrier_arrive(id, count);
}
inline bool elect_one() {
  return threadIdx.x % 32 == 0;
}
template <int Count>
void registers_release() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256);
}
template <int Count>
void registers_take() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256);
}

inline void prefetch_map(const TensorMap&) {}
void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0, int32_t c1,
              int32_t c2, int32_t c3);
void tma_store(const TensorMap& map, uint32_t from, int32_t c0, int32_t c1, int32_t c2, int32_t c3);
void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
void bulk_store(void* to, uint32_t from, uint32_t bytes);
void bulk_add(float* to, uint32_t from, uint32_t bytes);
void bulk_commit();
// `read`: shared memory has been read; otherwise the groups are finished.
void bulk_wait_for(unsigned pending, bool read);
template <int Pending>
void bulk_wait_read() {
  bulk_wait_for(Pending, true);
}
template <int Pending>
void bulk_wait() {
  bulk_wait_for(Pending, false);
}
void fence_async();
inline void fence_async_global() {}

void release_store(uint32_t* to, uint32_t value);
void wait_for(const uint32_t* from, uint32_t value);

// An ordinary write of 16 bytes, which asynchronous reads must not meet before a fence.
void note_write(uint32_t address);

inline float2 load_float2(uint32_t address) {
  float2 v;
  std::memcpy(&v, ::sinter::emulator::shared_pointer(address, 8, 8, "ld.shared.v2"), 8);
  return v;
}
inline float4 load_float4(uint32_t address) {
  float4 v;
  std::memcpy(&v, ::sinter::emulator::shared_pointer(address, 16, 16, "ld.shared.v4"), 16);
  return v;
}
inline void store_float4(uint32_t address, float4 v) {
  std::memcpy(::sinter::emulator::shared_pointer(address, 16, 16, "st.shared.v4"), &v, 16);
  note_write(address);
}
inline int4 load_int4(uint32_t address) {
  int4 v;
  std::memcpy(&v, ::sinter::emulator::shared_pointer(address, 16, 16, "ld.shared.v4"), 16);
  return v;
}
inline void store_int4(uint32_t address, int4 v) {
  std::memcpy(::sinter::emulator::shared_pointer(address, 16, 16, "st.shared.v4"), &v, 16);
}
inline void store_zeros(uint32_t address) {
  std::memset(::sinter::emulator::shared_pointer(address, 16, 16, "st.shared.v4"), 0, 16);
  note_write(address);
}
inline void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  detail::Matrices mine{address, {a, b, c, d}};
  ::sinter::emulator::warp_collective(0xffffffffu, "stmatrix.x4", mine,
                                      detail::MoveMatrices<4, false, true>{});
  note_write(address);
}

template <bool F16>
uint32_t pack_pair(float low, float high) {
  return F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

template <int Span>
uint64_t matrix_descriptor(uint32_t leading, uint32_t stride) {
  constexpr uint64_t kKind = Span == 128 ? 1 : Span == 64 ? 2 : 3;
  return kKind << 62 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16;
}
inline uint64_t at_address(uint64_t descriptor, uint32_t address) {
  return descriptor | (address >> 4 & 0x3fffu);
}
inline uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// One product of the running thread.
struct Issue {
  float* d;
  int width;          // N
  const uint32_t* a;  // four words, or null: A is in shared memory
  uint64_t a_descriptor, b_descriptor;
  bool f16, transpose_a, transpose_b, accumulate;
};
void wgmma_issue(const Issue& issue);
void wgmma_commit();
void wgmma_wait_for(unsigned pending);

inline void wgmma_fence() {}
template <int Count>
void touch(float (&)[Count]) {}
template <int Count>
void touch(uint32_t (&)[Count]) {}
template <int Pending, typename... Registers>
void wgmma_wait(Registers&...) {
  wgmma_wait_for(Pending);
}
template <int N, bool F16, bool TransposeA, bool TransposeB>
void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  wgmma_issue({d, N, nullptr, a, b, F16, TransposeA, TransposeB, accumulate});
}
template <int N, bool F16, bool TransposeB, int Word, int Words>
void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[Words], uint64_t b, bool accumulate) {
  static_assert(Word + 4 <= Words);
  wgmma_issue({d, N, a + Word, 0, b, F16, false, TransposeB, accumulate});
}

}  // namespace device::hopper
