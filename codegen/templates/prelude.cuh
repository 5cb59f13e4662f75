// Types and conversions that every generated kernel begins with. Self-contained: NVRTC finds no
// headers, and none are needed. Conversions round to nearest even and keep NaN a NaN.

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Storage of 16-bit floats: bits, without arithmetic. Kernels compute in f32.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

__device__ __forceinline__ float bf16_to_f32(bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

// By the conversion of two: that of one goes through a unit that takes a sixteenth of a block's
// lanes at a time.
__device__ __forceinline__ bf16 f32_to_bf16(float value) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(value));
  bf16 result;
  result.bits = static_cast<uint16_t>(pair);
  return result;
}

__device__ __forceinline__ float f16_to_f32(f16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

__device__ __forceinline__ f16 f32_to_f16(float value) {
  f16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}

// Two values in one word, `low` in the lower half: what a vector store of 16-bit floats writes.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ float low_f16(uint32_t pair) {
  f16 half;
  half.bits = static_cast<uint16_t>(pair & 0xffffu);
  return f16_to_f32(half);
}
__device__ __forceinline__ float high_f16(uint32_t pair) {
  f16 half;
  half.bits = static_cast<uint16_t>(pair >> 16);
  return f16_to_f32(half);
}

// What generated kernels call; prelude_common.h follows.
#define SN_FN __device__ __forceinline__
#define SN_FN_MEMBER SN_FN

SN_FN float f32_from_bits(uint32_t bits) {
  return __uint_as_float(bits);
}
SN_FN double f64_from_bits(uint64_t bits) {
  return __longlong_as_double(static_cast<int64_t>(bits));
}

// To float, an inexact result with its last bit set: rounding that again gives what rounding the
// double once would.
SN_FN float sn_round_to_odd(double value) {
  const float toward_zero = __double2float_rz(value);
  const bool inexact = static_cast<double>(toward_zero) != value;
  return __uint_as_float(__float_as_uint(toward_zero) | (inexact ? 1u : 0u));
}
// The upper half of a pair is the float itself.
SN_FN float sn_round_bf16(float value) {
  return __uint_as_float(pack_bf16(0.0f, value));
}
SN_FN bf16 f64_to_bf16(double value) {
  return f32_to_bf16(sn_round_to_odd(value));
}
SN_FN f16 f64_to_f16(double value) {
  return f32_to_f16(sn_round_to_odd(value));
}
// Of a float that is already rounded.
SN_FN bf16 exact_bf16(float value) {
  return {static_cast<uint16_t>(__float_as_uint(value) >> 16)};
}
SN_FN f16 exact_f16(float value) {
  return f32_to_f16(value);
}

// Element k of a row of elements that lies in 32-bit words. put() fills a word from its low end.
template <typename T>
struct sn_packed;
template <>
struct sn_packed<float> {
  static SN_FN float get(const uint32_t* words, int k) { return __uint_as_float(words[k]); }
  static SN_FN void put(uint32_t* words, int k, float value) { words[k] = __float_as_uint(value); }
};
template <>
struct sn_packed<int32_t> {
  static SN_FN int32_t get(const uint32_t* words, int k) { return static_cast<int32_t>(words[k]); }
  static SN_FN void put(uint32_t* words, int k, int32_t value) {
    words[k] = static_cast<uint32_t>(value);
  }
};
template <>
struct sn_packed<uint32_t> {
  static SN_FN uint32_t get(const uint32_t* words, int k) { return words[k]; }
  static SN_FN void put(uint32_t* words, int k, uint32_t value) { words[k] = value; }
};
template <>
struct sn_packed<int64_t> {
  static SN_FN int64_t get(const uint32_t* words, int k) {
    return static_cast<int64_t>(words[2 * k] | static_cast<uint64_t>(words[2 * k + 1]) << 32);
  }
  static SN_FN void put(uint32_t* words, int k, int64_t value) {
    words[2 * k] = static_cast<uint32_t>(value);
    words[2 * k + 1] = static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32);
  }
};
template <>
struct sn_packed<double> {
  static SN_FN double get(const uint32_t* words, int k) {
    return __longlong_as_double(sn_packed<int64_t>::get(words, k));
  }
  static SN_FN void put(uint32_t* words, int k, double value) {
    sn_packed<int64_t>::put(words, k, __double_as_longlong(value));
  }
};
template <>
struct sn_packed<bf16> {
  static SN_FN float get(const uint32_t* words, int k) {
    return k % 2 == 0 ? low_bf16(words[k / 2]) : high_bf16(words[k / 2]);
  }
  static SN_FN void put(uint32_t* words, int k, float value) {
    const uint32_t bits = __float_as_uint(value);
    words[k / 2] = k % 2 == 0 ? bits >> 16 : words[k / 2] | (bits & 0xffff0000u);
  }
  static SN_FN uint32_t round(float low, float high) { return pack_bf16(low, high); }
};
template <>
struct sn_packed<f16> {
  static SN_FN float get(const uint32_t* words, int k) {
    return k % 2 == 0 ? low_f16(words[k / 2]) : high_f16(words[k / 2]);
  }
  static SN_FN void put(uint32_t* words, int k, float value) {
    const uint32_t bits = f32_to_f16(value).bits;
    words[k / 2] = k % 2 == 0 ? bits : words[k / 2] | bits << 16;
  }
  static SN_FN uint32_t round(float low, float high) { return pack_f16(low, high); }
};
template <>
struct sn_packed<uint8_t> {  // bool
  static SN_FN bool get(const uint32_t* words, int k) {
    return (words[k / 4] >> (k % 4 * 8) & 0xffu) != 0;
  }
  static SN_FN void put(uint32_t* words, int k, bool value) {
    const uint32_t bit = value ? 1u : 0u;
    words[k / 4] = k % 4 == 0 ? bit : words[k / 4] | bit << (k % 4 * 8);
  }
};

template <int Words>
SN_FN void sn_load_words(uint32_t* words, const void* from) {
  if constexpr (Words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Words; i += 4) {
      const uint4 v = static_cast<const uint4*>(from)[i / 4];
      words[i] = v.x;
      words[i + 1] = v.y;
      words[i + 2] = v.z;
      words[i + 3] = v.w;
    }
  } else if constexpr (Words == 2) {
    const uint2 v = *static_cast<const uint2*>(from);
    words[0] = v.x;
    words[1] = v.y;
  } else {
    static_assert(Words == 1, "a power of two");
    words[0] = *static_cast<const uint32_t*>(from);
  }
}
template <int Words>
SN_FN void sn_store_words(void* to, const uint32_t* words) {
  if constexpr (Words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Words; i += 4)
      static_cast<uint4*>(to)[i / 4] =
          make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
  } else if constexpr (Words == 2) {
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    static_assert(Words == 1, "a power of two");
    *static_cast<uint32_t*>(to) = words[0];
  }
}

// `Width` consecutive elements, aligned to that many, in accesses of up to 16 bytes.
template <int Width, typename V, typename T>
SN_FN void sn_load_vector(V* to, const T* from) {
  constexpr int kBytes = Width * static_cast<int>(sizeof(T));
  uint32_t words[(kBytes + 3) / 4];
  if constexpr (kBytes % 4 == 0) {
    sn_load_words<kBytes / 4>(words, from);
  } else if constexpr (kBytes == 2) {
    words[0] = *reinterpret_cast<const uint16_t*>(from);
  } else {
    words[0] = *reinterpret_cast<const uint8_t*>(from);
  }
#pragma unroll
  for (int k = 0; k < Width; ++k) to[k] = sn_packed<T>::get(words, k);
}
// `Rounds`: 16-bit floats of floats that are not rounded to them yet, two by one instruction.
template <int Width, bool Rounds = false, typename T, typename V>
SN_FN void sn_store_vector(T* to, const V* from) {
  constexpr int kBytes = Width * static_cast<int>(sizeof(T));
  uint32_t words[(kBytes + 3) / 4];
  if constexpr (Rounds) {
    static_assert(Width % 2 == 0, "pairs");
#pragma unroll
    for (int k = 0; k < Width; k += 2) words[k / 2] = sn_packed<T>::round(from[k], from[k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < Width; ++k) sn_packed<T>::put(words, k, from[k]);
  }
  if constexpr (kBytes % 4 == 0) {
    sn_store_words<kBytes / 4>(to, words);
  } else if constexpr (kBytes == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
  } else {
    *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(words[0]);
  }
}

// Float to integer truncates and saturates, as the instruction does; NaN gives 0.
SN_FN int32_t sn_to_i32(float x) {
  return x != x ? 0 : __float2int_rz(x);
}
SN_FN int32_t sn_to_i32(double x) {
  return x != x ? 0 : __double2int_rz(x);
}
SN_FN int64_t sn_to_i64(float x) {
  return x != x ? 0 : __float2ll_rz(x);
}
SN_FN int64_t sn_to_i64(double x) {
  return x != x ? 0 : __double2ll_rz(x);
}
SN_FN uint32_t sn_to_u32(float x) {
  return x != x ? 0u : __float2uint_rz(x);
}
SN_FN uint32_t sn_to_u32(double x) {
  return x != x ? 0u : __double2uint_rz(x);
}

// NaN on either side survives. One instruction each; of zeros of both signs max takes 0, min -0.
SN_FN float sn_max(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
SN_FN float sn_min(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

SN_FN double sn_max(double a, double b) {
  const int64_t equal = __double_as_longlong(a) & __double_as_longlong(b);
  return ((a != a) | (b != b)) ? a + b : a == b ? __longlong_as_double(equal) : a > b ? a : b;
}
SN_FN double sn_min(double a, double b) {
  const int64_t equal = __double_as_longlong(a) | __double_as_longlong(b);
  return ((a != a) | (b != b)) ? a + b : a == b ? __longlong_as_double(equal) : a < b ? a : b;
}

SN_FN float sn_abs(float x) {
  return fabsf(x);
}
SN_FN double sn_abs(double x) {
  return fabs(x);
}
// 1 / (1 + x) of x from 0 to 1, where a step of Newton's method needs no case of its own.
SN_FN float sn_inv1p(float x) {
  const float sum = 1.0f + x;
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sum));
  return __fmaf_rn(y, __fmaf_rn(-sum, y, 1.0f), y);
}
SN_FN double sn_inv1p(double x) {
  return 1.0 / (1.0 + x);
}
SN_FN float sn_exp(float x) {
  return expf(x);
}
SN_FN double sn_exp(double x) {
  return exp(x);
}
SN_FN float sn_expm1(float x) {
  return expm1f(x);
}
SN_FN double sn_expm1(double x) {
  return expm1(x);
}
SN_FN float sn_log(float x) {
  return logf(x);
}
SN_FN double sn_log(double x) {
  return log(x);
}
SN_FN float sn_log1p(float x) {
  return log1pf(x);
}
SN_FN double sn_log1p(double x) {
  return log1p(x);
}
SN_FN float sn_sqrt(float x) {
  return __fsqrt_rn(x);
}
SN_FN double sn_sqrt(double x) {
  return __dsqrt_rn(x);
}
SN_FN float sn_rsqrt(float x) {
  return __fdiv_rn(1.0f, __fsqrt_rn(x));
}
SN_FN double sn_rsqrt(double x) {
  return __ddiv_rn(1.0, __dsqrt_rn(x));
}
SN_FN float sn_sin(float x) {
  return sinf(x);
}
SN_FN double sn_sin(double x) {
  return sin(x);
}
SN_FN float sn_cos(float x) {
  return cosf(x);
}
SN_FN double sn_cos(double x) {
  return cos(x);
}
SN_FN float sn_sin_cos(float x, uint64_t quarter) {
  return quarter != 0 ? cosf(x) : sinf(x);
}
SN_FN float sn_tanh(float x) {
  return tanhf(x);
}
SN_FN double sn_tanh(double x) {
  return tanh(x);
}
SN_FN float sn_erf(float x) {
  return erff(x);
}
SN_FN double sn_erf(double x) {
  return erf(x);
}
SN_FN float sn_pow(float x, float y) {
  return powf(x, y);
}
SN_FN double sn_pow(double x, double y) {
  return pow(x, y);
}
SN_FN float sn_floor(float x) {
  return floorf(x);
}
SN_FN double sn_floor(double x) {
  return floor(x);
}
SN_FN float sn_exp2(float x) {
  return exp2f(x);
}
SN_FN double sn_exp2(double x) {
  return exp2(x);
}
SN_FN float sn_log2(float x) {
  return log2f(x);
}
SN_FN double sn_log2(double x) {
  return log2(x);
}
SN_FN float sn_cbrt(float x) {
  return cbrtf(x);
}
SN_FN double sn_cbrt(double x) {
  return cbrt(x);
}
SN_FN float sn_hypot(float x, float y) {
  return hypotf(x, y);
}
SN_FN double sn_hypot(double x, double y) {
  return hypot(x, y);
}
SN_FN float sn_tan(float x) {
  return tanf(x);
}
SN_FN double sn_tan(double x) {
  return tan(x);
}
SN_FN float sn_sinh(float x) {
  return sinhf(x);
}
SN_FN double sn_sinh(double x) {
  return sinh(x);
}
SN_FN float sn_cosh(float x) {
  return coshf(x);
}
SN_FN double sn_cosh(double x) {
  return cosh(x);
}
SN_FN float sn_asin(float x) {
  return asinf(x);
}
SN_FN double sn_asin(double x) {
  return asin(x);
}
SN_FN float sn_acos(float x) {
  return acosf(x);
}
SN_FN double sn_acos(double x) {
  return acos(x);
}
SN_FN float sn_atan(float x) {
  return atanf(x);
}
SN_FN double sn_atan(double x) {
  return atan(x);
}
SN_FN float sn_atan2(float y, float x) {
  return atan2f(y, x);
}
SN_FN double sn_atan2(double y, double x) {
  return atan2(y, x);
}
SN_FN float sn_erfc(float x) {
  return erfcf(x);
}
SN_FN double sn_erfc(double x) {
  return erfc(x);
}
SN_FN float sn_erfc_inv(float x) {
  return erfcinvf(x);
}
SN_FN double sn_erfc_inv(double x) {
  return erfcinv(x);
}
SN_FN float sn_norm_cdf(float x) {
  return normcdff(x);
}
SN_FN double sn_norm_cdf(double x) {
  return normcdf(x);
}
SN_FN float sn_ceil(float x) {
  return ceilf(x);
}
SN_FN double sn_ceil(double x) {
  return ceil(x);
}
SN_FN float sn_round(float x) {
  return rintf(x);
}
SN_FN double sn_round(double x) {
  return rint(x);
}
SN_FN float sn_trunc(float x) {
  return truncf(x);
}
SN_FN double sn_trunc(double x) {
  return trunc(x);
}
// A remainder moved into the divisor's sign.
template <typename T>
SN_FN T sn_floored(T r, T y) {
  return r == 0 ? copysign(r, y) : ((r < 0) != (y < 0) ? r + y : r);
}
SN_FN float sn_rem(float x, float y) {
  return sn_floored(fmodf(x, y), y);
}
SN_FN double sn_rem(double x, double y) {
  return sn_floored(fmod(x, y), y);
}
SN_FN float sn_fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
SN_FN double sn_fma(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

// Folds over groups of Width lanes: 0+1, 2+3, …, then pairs of pairs. The lower lane is on the
// left, so that every lane of the group gets the same bits.
template <int Width, typename T, typename F>
SN_FN T sn_lane_reduce(uint32_t mask, T value, F combine) {
#pragma unroll
  for (int offset = 1; offset < Width; offset *= 2) {
    const T other = static_cast<T>(__shfl_xor_sync(mask, value, offset));
    const bool upper = (threadIdx.x & static_cast<uint32_t>(offset)) != 0;
    value = combine(upper ? other : value, upper ? value : other);
  }
  return value;
}

struct FaultSlot {
  int64_t position, value;
};
// The lowest failing position wins, whichever thread comes first.
__device__ int sn_fault_lock;
SN_FN void sn_fault(FaultSlot* slot, int64_t position, int64_t value) {
  volatile FaultSlot* record = slot;
  for (bool done = position >= record->position; !done;) {
    if (atomicCAS(&sn_fault_lock, 0, 1) != 0) continue;
    __threadfence();
    if (position < record->position) {
      record->position = position;
      record->value = value;
    }
    __threadfence();
    atomicExch(&sn_fault_lock, 0);
    done = true;
  }
}
