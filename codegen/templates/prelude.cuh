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

__device__ __forceinline__ bf16 f32_to_bf16(float value) {
  bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
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
