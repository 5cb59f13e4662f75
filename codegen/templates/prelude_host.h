// What every generated host unit begins with (prelude_common.h follows); it includes nothing, so
// that a unit compiles in a few hundredths of a second. The float functions are polynomials without
// branches, so that the compiler turns a loop around them into vector code, within 2 ulp over the
// whole range (sin and cos: to |x| < 1e6; beyond, accuracy decays). Most of them work in double and
// round once. Vector and scalar code give the same bits: there is no contraction and no fast-math.

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define SN_FN static inline __attribute__((always_inline))
#define SN_FN_MEMBER inline __attribute__((always_inline))
#ifdef __clang__
#define SN_SIMD _Pragma("clang loop vectorize(assume_safety)")
#else
#define SN_SIMD _Pragma("GCC ivdep")
#endif

struct FaultSlot {
  int64_t position, value;
};

SN_FN float f32_from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
SN_FN double f64_from_bits(uint64_t bits) {
  return __builtin_bit_cast(double, bits);
}
SN_FN uint32_t f32_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
SN_FN uint64_t f64_bits(double x) {
  return __builtin_bit_cast(uint64_t, x);
}

// NaN on either side survives; of zeros of both signs max takes 0, min -0. Equal values have the
// same bits, but for those.
SN_FN float sn_max(float a, float b) {
  const float equal = f32_from_bits(f32_bits(a) & f32_bits(b));
  return ((a != a) | (b != b)) ? a + b : a == b ? equal : a > b ? a : b;
}
SN_FN float sn_min(float a, float b) {
  const float equal = f32_from_bits(f32_bits(a) | f32_bits(b));
  return ((a != a) | (b != b)) ? a + b : a == b ? equal : a < b ? a : b;
}
SN_FN double sn_max(double a, double b) {
  const double equal = f64_from_bits(f64_bits(a) & f64_bits(b));
  return ((a != a) | (b != b)) ? a + b : a == b ? equal : a > b ? a : b;
}
SN_FN double sn_min(double a, double b) {
  const double equal = f64_from_bits(f64_bits(a) | f64_bits(b));
  return ((a != a) | (b != b)) ? a + b : a == b ? equal : a < b ? a : b;
}

// 16-bit floats: bits in memory, floats in arithmetic. Rounding to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

SN_FN float bf16_to_f32(bf16 x) {
  return f32_from_bits((uint32_t)x.bits << 16);
}
SN_FN bf16 f32_to_bf16(float x) {
  const uint32_t bits = f32_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return {(uint16_t)(x != x ? (bits >> 16) | 0x40u : rounded)};
}
SN_FN float f16_to_f32(f16 x) {
  const uint32_t magnitude = (uint32_t)(x.bits & 0x7fffu) << 13;
  // The exponent's bias grows by 112; subnormals are exact as a product.
  const float finite = f32_from_bits(magnitude) * 0x1p112f;
  const float value = magnitude >= 0x0f800000u ? f32_from_bits(magnitude | 0x7f800000u) : finite;
  return f32_from_bits(f32_bits(value) | (uint32_t)(x.bits & 0x8000u) << 16);
}
SN_FN f16 f32_to_f16(float x) {
  const uint32_t bits = f32_bits(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // Below 2^-14 the sum with 0.5 rounds at the last place of a subnormal.
  const uint32_t tiny = f32_bits(f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t small = magnitude < 0x38800000u ? tiny : normal;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : 0x7c00u;
  const uint32_t value = magnitude >= 0x477ff000u ? large : small;
  return {(uint16_t)(value | (bits >> 16 & 0x8000u))};
}
// To float, an inexact result with its last bit set: rounding that again gives what rounding the
// double once would.
SN_FN float sn_round_to_odd(double x) {
  const float near = (float)x;
  const uint32_t bits = f32_bits(near);
  const double back = near;
  const bool inexact = (back != x) & (x == x);
  const bool away = __builtin_fabs(back) > __builtin_fabs(x);
  return f32_from_bits(inexact ? (bits - (away ? 1u : 0u)) | 1u : bits);
}
SN_FN float sn_round_bf16(float x) {
  return bf16_to_f32(f32_to_bf16(x));
}
SN_FN bf16 f64_to_bf16(double x) {
  return f32_to_bf16(sn_round_to_odd(x));
}
SN_FN f16 f64_to_f16(double x) {
  return f32_to_f16(sn_round_to_odd(x));
}
// Of a float that is already rounded.
SN_FN bf16 exact_bf16(float x) {
  return {(uint16_t)(f32_bits(x) >> 16)};
}
SN_FN f16 exact_f16(float x) {
  return f32_to_f16(x);
}

// Elements in memory and their values.
SN_FN float sn_load(const bf16& x) {
  return bf16_to_f32(x);
}
SN_FN float sn_load(const f16& x) {
  return f16_to_f32(x);
}
SN_FN bool sn_load(const uint8_t& x) {
  return x != 0;
}
template <typename T>
SN_FN T sn_load(const T& x) {
  return x;
}
SN_FN void sn_store(bf16& to, float x) {
  to = exact_bf16(x);
}
SN_FN void sn_store(f16& to, float x) {
  to = exact_f16(x);
}
template <typename T, typename V>
SN_FN void sn_store(T& to, V x) {
  to = (T)x;
}
template <int Width, typename V, typename T>
SN_FN void sn_load_vector(V* to, const T* from) {
  for (int i = 0; i < Width; ++i) to[i] = sn_load(from[i]);
}
template <int Width, typename T, typename V>
SN_FN void sn_store_vector(T* to, const V* from) {
  for (int i = 0; i < Width; ++i) sn_store(to[i], from[i]);
}

// Float to integer truncates and saturates, NaN gives 0.
template <typename T>
SN_FN T sn_truncate(double low, double end, T lowest, T highest, double x) {
  const bool inside = (x > low) & (x < end);
  const T value = (T)(inside ? x : 0.0);
  return inside ? value : x >= end ? highest : x <= low ? lowest : (T)0;
}
SN_FN int32_t sn_to_i32(double x) {
  return sn_truncate<int32_t>(-0x1p31, 0x1p31, -2147483647 - 1, 2147483647, x);
}
SN_FN int64_t sn_to_i64(double x) {
  return sn_truncate<int64_t>(-0x1p63, 0x1p63, -9223372036854775807ll - 1, 9223372036854775807ll,
                              x);
}
SN_FN uint32_t sn_to_u32(double x) {
  return sn_truncate<uint32_t>(0.0, 0x1p32, 0u, 4294967295u, x);
}

SN_FN float sn_abs(float x) {
  return __builtin_fabsf(x);
}
SN_FN double sn_abs(double x) {
  return __builtin_fabs(x);
}
SN_FN double sn_exp(double x) {
  return __builtin_exp(x);
}
SN_FN double sn_expm1(double x) {
  return __builtin_expm1(x);
}
SN_FN double sn_log(double x) {
  return __builtin_log(x);
}
SN_FN double sn_log1p(double x) {
  return __builtin_log1p(x);
}
SN_FN double sn_sin(double x) {
  return __builtin_sin(x);
}
SN_FN double sn_cos(double x) {
  return __builtin_cos(x);
}
SN_FN double sn_tanh(double x) {
  return __builtin_tanh(x);
}
SN_FN double sn_erf(double x) {
  return __builtin_erf(x);
}
SN_FN double sn_exp2(double x) {
  return __builtin_exp2(x);
}
SN_FN double sn_log2(double x) {
  return __builtin_log2(x);
}
SN_FN double sn_cbrt(double x) {
  return __builtin_cbrt(x);
}
SN_FN double sn_tan(double x) {
  return __builtin_tan(x);
}
SN_FN double sn_sinh(double x) {
  return __builtin_sinh(x);
}
SN_FN double sn_cosh(double x) {
  return __builtin_cosh(x);
}
SN_FN double sn_asin(double x) {
  return __builtin_asin(x);
}
SN_FN double sn_acos(double x) {
  return __builtin_acos(x);
}
SN_FN double sn_atan(double x) {
  return __builtin_atan(x);
}
SN_FN double sn_erfc(double x) {
  return __builtin_erfc(x);
}
template <typename T>
SN_FN T sn_inv1p(T x) {
  return (T)1 / ((T)1 + x);
}
SN_FN double sn_norm_cdf(double x) {
  return 0.5 * __builtin_erfc(-0x1.6a09e667f3bcdp-1 * x);
}
SN_FN double sn_hypot(double x, double y) {
  return __builtin_hypot(x, y);
}
SN_FN double sn_atan2(double y, double x) {
  return __builtin_atan2(y, x);
}
SN_FN double sn_ceil(double x) {
  return __builtin_ceil(x);
}
SN_FN float sn_ceil(float x) {
  return __builtin_ceilf(x);
}
SN_FN double sn_round(double x) {
  return __builtin_rint(x);
}
SN_FN float sn_round(float x) {
  return __builtin_rintf(x);
}
SN_FN double sn_trunc(double x) {
  return __builtin_trunc(x);
}
SN_FN float sn_trunc(float x) {
  return __builtin_truncf(x);
}
// The remainder with the divisor's sign.
SN_FN double sn_rem(double x, double y) {
  const double r = __builtin_fmod(x, y);
  return r == 0 ? __builtin_copysign(r, y) : ((r < 0) != (y < 0) ? r + y : r);
}
SN_FN float sn_rem(float x, float y) {
  const float r = __builtin_fmodf(x, y);
  return r == 0 ? __builtin_copysignf(r, y) : ((r < 0) != (y < 0) ? r + y : r);
}
SN_FN double sn_pow(double x, double y) {
  return __builtin_pow(x, y);
}
SN_FN double sn_floor(double x) {
  return __builtin_floor(x);
}
SN_FN float sn_floor(float x) {
  return __builtin_floorf(x);
}
SN_FN double sn_sqrt(double x) {
  return __builtin_sqrt(x);
}
SN_FN float sn_sqrt(float x) {
  return __builtin_sqrtf(x);
}
SN_FN double sn_rsqrt(double x) {
  return 1.0 / __builtin_sqrt(x);
}
SN_FN float sn_rsqrt(float x) {
  return 1.0f / __builtin_sqrtf(x);
}
SN_FN double sn_fma(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
SN_FN float sn_fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

SN_FN float sn_exp(float x) {
  // Beyond these ends the result is 0 or infinity; NaN passes.
  const float low = x < -104.0f ? -104.0f : x;
  const float z = low > 89.0f ? 89.0f : low;
  // z = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to the nearest integer.
  const float t = z * 0x1.715476p+0f + 0x1.8p23f;
  const int32_t n = (int32_t)(f32_bits(t) - 0x4b400000u);
  const float k = t - 0x1.8p23f;
  const float r = (z - k * 0.693359375f) + k * 0x1.bd0106p-13f;
  float p = 0x1.a12652p-13f;
  p = p * r + 0x1.6d44b2p-10f;
  p = p * r + 0x1.1110ep-7f;
  p = p * r + 0x1.5554e8p-5f;
  p = p * r + 0x1.555556p-3f;
  p = p * r + 0.5f;
  const float e = (p * (r * r) + r) + 1.0f;
  // Two steps, so that subnormal results round once and none overflows early.
  const int32_t half = n >> 1;
  return e * f32_from_bits((uint32_t)(half + 127) << 23) *
         f32_from_bits((uint32_t)(n - half + 127) << 23);
}

// e^z - 1 = scale * fraction + (scale - 1) for |z| < 700.
struct sn_exp_parts {
  double fraction, scale;
};
SN_FN sn_exp_parts sn_exp_reduce(double z) {
  const double t = z * 0x1.71547652b82fep+0 + 0x1.8p52;
  const double k = t - 0x1.8p52;
  const double r = (z - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  return {r + (r * r) * p, f64_from_bits((f64_bits(t) + 1023u) << 52)};
}
SN_FN double sn_clamp(double x, double low, double high) {
  const double above = x < low ? low : x;
  return above > high ? high : above;
}
SN_FN float sn_expm1(float x) {
  const sn_exp_parts e = sn_exp_reduce(sn_clamp(x, -50.0, 100.0));
  const float value = (float)(e.scale * e.fraction + (e.scale - 1.0));
  return x == 0.0f ? x : value;
}
SN_FN float sn_tanh(float x) {
  const sn_exp_parts e = sn_exp_reduce(sn_clamp(2.0 * __builtin_fabs((double)x), 0.0, 50.0));
  const double t = e.scale * e.fraction + (e.scale - 1.0);
  return __builtin_copysignf((float)(t / (t + 2.0)), x);
}

SN_FN float sn_exp2(float x) {
  const sn_exp_parts e = sn_exp_reduce(sn_clamp(x, -160.0, 140.0) * 0x1.62e42fefa39efp-1);
  return (float)(e.scale * e.fraction + e.scale);
}
SN_FN float sn_sinh(float x) {
  const sn_exp_parts e = sn_exp_reduce(sn_clamp(__builtin_fabs((double)x), 0.0, 100.0));
  const double t = e.scale * e.fraction + (e.scale - 1.0);
  return __builtin_copysignf((float)(0.5 * (t + t / (t + 1.0))), x);
}
SN_FN float sn_cosh(float x) {
  const sn_exp_parts e = sn_exp_reduce(sn_clamp(__builtin_fabs((double)x), 0.0, 100.0));
  const double t = e.scale * e.fraction + e.scale;
  return (float)(0.5 * (t + 1.0 / t));
}

// ln u for finite u > 0 that is normal; `near` is u - 1, exact where u is between sqrt(1/2) and
// sqrt(2).
SN_FN double sn_log_core(double u, double near) {
  const uint64_t bits = f64_bits(u);
  // Moves the cut between two exponents to sqrt(1/2).
  const uint64_t shifted = bits - 0x3fe6a09e00000000ull;
  const int64_t exponent = (int64_t)shifted >> 52;
  const double m = f64_from_bits(bits - ((uint64_t)exponent << 52));
  const double f = exponent == 0 ? near : m - 1.0;
  const double s = f / (2.0 + f), q = s * s;
  double p = 1.0 / 19;
  p = p * q + 1.0 / 17;
  p = p * q + 1.0 / 15;
  p = p * q + 1.0 / 13;
  p = p * q + 1.0 / 11;
  p = p * q + 1.0 / 9;
  p = p * q + 1.0 / 7;
  p = p * q + 1.0 / 5;
  p = p * q + 1.0 / 3;
  // The exponent as a double: the integer that 1.5 * 2^52 carries in its low bits.
  const double k = f64_from_bits((uint64_t)exponent + 0x4338000000000000ull) - 0x1.8p52;
  return k * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * (q * p));
}
SN_FN float sn_log_ends(float value, double u) {
  const float positive = u > 0x1p1000 ? (float)u : value;  // infinity
  const float zero = u == 0.0 ? -__builtin_inff() : positive;
  return ((u < 0.0) | (u != u)) ? __builtin_nanf("") : zero;
}
SN_FN float sn_log(float x) {
  const double u = x;
  return sn_log_ends((float)sn_log_core(u, u - 1.0), u);
}
SN_FN float sn_log1p(float x) {
  const double u = 1.0 + (double)x;
  const float value = sn_log_ends((float)sn_log_core(u, x), u);
  return x == 0.0f ? x : value;
}

SN_FN float sn_log2(float x) {
  const double u = x;
  return sn_log_ends((float)(sn_log_core(u, u - 1.0) * 0x1.71547652b82fep+0), u);
}

SN_FN float sn_erf(float x) {
  const double a = __builtin_fabs((double)x), q = a * a;
  double near = -0x1.5233c909156e6p-17;
  near = near * q + 0x1.dde17b6a1adbcp-14;
  near = near * q - 0x1.bd9eb9d18eb9cp-11;
  near = near * q + 0x1.5639d896e3aa0p-8;
  near = near * q - 0x1.b82af5cc24a41p-6;
  near = near * q + 0x1.ce2f13d033762p-4;
  near = near * q - 0x1.8127468a5d804p-2;
  near = near * q + 0x1.20dd750418a55p+0;
  // 1 - erf is the exponential of a polynomial; from 4 on it is below half an ulp of 1.
  const double c = sn_clamp(a, 0.9, 4.0);
  double far = 0x1.b92b94a24b0e1p-20;
  far = far * c - 0x1.835e800f36264p-15;
  far = far * c + 0x1.396621f45909fp-11;
  far = far * c - 0x1.3832742a396a5p-8;
  far = far * c + 0x1.b10f1089af77cp-6;
  far = far * c - 0x1.c2f48aaac1adfp-4;
  far = far * c - 0x1.437cd096d54edp-1;
  far = far * c - 0x1.2157651b1f4f7p+0;
  far = far * c + 0x1.50b5a88653ae0p-12;
  const sn_exp_parts e = sn_exp_reduce(far);
  const double value = a < 0.94 ? a * near : 1.0 - (e.scale * e.fraction + e.scale);
  return __builtin_copysignf((float)value, x);
}

// (1 + 2a) exp(a*a) erfc(a) is smooth in (a - 3) / (a + 3). From 15 on erfc is 0 in float.
SN_FN double sn_erfc_core(double x) {
  const double a = sn_clamp(__builtin_fabs(x), 0.0, 15.0), v = (a - 3.0) / (a + 3.0);
  double p = 0x1.da33ab68688f1p-16;
  p = p * v + 0x1.d9376961b8870p-14;
  p = p * v - 0x1.1d3d504bb56fap-13;
  p = p * v - 0x1.9a7065ac37d5cp-11;
  p = p * v + 0x1.f31282bdb452ep-10;
  p = p * v + 0x1.4c12b7d1c4464p-9;
  p = p * v - 0x1.8583278d03b12p-6;
  p = p * v + 0x1.17c8fdd5d4808p-4;
  p = p * v - 0x1.e88b1feead48dp-4;
  p = p * v + 0x1.098374f0322d7p-3;
  p = p * v - 0x1.85a16408950e6p-5;
  p = p * v - 0x1.15c085187b4bbp-3;
  p = p * v + 0x1.40c522d852550p+0;
  const sn_exp_parts e = sn_exp_reduce(-(a * a));
  const double tail = (e.scale * e.fraction + e.scale) * p / (1.0 + 2.0 * a);
  return x < 0.0 ? 2.0 - tail : tail;
}
SN_FN float sn_erfc(float x) {
  return (float)sn_erfc_core(x);
}
SN_FN float sn_norm_cdf(float x) {
  return (float)(0.5 * sn_erfc_core(-0x1.6a09e667f3bcdp-1 * (double)x));
}

SN_FN float sn_sin_cos(float x, uint64_t quarter) {
  const double z = x;
  const double t = z * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  const double k = t - 0x1.8p52;
  const double far = (z - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
  const double r = sn_clamp(far, -0.8, 0.8), q = r * r;
  double s = -1.0 / 39916800;
  s = s * q + 1.0 / 362880;
  s = s * q - 1.0 / 5040;
  s = s * q + 1.0 / 120;
  s = s * q - 1.0 / 6;
  const double sine = r * (1.0 + q * s);
  double c = 1.0 / 479001600;
  c = c * q - 1.0 / 3628800;
  c = c * q + 1.0 / 40320;
  c = c * q - 1.0 / 720;
  c = c * q + 1.0 / 24;
  c = c * q - 0.5;
  const double cosine = 1.0 + q * c;
  const uint64_t n = f64_bits(t) + quarter;
  const double value = (n & 1u) != 0 ? cosine : sine;
  return (float)f64_from_bits(f64_bits(value) ^ (n & 2u) << 62);
}
SN_FN float sn_sin(float x) {
  return sn_sin_cos(x, 0);
}
SN_FN float sn_cos(float x) {
  return sn_sin_cos(x, 1);
}

SN_FN float sn_tan(float x) {
  const double z = x;
  const double t = z * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  const double k = t - 0x1.8p52;
  const double far = (z - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
  const double r = sn_clamp(far, -0.8, 0.8), q = r * r;
  double s = -1.0 / 39916800;
  s = s * q + 1.0 / 362880;
  s = s * q - 1.0 / 5040;
  s = s * q + 1.0 / 120;
  s = s * q - 1.0 / 6;
  const double sine = r * (1.0 + q * s);
  double c = 1.0 / 479001600;
  c = c * q - 1.0 / 3628800;
  c = c * q + 1.0 / 40320;
  c = c * q - 1.0 / 720;
  c = c * q + 1.0 / 24;
  c = c * q - 0.5;
  const double cosine = 1.0 + q * c;
  return (float)((f64_bits(t) & 1u) != 0 ? -cosine / sine : sine / cosine);
}

// Rarely in a loop that matters: the system's functions of doubles, rounded once.
SN_FN float sn_cbrt(float x) {
  return (float)__builtin_cbrt((double)x);
}
SN_FN float sn_asin(float x) {
  return (float)__builtin_asin((double)x);
}
SN_FN float sn_acos(float x) {
  return (float)__builtin_acos((double)x);
}
SN_FN float sn_atan(float x) {
  return (float)__builtin_atan((double)x);
}
SN_FN float sn_atan2(float y, float x) {
  return (float)__builtin_atan2((double)y, (double)x);
}
SN_FN float sn_hypot(float x, float y) {
  const double a = x, b = y;
  const bool infinite = (__builtin_fabs(a) > 0x1p1000) | (__builtin_fabs(b) > 0x1p1000);
  return infinite ? __builtin_inff() : (float)__builtin_sqrt(a * a + b * b);
}

// The inverse of erfc. Around 1 by a polynomial in ln(q (2 - q)), in the tails in sqrt(-ln q).
SN_FN double sn_erfc_inv_start(double q) {
  const double s = q > 1.0 ? 2.0 - q : q, near = 1.0 - s;
  const double w = -sn_log_core(s * (1.0 + near), -(near * near));
  const double v = w * (1.0 / 3.0) - 1.0;
  double p = -0x1.08e54df7121b9p-17;
  p = p * v + 0x1.0c4513e12ce5ap-18;
  p = p * v + 0x1.0a8e576c2bb87p-14;
  p = p * v - 0x1.ee717b6c05300p-14;
  p = p * v - 0x1.432bcdb603430p-13;
  p = p * v + 0x1.0379e96d4e111p-10;
  p = p * v - 0x1.4e2735d4baf32p-10;
  p = p * v - 0x1.953bb4674581cp-9;
  p = p * v + 0x1.02de14496fe36p-6;
  p = p * v - 0x1.71e5997c1f437p-6;
  p = p * v - 0x1.a70fadfc3fbe8p-5;
  p = p * v + 0x1.7324f0aa91dd5p-1;
  p = p * v + 0x1.9fa072ed72dbbp+0;
  const double r = __builtin_sqrt(-sn_log_core(s, s - 1.0));
  const double u = (r - 6.375) * 0x1.0842108421084p-2;
  double t = -0x1.bdad07b628eecp-14;
  t = t * u + 0x1.764459a3f59aep-13;
  t = t * u + 0x1.0f62775a241a2p-13;
  t = t * u - 0x1.e5af762e567e6p-13;
  t = t * u - 0x1.26e0a8073ee45p-12;
  t = t * u + 0x1.d1c66f56a77f5p-12;
  t = t * u - 0x1.9e90d9a79187bp-14;
  t = t * u + 0x1.0e4a5deb7a0f1p-15;
  t = t * u - 0x1.34dc4e44979f2p-14;
  t = t * u - 0x1.7c585f5aa8e96p-12;
  t = t * u + 0x1.abb316643e538p-10;
  t = t * u - 0x1.306d6ae6e69a4p-8;
  t = t * u + 0x1.80d5d7f066fbep-7;
  t = t * u - 0x1.d292fdd0358bbp-6;
  t = t * u + 0x1.f8eedbe4d7ff3p+1;
  t = t * u + 0x1.8bbbe2a5c3b96p+2;
  const double inside = w <= 6.0 ? near * p : t;
  const double x = s == 0.0 ? __builtin_inf() : s > 0.0 ? inside : __builtin_nan("");
  return q > 1.0 ? -x : x;
}
SN_FN float sn_erfc_inv(float q) {
  return (float)sn_erfc_inv_start(q);
}
// With a step of Halley's method, which triples the digits.
SN_FN double sn_erfc_inv(double q) {
  const double s = q > 1.0 ? 2.0 - q : q, x = sn_erfc_inv_start(s);
  const double error = x < 0.5 ? __builtin_erf(x) - (1.0 - s) : s - __builtin_erfc(x);
  const double step = error / (0x1.20dd750429b6dp+0 * __builtin_exp(-(x * x)));
  const double y = (s > 0.0) & (x > 0.0) ? x - step / (1.0 + x * step) : x;
  return q > 1.0 ? -y : y;
}

SN_FN float sn_pow(float x, float y) {
  const double a = __builtin_fabs((double)x), e = y;
  const double core = sn_log_core(a, a - 1.0);
  const double l = a == 0.0 ? -__builtin_inf() : a > 0x1p1000 ? a : core;
  const sn_exp_parts parts = sn_exp_reduce(sn_clamp(e * l, -110.0, 100.0));
  const float magnitude = (float)(parts.scale * parts.fraction + parts.scale);
  const bool whole = __builtin_floor(e) == e;
  const bool odd = whole & (__builtin_floor(e * 0.5) != e * 0.5);
  const float value = odd ? __builtin_copysignf(magnitude, x) : magnitude;
  // A finite negative base has no power that is not whole.
  const bool undefined = (x < 0.0f) & (a < 0x1p1000) & !whole;
  const float defined = (undefined | (x != x) | (y != y)) ? __builtin_nanf("") : value;
  const bool one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (__builtin_fabs(e) > 0x1p1000));
  return one ? 1.0f : defined;
}

// The lowest failing position wins, whichever thread comes first.
static int sn_fault_lock;
static __attribute__((noinline, cold)) void sn_fault(FaultSlot* slot, int64_t position,
                                                     int64_t value) {
  while (__atomic_exchange_n(&sn_fault_lock, 1, __ATOMIC_ACQUIRE) != 0) {
  }
  if (position < slot->position) {
    slot->position = position;
    slot->value = value;
  }
  __atomic_store_n(&sn_fault_lock, 0, __ATOMIC_RELEASE);
}
