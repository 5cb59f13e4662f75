// What generated CUDA and host code share; it follows prelude.cuh or prelude_host.h, which define
// SN_FN, the conversions, the float functions and sn_fault.

// Index arithmetic: a >= 0, or floor.
SN_FN int32_t sn_div(int32_t a, int32_t k) {
  return (int32_t)((uint32_t)a / (uint32_t)k);
}
SN_FN int64_t sn_div(int64_t a, int64_t k) {
  return (int64_t)((uint64_t)a / (uint64_t)k);
}
SN_FN int32_t sn_mod(int32_t a, int32_t k) {
  return (int32_t)((uint32_t)a % (uint32_t)k);
}
SN_FN int64_t sn_mod(int64_t a, int64_t k) {
  return (int64_t)((uint64_t)a % (uint64_t)k);
}
template <typename T, typename K>
SN_FN T sn_floordiv(T a, K k) {
  return a / (T)k - (a % (T)k < 0);
}
template <typename T, typename K>
SN_FN T sn_floormod(T a, K k) {
  const T rest = a % (T)k;
  return rest + (rest < 0 ? (T)k : 0);
}

// Integers wrap.
SN_FN int32_t sn_add(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a + (uint32_t)b);
}
SN_FN int64_t sn_add(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a + (uint64_t)b);
}
SN_FN int32_t sn_sub(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)b);
}
SN_FN int64_t sn_sub(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a - (uint64_t)b);
}
SN_FN int32_t sn_mul(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a * (uint32_t)b);
}
SN_FN int64_t sn_mul(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}
SN_FN int32_t sn_neg(int32_t a) {
  return (int32_t)(0u - (uint32_t)a);
}
SN_FN int64_t sn_neg(int64_t a) {
  return (int64_t)(0ull - (uint64_t)a);
}

SN_FN int32_t sn_abs(int32_t x) {
  return x < 0 ? sn_neg(x) : x;
}
SN_FN int64_t sn_abs(int64_t x) {
  return x < 0 ? sn_neg(x) : x;
}
SN_FN uint32_t sn_abs(uint32_t x) {
  return x;
}
// Bits that a shift pushes out, or that it would take from nowhere, are lost.
SN_FN int32_t sn_shl(int32_t a, int32_t b) {
  return (uint32_t)b < 32u ? (int32_t)((uint32_t)a << b) : 0;
}
SN_FN int64_t sn_shl(int64_t a, int64_t b) {
  return (uint64_t)b < 64u ? (int64_t)((uint64_t)a << b) : 0;
}
SN_FN uint32_t sn_shl(uint32_t a, uint32_t b) {
  return b < 32u ? a << b : 0u;
}
SN_FN int32_t sn_shr(int32_t a, int32_t b) {
  return a >> ((uint32_t)b < 32u ? b : 31);
}
SN_FN int64_t sn_shr(int64_t a, int64_t b) {
  return a >> ((uint64_t)b < 64u ? b : 63);
}
SN_FN uint32_t sn_shr(uint32_t a, uint32_t b) {
  return b < 32u ? a >> b : 0u;
}
SN_FN int32_t sn_bit_and(int32_t a, int32_t b) {
  return a & b;
}
SN_FN int64_t sn_bit_and(int64_t a, int64_t b) {
  return a & b;
}
SN_FN int32_t sn_bit_or(int32_t a, int32_t b) {
  return a | b;
}
SN_FN int64_t sn_bit_or(int64_t a, int64_t b) {
  return a | b;
}
SN_FN int32_t sn_bit_xor(int32_t a, int32_t b) {
  return a ^ b;
}
SN_FN int64_t sn_bit_xor(int64_t a, int64_t b) {
  return a ^ b;
}
SN_FN int32_t sn_bit_not(int32_t a) {
  return ~a;
}
SN_FN int64_t sn_bit_not(int64_t a) {
  return ~a;
}
// With the sign of the divisor; 0 where that is 0. (The smallest number by -1 has no quotient.)
template <typename T>
SN_FN T sn_rem_signed(T a, T b) {
  const T divisor = (b == 0) | (b == -1) ? 1 : b;
  const T r = a % divisor;
  return r != 0 && (r < 0) != (divisor < 0) ? r + divisor : r;
}
SN_FN int32_t sn_rem(int32_t a, int32_t b) {
  return sn_rem_signed(a, b);
}
SN_FN int64_t sn_rem(int64_t a, int64_t b) {
  return sn_rem_signed(a, b);
}
SN_FN uint32_t sn_rem(uint32_t a, uint32_t b) {
  return b == 0u ? 0u : a % b;
}

// Of integers.
template <typename T>
SN_FN T sn_max(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
SN_FN T sn_min(T a, T b) {
  return a < b ? a : b;
}

// Rounds to any shorter float as `x` itself does: beyond 2^53 the bits that do not fit are gathered
// in the last one that does.
SN_FN double sn_odd_double(int64_t x) {
  const bool large = (uint64_t)x + (1ull << 53) > 1ull << 54;
  const int64_t odd = (x & ~0x7ffll) | ((x & 0x7ffll) != 0 ? 0x800ll : 0ll);
  return (double)(large ? odd : x);
}
SN_FN float sn_round_bf16(double x) {
  return bf16_to_f32(f64_to_bf16(x));
}
SN_FN float sn_round_f16(float x) {
  return f16_to_f32(f32_to_f16(x));
}
SN_FN float sn_round_f16(double x) {
  return f16_to_f32(f64_to_f16(x));
}

// Philox4x32-10, with counter {low, high of call, site, step}.
struct sn_words {
  uint32_t w0, w1, w2, w3;
};
SN_FN sn_words sn_philox(uint32_t key0, uint32_t key1, uint32_t step, uint32_t site,
                         uint64_t call) {
  uint32_t c0 = (uint32_t)call, c1 = (uint32_t)(call >> 32), c2 = site, c3 = step;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = (uint64_t)c0 * 0xd2511f53u, p1 = (uint64_t)c2 * 0xcd9e8d57u;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)p0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {c0, c1, c2, c3};
}
SN_FN uint32_t sn_word(sn_words w, uint32_t i) {
  const uint32_t low = (i & 1u) != 0 ? w.w1 : w.w0, high = (i & 1u) != 0 ? w.w3 : w.w2;
  return (i & 2u) != 0 ? high : low;
}
SN_FN int32_t sn_half(sn_words words, uint64_t element) {
  const uint32_t lane = (uint32_t)element & 7u;
  const uint32_t word = sn_word(words, lane >> 1);
  return (int32_t)((lane & 1u) != 0 ? word >> 16 : word & 0xffffu);
}
SN_FN float sn_uniform(sn_words words, uint64_t element) {
  return (float)(int32_t)(sn_word(words, (uint32_t)element & 3u) >> 8) * 0x1p-24f;
}
SN_FN float sn_normal(sn_words w, uint64_t element) {
  const bool second = (element & 2u) != 0;
  const float u1 = (float)(int32_t)(((second ? w.w2 : w.w0) >> 8) + 1u) * 0x1p-24f;
  const float u2 = (float)(int32_t)((second ? w.w3 : w.w1) >> 8) * 0x1p-24f;
  const float radius = sn_sqrt(-2.0f * sn_log(u1));
  return radius * sn_sin_cos(6.283185307179586f * u2, (element & 1u) != 0 ? 0 : 1);
}
// Where words come from: made anew for each element (which suits vector code), or kept while the
// elements of one call follow each other (which suits a thread's unrolled loop).
struct sn_fresh {
  SN_FN_MEMBER sn_words words(uint32_t key0, uint32_t key1, uint32_t step, uint32_t site,
                              uint64_t call) {
    return sn_philox(key0, key1, step, site, call);
  }
};
struct sn_kept {
  uint64_t last = ~0ull;  // beyond every call
  sn_words kept = {0, 0, 0, 0};
  SN_FN_MEMBER sn_words words(uint32_t key0, uint32_t key1, uint32_t step, uint32_t site,
                              uint64_t call) {
    if (call != last) kept = sn_philox(key0, key1, step, site, call);
    last = call;
    return kept;
  }
};
template <typename Source>
SN_FN int32_t sn_random_half(Source&& source, uint32_t key0, uint32_t key1, uint32_t step,
                             int64_t offset, uint32_t site, int64_t index) {
  const uint64_t e = (uint64_t)offset + (uint64_t)index;
  return sn_half(source.words(key0, key1, step, site, e >> 3), e);
}
template <typename Source>
SN_FN float sn_random_uniform(Source&& source, uint32_t key0, uint32_t key1, uint32_t step,
                              int64_t offset, uint32_t site, int64_t index) {
  const uint64_t e = (uint64_t)offset + (uint64_t)index;
  return sn_uniform(source.words(key0, key1, step, site, e >> 2), e);
}
template <typename Source>
SN_FN float sn_random_normal(Source&& source, uint32_t key0, uint32_t key1, uint32_t step,
                             int64_t offset, uint32_t site, int64_t index) {
  const uint64_t e = (uint64_t)offset + (uint64_t)index;
  return sn_normal(source.words(key0, key1, step, site, e >> 2), e);
}

// The value, or `low` and a record where it is outside low..high-1.
template <typename T>
SN_FN T sn_check(FaultSlot* slot, T value, int64_t low, int64_t high, bool ignored,
                 int64_t position) {
  const int64_t wide = (int64_t)value;
  if (((wide >= low) & (wide < high)) | ignored) return value;
  sn_fault(slot, position, wide);
  return (T)low;
}
