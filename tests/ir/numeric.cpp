#include <sinter/ir/numeric.h>

#include <doctest/doctest.h>

#include <clocale>
#include <cmath>
#include <limits>

using namespace sinter;

namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
bool is_nan16(uint16_t bits, int mantissa) {
  uint16_t fraction = static_cast<uint16_t>(bits & ((1u << mantissa) - 1));
  uint16_t exponent = static_cast<uint16_t>((bits & 0x7FFFu) >> mantissa);
  return exponent == (1u << (15 - mantissa)) - 1 && fraction != 0;
}

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("MP-07: f32 to bf16 bits") {
  struct Row {
    uint32_t in;
    uint16_t out;
  };
  const Row rows[] = {{0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81},
                      {0x3E99999A, 0x3E9A}, {0x7F7F7FFF, 0x7F7F}, {0x7F7FFFFF, 0x7F80},
                      {0xFF800000, 0xFF80}, {0x80000000, 0x8000}, {0x00000001, 0x0000}};
  for (const Row& row : rows) {
    CAPTURE(row.in);
    CHECK(f32_to_bf16(from_bits(row.in)) == row.out);
    CHECK(f64_to_bf16(from_bits(row.in)) == row.out);
    float source = from_bits(row.in);
    uint16_t stored = 0;
    convert_elements(DType::F32, &source, DType::BF16, &stored, 1);
    CHECK(stored == row.out);
  }
  for (uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0xFF800001u}) {
    CAPTURE(nan);
    CHECK(is_nan16(f32_to_bf16(from_bits(nan)), 7));
    CHECK(is_nan16(f64_to_bf16(from_bits(nan)), 7));
    CHECK(is_nan16(f32_to_f16(from_bits(nan)), 10));
    CHECK((f32_to_bf16(from_bits(nan)) >> 15) == (nan >> 31));
  }
}

TEST_CASE("every 16-bit float survives widening and narrowing") {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float b = bf16_to_f32(bits), h = f16_to_f32(bits);
    if (std::isnan(b)) {
      REQUIRE(is_nan16(f32_to_bf16(b), 7));
    } else {
      REQUIRE(f32_to_bf16(b) == bits);
      REQUIRE(f64_to_bf16(b) == bits);
    }
    if (std::isnan(h)) {
      REQUIRE(is_nan16(f32_to_f16(h), 10));
    } else {
      REQUIRE(f32_to_f16(h) == bits);
      REQUIRE(f64_to_f16(h) == bits);
    }
  }
}

TEST_CASE("16-bit narrowing rounds to nearest even at every midpoint") {
  // Between each pair of neighbours: the midpoint goes to the even one, a nudge either side of it
  // to the nearer one. Doubles hold midpoints and nudges exactly.
  auto sweep = [](auto widen, auto narrow, uint16_t infinity) {
    for (uint16_t low = 0; low + 1 < infinity; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double a = widen(low), b = widen(high), mid = (a + b) / 2;
      REQUIRE(narrow(mid) == (low % 2 == 0 ? low : high));
      REQUIRE(narrow(std::nextafter(mid, 0.0)) == low);
      REQUIRE(narrow(std::nextafter(mid, kInf)) == high);
      REQUIRE(narrow(-mid) == (0x8000 | (low % 2 == 0 ? low : high)));
    }
  };
  sweep(bf16_to_f32, f64_to_bf16, 0x7F80);
  sweep(f16_to_f32, f64_to_f16, 0x7C00);
}

TEST_CASE("f32 to f16: bits at the edges") {
  CHECK(f32_to_f16(65504.0f) == 0x7BFF);
  CHECK(f32_to_f16(65519.996f) == 0x7BFF);
  CHECK(f32_to_f16(65520.0f) == 0x7C00);
  CHECK(f32_to_f16(-1e9f) == 0xFC00);
  CHECK(f32_to_f16(0x1p-24f) == 0x0001);
  CHECK(f32_to_f16(0x1p-25f) == 0x0000);
  CHECK(f32_to_f16(0x1.8p-25f) == 0x0001);
  CHECK(f32_to_f16(0x1p-26f) == 0x0000);
  CHECK(f32_to_f16(-0.0f) == 0x8000);
  CHECK(f32_to_f16(0x1.ffcp-15f) == 0x0400);  // a tie that rounds up into the normals
  CHECK(f16_to_f32(0x3C00) == 1.0f);
  CHECK(f16_to_f32(0xFC00) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("f64 to 16 bits rounds once") {
  // Through f32 this value would first become the midpoint and then go to even.
  const double just_above = 1.0 + 0x1p-8 + 0x1p-40;
  CHECK(f64_to_bf16(just_above) == 0x3F81);
  CHECK(f32_to_bf16(static_cast<float>(just_above)) == 0x3F80);
  const double f16_above = 1.0 + 0x1p-11 + 0x1p-40;
  CHECK(f64_to_f16(f16_above) == 0x3C01);
  CHECK(f32_to_f16(static_cast<float>(f16_above)) == 0x3C00);
  CHECK(f64_to_bf16(1e300) == 0x7F80);
  CHECK(f64_to_bf16(5e-324) == 0);
  CHECK(f64_to_bf16(-5e-324) == 0x8000);
  CHECK(round_to(DType::BF16, 0.1) == 0.10009765625);
}

TEST_CASE("float to integer saturates, NaN gives 0") {
  CHECK(float_to_int<int32_t>(2147483647.0) == 2147483647);
  CHECK(float_to_int<int32_t>(2147483648.0) == 2147483647);
  CHECK(float_to_int<int32_t>(-2147483649.0) == -2147483647 - 1);
  CHECK(float_to_int<int32_t>(-1.9) == -1);
  CHECK(float_to_int<int32_t>(kNaN) == 0);
  CHECK(float_to_int<int64_t>(0x1p63) == std::numeric_limits<int64_t>::max());
  CHECK(float_to_int<int64_t>(-kInf) == std::numeric_limits<int64_t>::min());
  CHECK(float_to_int<int64_t>(0x1.fffffffffffffp62) == 0x7FFFFFFFFFFFFC00);
  CHECK(float_to_int<uint32_t>(-1.0) == 0);
  CHECK(float_to_int<uint32_t>(4294967295.0) == 4294967295u);
  CHECK(float_to_int<uint32_t>(kInf) == 4294967295u);
}

TEST_CASE("elements of every type, loaded and stored") {
  alignas(8) unsigned char cells[16] = {};
  for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                     DType::U32, DType::Bool}) {
    CAPTURE(to_string(type));
    store_from_double(type, cells, 1, 1.0);
    CHECK(load_as_double(type, cells, 1) == 1.0);
    CHECK(load_as_int64(type, cells, 1) == 1);
    store_from_int64(type, cells, 1, 0);
    CHECK(load_as_int64(type, cells, 1) == 0);
    store_bits(type, cells, 1, 1);
    CHECK(load_bits(type, cells, 1) == 1);
  }
  store_from_double(DType::Bool, cells, 0, kNaN);
  CHECK(load_as_double(DType::Bool, cells, 0) == 1);
  store_from_int64(DType::I32, cells, 0, int64_t{1} << 32 | 7);
  CHECK(load_as_int64(DType::I32, cells, 0) == 7);
  store_from_int64(DType::U32, cells, 0, -1);
  CHECK(load_as_int64(DType::U32, cells, 0) == 4294967295);
}

TEST_CASE("integers become floats with one rounding") {
  // Just above the midpoint of two bf16 values: a detour by double would land on it.
  const int64_t value = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;
  uint16_t stored = 0;
  convert_element(DType::I64, &value, 0, DType::BF16, &stored, 0);
  CHECK(bf16_to_f32(stored) == 0x1p62f + 0x1p55f);
  const int64_t negative = -value;
  convert_element(DType::I64, &negative, 0, DType::BF16, &stored, 0);
  CHECK(bf16_to_f32(stored) == -(0x1p62f + 0x1p55f));
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  convert_element(DType::I64, &lowest, 0, DType::BF16, &stored, 0);
  CHECK(bf16_to_f32(stored) == -0x1p63f);
}

TEST_CASE("number text") {
  CHECK(format_f64(0.1) == "0.1");
  CHECK(format_f64(1.0) == "1");
  CHECK(format_f64(-0.0) == "-0");
  CHECK(format_f64(kNaN) == "nan");
  CHECK(format_f64(-kNaN) == "nan");
  CHECK(format_f64(-kInf) == "-inf");
  CHECK(format_f32(0.1f) == "0.1");
  CHECK(format_f64(0.1f) == "0.10000000149011612");
  CHECK(format_f32(std::numeric_limits<float>::max()) == "3.4028235e+38");
  CHECK(parse_f64("1e-5") == 1e-5);
  CHECK(parse_f64("-0.5") == -0.5);
  CHECK(std::signbit(*parse_f64("-0")));
  CHECK(parse_f64("5e-324") == 5e-324);
  CHECK(parse_f64("0.000e10") == 0.0);
  CHECK(parse_f64("inf") == kInf);
  CHECK(std::isnan(*parse_f64("nan")));
  for (const char* bad : {"", "1.5x", " 1", "1 ", "+1", "infinity", "INF", "nan(1)", "-nan",
                          "1e999", "-1e999", "1e-999", "0x10", "1,5", "-", ".", "e5", "--1"}) {
    CAPTURE(bad);
    CHECK(!parse_f64(bad));
  }
  CHECK(!parse_f32("1e39"));
  for (double value : {0.1, 1.0 / 3, 1e100, 2.2250738585072014e-308, 4.9e-324, 123456789.123456789})
    CHECK(parse_f64(format_f64(value)) == value);
  for (uint32_t bits = 1; bits < 0x7F800000u; bits += 0x00012345u) {
    const float value = from_bits(bits);
    REQUIRE(parse_f32(format_f32(value)) == value);
  }
}

TEST_CASE("number text does not follow the locale") {
  const char* set = std::setlocale(LC_ALL, "de_DE.UTF-8");
  CHECK(format_f64(0.5) == "0.5");
  CHECK(parse_f64("0.5") == 0.5);
  if (set) std::setlocale(LC_ALL, "C");
}
