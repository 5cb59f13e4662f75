#pragma once
// Programs that each run on the interpreter, the host and CUDA, and what they have to give: the
// bits of constants, conversions, wrapping integers, NaN in max and min, random numbers, faults.

#include <sinter/ir/numeric.h>
#include <sinter/ir/philox.h>
#include <sinter/tests/codegen/programs.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sinter::test {

struct ExactCase {
  LoopProgram program;
  std::vector<std::vector<uint8_t>> inputs;  // bytes
  // The bytes of each output; for floats, NaN stands for any NaN.
  std::vector<std::vector<uint8_t>> outputs;
  std::vector<FaultSlot> faults;
};

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> out(values.size() * sizeof(T));
  if (!out.empty())
    std::copy_n(reinterpret_cast<const uint8_t*>(values.data()), out.size(), out.data());
  return out;
}

// Whether two elements are the same bits, or both NaN.
inline bool same_element(DType type, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b,
                         int64_t i) {
  if (load_bits(type, a.data(), i) == load_bits(type, b.data(), i)) return true;
  if (!is_float(type)) return false;
  const double x = load_as_double(type, a.data(), i), y = load_as_double(type, b.data(), i);
  return x != x && y != y;
}

// The first output element that is wrong, as text; empty when none is.
inline std::string difference(const ExactCase& t, const std::vector<std::vector<uint8_t>>& got) {
  size_t output = 0;
  for (const KernelBuffer& b : t.program.buffers) {
    if (!b.output) continue;
    const std::vector<uint8_t>& want = t.outputs[output];
    for (int64_t i = 0; i < b.type.elements(); ++i)
      if (!same_element(b.type.dtype, want, got[output], i))
        return fmt::format("{}: {}[{}] has bits {:x}, not {:x}", t.program.symbol, b.name, i,
                           load_bits(b.type.dtype, got[output].data(), i),
                           load_bits(b.type.dtype, want.data(), i));
    ++output;
  }
  return "";
}

namespace detail {

inline constexpr float kFloatInf = std::numeric_limits<float>::infinity();
inline constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

// Constants whose text is easily wrong.
inline ExactCase constants(std::string_view arch) {
  ExactCase t;
  const std::vector<double> floats = {-INFINITY, INFINITY, NAN,   -FLT_MAX, -0.0,       0x1p-149,
                                      0.1,       1e-5,     1e-42, 0.5,      1234567.25, 16777216};
  const std::vector<double> doubles = {0.1, 1e-310, -INFINITY, NAN, -0.0, 1.7976931348623157e308};
  const std::vector<int64_t> longs = {16777217, INT64_MIN, INT64_MAX, -1};
  const std::vector<int64_t> ints = {16777217, INT32_MIN, INT32_MAX};
  const std::vector<int64_t> words = {4294967295, 0};
  std::vector<DType> types(floats.size(), DType::F32);
  types.insert(types.end(), doubles.size(), DType::F64);
  types.insert(types.end(), longs.size(), DType::I64);
  types.insert(types.end(), ints.size(), DType::I32);
  types.insert(types.end(), words.size(), DType::U32);
  types.push_back(DType::BF16);
  types.push_back(DType::F16);
  types.push_back(DType::Bool);
  t.program = elementwise("constants", arch, 4, {}, types,
                          [&](LoopBuilder& b, const std::vector<Var>&, const IndexExpr&) {
                            std::vector<Var> v;
                            const auto integer = [&](DType type, int64_t value) {
                              Cell cell{};
                              cell.i = value;
                              v.push_back(b.literal(type, cell));
                            };
                            for (double x : floats) v.push_back(b.literal(DType::F32, x));
                            for (double x : doubles) v.push_back(b.literal(DType::F64, x));
                            for (int64_t x : longs) integer(DType::I64, x);
                            for (int64_t x : ints) integer(DType::I32, x);
                            for (int64_t x : words) integer(DType::U32, x);
                            v.push_back(b.literal(DType::BF16, 0.1));
                            v.push_back(b.literal(DType::F16, 0.1));
                            integer(DType::Bool, 1);
                            return v;
                          });
  const auto want = [&](auto value) {
    t.outputs.push_back(bytes_of(std::vector<decltype(value)>(4, value)));
  };
  for (double x : floats) want(static_cast<float>(x));
  for (double x : doubles) want(x);
  for (int64_t x : longs) want(x);
  for (int64_t x : ints) want(static_cast<int32_t>(x));
  for (int64_t x : words) want(static_cast<uint32_t>(x));
  want(uint16_t{0x3DCD});
  want(uint16_t{0x2E66});
  want(uint8_t{1});
  return t;
}

// NaN survives max and min on either side; zeros of both signs are not equal there.
inline ExactCase keeps_nan(std::string_view arch) {
  ExactCase t;
  t.program = elementwise("keeps_nan", arch, 7, {DType::F32, DType::F32}, {DType::F32, DType::F32},
                          [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                            return std::vector<Var>{b.let(Fn::Max, v), b.let(Fn::Min, v)};
                          });
  t.inputs = {bytes_of<float>({kFloatNan, 1, kFloatNan, -1, 2, 0.0F, -0.0F}),
              bytes_of<float>({0, kFloatNan, kFloatInf, 0, 0, -0.0F, 0.0F})};
  t.outputs = {bytes_of<float>({kFloatNan, kFloatNan, kFloatNan, 0, 2, 0.0F, 0.0F}),
               bytes_of<float>({kFloatNan, kFloatNan, kFloatNan, -1, 0, -0.0F, -0.0F})};
  return t;
}

// f32 to bf16 and f16, f64 to both (rounded once), and back.
inline ExactCase narrow(std::string_view arch) {
  ExactCase t;
  const std::vector<uint32_t> in = {0x3F808000, 0x3F818000, 0x3F808001, 0x3E99999A, 0x7F7F7FFF,
                                    0x7F7FFFFF, 0xFF800000, 0x80000000, 0x00000001, 0x7F800001,
                                    0x7FFFFFFF, 0x00008000, 0x00018000, 0x80808080};
  const std::vector<uint16_t> bf = {0x3F80, 0x3F82, 0x3F81, 0x3E9A, 0x7F7F, 0x7F80, 0xFF80,
                                    0x8000, 0x0000, 0x7FC0, 0x7FC0, 0x0000, 0x0002, 0x8081};
  // Halfway cases that rounding through f32 first would move; subnormals; overflow.
  const std::vector<double> wide = {1 + 0x1p-8 + 0x1p-30,
                                    1 + 0x1p-8,
                                    1 + 0x3p-8,
                                    1 + 0x1p-11 + 0x1p-40,
                                    1 + 0x1p-11,
                                    65519.999999999,
                                    65520.0,
                                    0x1.8p-24,
                                    0x1p-25,
                                    0x1p-25 + 0x1p-60,
                                    -0x1p-14 + 0x1p-26,
                                    3.3961775292304e38,
                                    -1e300,
                                    NAN};
  const auto n = static_cast<int64_t>(in.size());
  t.program =
      elementwise("narrow", arch, n, {DType::F32, DType::F64},
                  {DType::BF16, DType::F16, DType::F32, DType::F32, DType::BF16, DType::F16},
                  [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                    const Var bf16 = b.cast(v[0], DType::BF16), f16 = b.cast(v[0], DType::F16);
                    return std::vector<Var>{bf16,
                                            f16,
                                            b.cast(bf16, DType::F32),
                                            b.cast(f16, DType::F32),
                                            b.cast(v[1], DType::BF16),
                                            b.cast(v[1], DType::F16)};
                  });
  t.inputs = {bytes_of(in), bytes_of(wide)};
  std::vector<uint16_t> half, wide_bf, wide_half;
  std::vector<float> bf_back, half_back;
  for (size_t i = 0; i < in.size(); ++i) {
    half.push_back(f32_to_f16(std::bit_cast<float>(in[i])));
    bf_back.push_back(bf16_to_f32(bf[i]));
    half_back.push_back(f16_to_f32(half[i]));
    wide_bf.push_back(f64_to_bf16(wide[i]));
    wide_half.push_back(f64_to_f16(wide[i]));
  }
  t.outputs = {bytes_of(bf),        bytes_of(half),    bytes_of(bf_back),
               bytes_of(half_back), bytes_of(wide_bf), bytes_of(wide_half)};
  return t;
}

// Every f16 to f32 and back, and the floats around them.
inline ExactCase all_halves(std::string_view arch) {
  ExactCase t;
  t.program =
      elementwise("all_halves", arch, 65536, {DType::F16, DType::F32}, {DType::F32, DType::F16},
                  [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                    return std::vector<Var>{b.cast(v[0], DType::F32), b.cast(v[1], DType::F16)};
                  });
  std::vector<uint16_t> halves, rounded;
  std::vector<float> exact, near;
  for (uint32_t i = 0; i < 65536; ++i) {
    halves.push_back(static_cast<uint16_t>(i));
    exact.push_back(f16_to_f32(static_cast<uint16_t>(i)));
    const uint32_t offsets[] = {0, 0x1000, 0x0fff, 0x1001};
    near.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(exact.back()) + offsets[i % 4]));
    rounded.push_back(f32_to_f16(near.back()));
  }
  t.inputs = {bytes_of(halves), bytes_of(near)};
  t.outputs = {bytes_of(exact), bytes_of(rounded)};
  return t;
}

// Integers to bf16 and f16, rounded once: neither by way of f32 nor of f64.
inline ExactCase narrow_integers(std::string_view arch) {
  ExactCase t;
  const int64_t tie = (int64_t{1} << 55) + (int64_t{1} << 47);
  const std::vector<int32_t> ints = {16842753,  -16842753, 16842752, 2049, 2051,
                                     INT32_MAX, INT32_MIN, -1,       65519};
  const std::vector<int64_t> longs = {
      tie + 1, -tie - 1, tie, (int64_t{1} << 53) + 1, 65519, INT64_MAX, INT64_MIN, -1, 0};
  const std::vector<uint32_t> words = {16842753, 4278255617, 4294967295, 0, 1, 2049, 7, 8, 9};
  const auto n = static_cast<int64_t>(ints.size());
  t.program =
      elementwise("narrow_integers", arch, n, {DType::I32, DType::I64, DType::U32},
                  {DType::BF16, DType::F16, DType::BF16, DType::F16, DType::BF16, DType::F16},
                  [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                    std::vector<Var> out;
                    for (Var x : v)
                      for (DType to : {DType::BF16, DType::F16}) out.push_back(b.cast(x, to));
                    return out;
                  });
  t.inputs = {bytes_of(ints), bytes_of(longs), bytes_of(words)};
  const auto want = [&](DType from, const std::vector<uint8_t>& in) {
    for (DType to : {DType::BF16, DType::F16}) {
      std::vector<uint16_t> out(static_cast<size_t>(n));
      convert_elements(from, in.data(), to, out.data(), n);
      t.outputs.push_back(bytes_of(out));
    }
  };
  want(DType::I32, t.inputs[0]);
  want(DType::I64, t.inputs[1]);
  want(DType::U32, t.inputs[2]);
  return t;
}

// Floats to integers saturate; integers wrap.
inline ExactCase integers(std::string_view arch) {
  ExactCase t;
  const std::vector<float> x = {1.9F,  -1.9F,  3e9F,          -3e9F,         kFloatNan, kFloatInf,
                                1e19F, -1e19F, 2147483648.0F, 4294967296.0F, -0.5F,     -kFloatInf};
  const std::vector<int64_t> big = {INT64_MAX, INT64_MIN,  -1, 1, 16777217, (int64_t{1} << 53) + 1,
                                    0,         4294967296, 7,  2, -5,       1234567890123};
  const auto n = static_cast<int64_t>(x.size());
  t.program = elementwise("integers", arch, n, {DType::F32, DType::I64},
                          {DType::I32, DType::I64, DType::U32, DType::Bool, DType::I32, DType::I64,
                           DType::I64, DType::F32, DType::I32, DType::I64},
                          [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr& e) {
                            const Var narrow = b.cast(v[1], DType::I32);
                            return std::vector<Var>{
                                b.cast(v[0], DType::I32),
                                b.cast(v[0], DType::I64),
                                b.cast(v[0], DType::U32),
                                b.cast(v[0], DType::Bool),
                                b.let(Fn::Mul, {narrow, narrow}),
                                b.let(Fn::Add, {v[1], v[1]}),
                                b.let(Fn::Abs, {v[1]}),
                                b.cast(v[1], DType::F32),
                                b.let(Fn::Neg, {narrow}),
                                b.index(floordiv(e * 3 - 7, 5) * 100 + mod(e * 3 - 7, 5))};
                          });
  t.inputs = {bytes_of(x), bytes_of(big)};
  std::vector<int32_t> i32, squares, negated;
  std::vector<int64_t> i64, doubled, absolute, places;
  std::vector<uint32_t> u32;
  std::vector<uint8_t> truth;
  std::vector<float> floats;
  for (size_t i = 0; i < x.size(); ++i) {
    i32.push_back(float_to_int<int32_t>(x[i]));
    i64.push_back(float_to_int<int64_t>(x[i]));
    u32.push_back(float_to_int<uint32_t>(x[i]));
    truth.push_back(x[i] != 0);
    const auto u = static_cast<uint64_t>(big[i]);
    const auto low = static_cast<uint32_t>(u);
    squares.push_back(static_cast<int32_t>(low * low));
    doubled.push_back(static_cast<int64_t>(u + u));
    absolute.push_back(big[i] < 0 ? static_cast<int64_t>(0 - u) : big[i]);
    floats.push_back(static_cast<float>(big[i]));
    negated.push_back(static_cast<int32_t>(0U - low));
    const int64_t p = static_cast<int64_t>(i) * 3 - 7;
    const int64_t q = p >= 0 ? p / 5 : -((-p + 4) / 5);
    places.push_back(q * 100 + (p - q * 5));
  }
  t.outputs = {bytes_of(i32),     bytes_of(i64),     bytes_of(u32),      bytes_of(truth),
               bytes_of(squares), bytes_of(doubled), bytes_of(absolute), bytes_of(floats),
               bytes_of(negated), bytes_of(places)};
  return t;
}

// Element offsets beyond 32 bits: index values only, no memory.
inline ExactCase wide_indices(std::string_view arch) {
  ExactCase t;
  t.program = elementwise("wide_indices", arch, 300, {}, {DType::I64, DType::I64, DType::I32},
                          [&](LoopBuilder& b, const std::vector<Var>&, const IndexExpr& e) {
                            const IndexExpr far = e * 3000000019 + 5;
                            return std::vector<Var>{
                                b.index(far), b.index(floordiv(far, 768) + mod(far, 1000)),
                                b.index(floordiv(e * 8388608, 4097), DType::I32)};
                          });
  std::vector<int64_t> plain, mixed;
  std::vector<int32_t> narrow;
  for (int64_t e = 0; e < 300; ++e) {
    const int64_t far = e * 3000000019 + 5;
    plain.push_back(far);
    mixed.push_back(far / 768 + far % 1000);
    narrow.push_back(static_cast<int32_t>(e * 8388608 / 4097));
  }
  t.outputs = {bytes_of(plain), bytes_of(mixed), bytes_of(narrow)};
  return t;
}

inline ExactCase random_bits(std::string_view arch) {
  ExactCase t;
  constexpr int64_t kCount = 1000;
  const RandomStream stream{{5, 4000000000U}, 7, 2, (int64_t{1} << 33) + 3};
  t.program =
      elementwise("random_bits", arch, kCount, {DType::U32}, {DType::I32, DType::F32},
                  [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr& e) {
                    Cell offset{};
                    offset.i = stream.offset;
                    const std::vector<Var> args = {v[0], b.literal(DType::U32, stream.seed[1]),
                                                   b.literal(DType::U32, stream.step),
                                                   b.literal(DType::I64, offset)};
                    return std::vector<Var>{b.random(RandomKind::Half, stream.site, args, e),
                                            b.random(RandomKind::Uniform, stream.site, args, e)};
                  });
  t.inputs = {bytes_of(std::vector<uint32_t>(kCount, stream.seed[0]))};
  std::vector<int32_t> halves;
  std::vector<float> uniforms;
  for (int64_t i = 0; i < kCount; ++i) {
    const uint64_t e = stream.element(i);
    halves.push_back(
        static_cast<int32_t>(dropout_half(stream.words(e / 8), static_cast<int>(e % 8))));
    uniforms.push_back(random_uniform(stream, i));
  }
  t.outputs = {bytes_of(halves), bytes_of(uniforms)};
  return t;
}

// Four consecutive elements to a lane, so that a call of the generator serves several.
inline ExactCase random_runs(std::string_view arch) {
  ExactCase t;
  constexpr int64_t kLanes = 64, kCount = 4 * kLanes;
  const RandomStream stream{{77, 3}, 9, 5, 3};
  LoopBuilder b("random_runs", arch, arch == "host" ? 1 : kLanes);
  const int half = b.output(DType::I32, {kCount}), uniform = b.output(DType::F32, {kCount});
  const bool host = arch == "host";
  b.loop(host ? Level::Cores : Level::Grid, 1, [&](const IndexExpr&) {
    std::vector<Var> args = {b.literal(DType::U32, 77), b.literal(DType::U32, 3),
                             b.literal(DType::U32, 9), b.literal(DType::I64, 3)};
    b.loop(host ? Level::Simd : Level::Lane, kLanes, [&](const IndexExpr& lane) {
      b.loop(Level::Vector, 4, [&](const IndexExpr& j) {
        const IndexExpr e = lane * 4 + j;
        b.store(half, e, b.random(RandomKind::Half, 5, args, e));
        b.store(uniform, e, b.random(RandomKind::Uniform, 5, args, e));
      });
    });
  });
  t.program = b.p;
  std::vector<int32_t> halves;
  std::vector<float> uniforms;
  for (int64_t i = 0; i < kCount; ++i) {
    const uint64_t e = stream.element(i);
    halves.push_back(
        static_cast<int32_t>(dropout_half(stream.words(e / 8), static_cast<int>(e % 8))));
    uniforms.push_back(random_uniform(stream, i));
  }
  t.outputs = {bytes_of(halves), bytes_of(uniforms)};
  return t;
}

inline ExactCase faults(std::string_view arch) {
  ExactCase t;
  constexpr int64_t kCount = 2000;
  std::vector<int64_t> ids, kept;
  t.faults = {{std::numeric_limits<int64_t>::max(), 0}};
  for (int64_t i = 0; i < kCount; ++i) {
    const bool bad = i % 7 == 5 && i > 300;
    ids.push_back(bad ? i * 1000 : i % 11 == 0 ? -100 : i % 5 + 2);
    kept.push_back(bad ? 2 : ids.back());
    if (bad && t.faults[0].position > 3 * i) t.faults[0] = {3 * i, ids.back()};
  }
  t.program = elementwise("faults", arch, kCount, {DType::I64}, {DType::I64},
                          [&](LoopBuilder& l, const std::vector<Var>& v, const IndexExpr& e) {
                            const int fault = l.fault("token", 2, 7);
                            return std::vector<Var>{l.check(v[0], fault, 2, 7, -100, e * 3)};
                          });
  t.inputs = {bytes_of(ids)};
  t.outputs = {bytes_of(kept)};
  return t;
}

}  // namespace detail

inline std::vector<ExactCase> exact_cases(std::string_view arch) {
  return {detail::constants(arch),       detail::keeps_nan(arch),   detail::narrow(arch),
          detail::narrow_integers(arch), detail::all_halves(arch),  detail::integers(arch),
          detail::wide_indices(arch),    detail::random_bits(arch), detail::random_runs(arch),
          detail::faults(arch)};
}

}  // namespace sinter::test
