#pragma once
// What a kernel template sees when it is compiled for the emulator: CUDA's keywords, the prelude's
// functions and the intrinsics that templates use, in the namespace `device`.
//
// A test includes this header, ptx.h and then the template's text, once for each instance:
//   namespace device::instance {
//   constexpr int kTileM = 64;                                         // the preamble
//   #include <sinter/codegen/templates/some_template.cuh>
//   }
// and calls device::instance::entry(...) in launch(). Entries are declared with SN_KERNEL.

#include <sinter/tests/emulator/emulator.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#define __device__
#define __host__
#define __forceinline__ inline
#define __global__
#define __constant__ static const
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

// Defined in ptx.cuh for the device.
#define SN_KERNEL inline
#define SN_DYNAMIC_SHARED(name) unsigned char* const name = ::sinter::emulator::shared_memory()

namespace device {

using ::sinter::emulator::blockDim;
using ::sinter::emulator::blockIdx;
using ::sinter::emulator::gridDim;
using ::sinter::emulator::threadIdx;

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wbitwise-conditional-parentheses"
#pragma clang diagnostic ignored "-Wunneeded-internal-declaration"
#endif
#include <sinter/codegen/templates/prelude_host.h>
// The shared part of the prelude builds on the one above.
#include <sinter/codegen/templates/prelude_common.h>
#ifdef __clang__
#pragma clang diagnostic pop
#endif

using std::fabs;
using std::isinf;
using std::isnan;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) int2 {
  int32_t x, y;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) {
  return {x, y};
}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}
inline int2 make_int2(int32_t x, int32_t y) {
  return {x, y};
}
inline int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// --- The rest of prelude.cuh ---

inline uint32_t pack_bf16(float low, float high) {
  return f32_to_bf16(low).bits | static_cast<uint32_t>(f32_to_bf16(high).bits) << 16;
}
inline uint32_t pack_f16(float low, float high) {
  return f32_to_f16(low).bits | static_cast<uint32_t>(f32_to_f16(high).bits) << 16;
}
inline float low_bf16(uint32_t pair) {
  return f32_from_bits(pair << 16);
}
inline float high_bf16(uint32_t pair) {
  return f32_from_bits(pair & 0xffff0000u);
}
inline float low_f16(uint32_t pair) {
  return f16_to_f32({static_cast<uint16_t>(pair & 0xffffu)});
}
inline float high_f16(uint32_t pair) {
  return f16_to_f32({static_cast<uint16_t>(pair >> 16)});
}

// --- Scalar intrinsics ---

inline uint32_t __float_as_uint(float x) {
  return f32_bits(x);
}
inline int32_t __float_as_int(float x) {
  return static_cast<int32_t>(f32_bits(x));
}
inline float __uint_as_float(uint32_t x) {
  return f32_from_bits(x);
}
inline float __int_as_float(int32_t x) {
  return f32_from_bits(static_cast<uint32_t>(x));
}
inline int64_t __double_as_longlong(double x) {
  return static_cast<int64_t>(f64_bits(x));
}
inline double __longlong_as_double(int64_t x) {
  return f64_from_bits(static_cast<uint64_t>(x));
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline double __fma_rn(double a, double b, double c) {
  return std::fma(a, b, c);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline int __popc(uint32_t x) {
  return __builtin_popcount(x);
}
inline int __popcll(uint64_t x) {
  return __builtin_popcountll(x);
}
inline int __clz(int32_t x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(x));
}
inline int __clzll(int64_t x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<uint64_t>(x));
}
inline int __ffs(int32_t x) {
  return __builtin_ffs(x);
}
inline int __ffsll(int64_t x) {
  return __builtin_ffsll(x);
}
inline uint32_t __brev(uint32_t x) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 0xfu;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7u))) & 0xffu;
    if ((nibble & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xffu : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) >> (shift & 31u));
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) << (shift & 31u) >> 32);
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmax(static_cast<C>(a), static_cast<C>(b));
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmin(static_cast<C>(a), static_cast<C>(b));
  return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}

// --- Atomics: several system threads run blocks ---

template <typename T, typename F>
T atomic_update(T* at, F next) {
  T old;
  __atomic_load(at, &old, __ATOMIC_SEQ_CST);
  for (;;) {
    T value = next(old);
    if (__atomic_compare_exchange(at, &old, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return old;
  }
}
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return static_cast<T>(old | value); });
}
template <typename T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return static_cast<T>(old & value); });
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return atomic_update(at, [&](T old) { return old == compare ? value : old; });
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {}

// --- Barriers ---

inline void __syncthreads() {
  ::sinter::emulator::barrier_sync(0, 0);
}
inline int __syncthreads_or(int value) {
  return ::sinter::emulator::barrier_sync(0, 0, value != 0 ? 1u : 0u).or_value != 0 ? 1 : 0;
}
inline int __syncthreads_and(int value) {
  return ::sinter::emulator::barrier_sync(0, 0, value == 0 ? 1u : 0u).or_value == 0 ? 1 : 0;
}
inline int __syncthreads_count(int value) {
  return static_cast<int>(::sinter::emulator::barrier_sync(0, 0, 0, value != 0 ? 1u : 0u).sum);
}
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  struct Nothing {
  } nothing;
  ::sinter::emulator::warp_collective(mask, "__syncwarp", nothing, [](Nothing* const*) {});
}

// --- Warp collectives ---

namespace detail {
// Each lane gives a value and the lane (already resolved) that it reads from.
template <typename T>
struct Shuffle {
  T value;
  int source;
};
template <typename T>
T shuffle(uint32_t mask, T value, int source, const char* what) {
  Shuffle<T> mine{value, source};
  ::sinter::emulator::warp_collective(mask, what, mine, [](Shuffle<T>* const* lanes) {
    T values[32];
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      const Shuffle<T>* from = lanes[lanes[i]->source];
      if (from == nullptr) ::sinter::emulator::fail("a shuffle reads a lane that takes no part");
      values[i] = from->value;
    }
    for (int i = 0; i < 32; ++i)
      if (lanes[i] != nullptr) lanes[i]->value = values[i];
  });
  return mine.value;
}
inline int lane() {
  return static_cast<int>(threadIdx.x & 31u);
}
// All lanes of the mask get what `combine` makes of their values, from the lowest lane up.
template <typename T, typename F>
T reduce(uint32_t mask, T value, const char* what, F) {
  ::sinter::emulator::warp_collective(mask, what, value, [](T* const* lanes) {
    T all{};
    bool first = true;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      all = first ? *lanes[i] : F{}(all, *lanes[i]);
      first = false;
    }
    for (int i = 0; i < 32; ++i)
      if (lanes[i] != nullptr) *lanes[i] = all;
  });
  return value;
}
}  // namespace detail

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int base = detail::lane() & ~(width - 1);
  return detail::shuffle(mask, value, base + (source & (width - 1)), "__shfl_sync");
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32) {
  const int self = detail::lane(), source = self ^ lanes;
  const bool inside = (source & ~(width - 1)) <= (self & ~(width - 1));
  return detail::shuffle(mask, value, inside ? source : self, "__shfl_xor_sync");
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, int width = 32) {
  const int self = detail::lane(), source = self - static_cast<int>(lanes);
  return detail::shuffle(mask, value, source < (self & ~(width - 1)) ? self : source,
                         "__shfl_up_sync");
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned lanes, int width = 32) {
  const int self = detail::lane(), source = self + static_cast<int>(lanes);
  return detail::shuffle(mask, value, source > (self | (width - 1)) ? self : source,
                         "__shfl_down_sync");
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  uint32_t mine = predicate != 0 ? 1u << detail::lane() : 0u;
  return detail::reduce(mask, mine, "__ballot_sync", [](uint32_t a, uint32_t b) { return a | b; });
}
inline int __any_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate != 0 ? 0 : 1) == 0 ? 1 : 0;
}
inline uint32_t __activemask() {
  return 0xffffffffu;
}
template <typename T>
uint32_t __match_any_sync(uint32_t mask, T value) {
  struct Match {
    T value;
    uint32_t equal;
  } mine{value, 0};
  ::sinter::emulator::warp_collective(mask, "__match_any_sync", mine, [](Match* const* lanes) {
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < 32; ++j)
        if (lanes[i] != nullptr && lanes[j] != nullptr && lanes[i]->value == lanes[j]->value)
          lanes[i]->equal |= 1u << j;
  });
  return mine.equal;
}
template <typename T>
T __reduce_add_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_add_sync",
                        [](T a, T b) { return static_cast<T>(a + b); });
}
template <typename T>
T __reduce_min_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_min_sync", [](T a, T b) { return b < a ? b : a; });
}
template <typename T>
T __reduce_max_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_max_sync", [](T a, T b) { return a < b ? b : a; });
}
template <typename T>
T __reduce_or_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_or_sync",
                        [](T a, T b) { return static_cast<T>(a | b); });
}
template <typename T>
T __reduce_and_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_and_sync",
                        [](T a, T b) { return static_cast<T>(a & b); });
}
template <typename T>
T __reduce_xor_sync(uint32_t mask, T value) {
  return detail::reduce(mask, value, "__reduce_xor_sync",
                        [](T a, T b) { return static_cast<T>(a ^ b); });
}
template <int Width, typename T, typename F>
T sn_lane_reduce(uint32_t mask, T value, F combine) {
  for (int offset = 1; offset < Width; offset *= 2) {
    const T other = __shfl_xor_sync(mask, value, offset);
    const bool upper = (threadIdx.x & static_cast<uint32_t>(offset)) != 0;
    value = combine(upper ? other : value, upper ? value : other);
  }
  return value;
}

}  // namespace device
