#pragma once
// Bit-exact scalar conversions between element types, and number text that no locale changes.
//
// Every narrowing rounds once, to nearest with ties to even: f64 goes to bf16 and f16 directly, not
// through f32. NaN stays NaN (its high payload bits are kept, the quiet bit is set), overflow gives
// infinity, subnormals are exact. Float to integer truncates and saturates, NaN gives 0; integer to
// integer wraps; anything to bool is `value != 0` (so NaN gives true).

#include <sinter/ir/type.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace sinter {

// Storage of one bf16 or f16 element: distinct types, so that they are not taken for integers.
struct BFloat16 {
  uint16_t bits = 0;
  friend bool operator==(BFloat16, BFloat16) = default;
};
struct Float16 {
  uint16_t bits = 0;
  friend bool operator==(Float16, Float16) = default;
};

// The element type that a C++ type stores; no definition for other types.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::F64> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::F32> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::BF16> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::F16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::I32> {};
template <>
struct DTypeOf<int64_t> : std::integral_constant<DType, DType::I64> {};
template <>
struct DTypeOf<uint32_t> : std::integral_constant<DType, DType::U32> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::Bool> {};
template <typename T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

inline uint16_t f32_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  // Adding the rounding bias to a NaN could carry it into infinity or minus zero.
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_f16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f64_to_bf16(double value);
uint16_t f64_to_f16(double value);
// A double that rounds to any shorter float as `value` itself does: bits that do not fit are
// gathered in the last one that does (round to odd).
double int64_to_odd_double(int64_t value);

// Truncates toward zero, saturates at the ends of Int; NaN gives 0. Int is i32, i64 or u32.
template <typename Int>
constexpr Int float_to_int(double value) {
  // Both bounds are powers of two or zero, hence exact in double.
  constexpr double low = static_cast<double>(std::numeric_limits<Int>::min());
  constexpr double end = static_cast<double>(std::numeric_limits<Int>::max() / 2 + 1) * 2;
  if (value != value) return 0;
  if (value <= low) return std::numeric_limits<Int>::min();
  if (value >= end) return std::numeric_limits<Int>::max();
  return static_cast<Int>(value);
}

// The value of `type` nearest to `value`, as a double: what storing and loading gives.
double round_to(DType type, double value);

// Element i of an array of `type`. Loading i64 as double rounds; every other type is exact.
double load_as_double(DType type, const void* data, int64_t i);
void store_from_double(DType type, void* data, int64_t i, double value);
// Floats are truncated as float_to_int does; integers wrap when stored.
int64_t load_as_int64(DType type, const void* data, int64_t i);
void store_from_int64(DType type, void* data, int64_t i, int64_t value);
// The element's bits, zero-extended.
uint64_t load_bits(DType type, const void* data, int64_t i);
void store_bits(DType type, void* data, int64_t i, uint64_t bits);
// Element i of `from` stored as element j of `to`, rounded once whatever the two types are.
void convert_element(DType from, const void* source, int64_t i, DType to, void* target, int64_t j);
// `count` elements from `source` to `target`; the fast form of convert_element.
void convert_elements(DType from, const void* source, DType to, void* target, int64_t count);

// Shortest text that reads back as the same value; "nan", "inf", "-inf".
std::string format_f64(double value);
std::string format_f32(float value);
// The whole text as one number, rounded once; "nan", "inf" and "-inf" too. nullopt when malformed
// or beyond the finite range (a magnitude too small to represent counts as beyond it).
std::optional<double> parse_f64(std::string_view text);
std::optional<float> parse_f32(std::string_view text);

}  // namespace sinter
