#include <sinter/ir/numeric.h>

#include <sinter/ir/diagnostic.h>

#include <charconv>
#include <cmath>
#include <cstring>

namespace sinter {
namespace {

// A 16-bit float format with `mantissa` stored fraction bits and 15 - mantissa exponent bits.
template <int mantissa>
uint16_t narrow(double value) {
  constexpr int bias = (1 << (14 - mantissa)) - 1;
  constexpr uint64_t infinity = static_cast<uint64_t>(2 * bias + 1) << mantissa;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 63) << 15);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const int raw = static_cast<int>((bits >> 52) & 0x7FF);
  if (raw == 0x7FF) {
    uint64_t payload =
        fraction == 0 ? 0 : (fraction >> (52 - mantissa)) | (uint64_t{1} << (mantissa - 1));
    return static_cast<uint16_t>(sign | infinity | payload);
  }
  const int exponent = raw - 1023 + bias;
  if (exponent > 2 * bias) return static_cast<uint16_t>(sign | infinity);
  int shift = 52 - mantissa;
  if (exponent < 1) shift += 1 - exponent;
  if (shift > 53) return sign;  // below half of the smallest subnormal
  // The implicit bit stays in the sum: it adds the exponent's last 1, and a carry adds another.
  const uint64_t significand = fraction | (raw ? uint64_t{1} << 52 : 0);
  uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  if (exponent > 1) kept += static_cast<uint64_t>(exponent - 1) << mantissa;
  return static_cast<uint16_t>(sign | kept);
}

template <typename T>
T load(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void store(void* data, int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
std::string format(T value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  SINTER_CHECK(error == std::errc(), "number text did not fit");
  return std::string(buffer, end);
}

template <typename T>
std::optional<T> parse(std::string_view text) {
  if (text == "nan") return std::numeric_limits<T>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<T>::infinity();
  if (text == "-inf") return -std::numeric_limits<T>::infinity();
  // from_chars would also take "infinity" and "nan(…)".
  for (char c : text)
    if ((c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E')
      return std::nullopt;
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || std::isinf(value))
    return std::nullopt;
  if (value == 0) {
    // Zero must be written as zero: otherwise the magnitude was too small.
    for (char c : text) {
      if (c == 'e' || c == 'E') break;
      if (c >= '1' && c <= '9') return std::nullopt;
    }
  }
  return value;
}

}  // namespace

uint16_t f32_to_f16(float value) {
  return narrow<10>(value);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {
    float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 0x1Fu ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

uint16_t f64_to_bf16(double value) {
  return narrow<7>(value);
}
uint16_t f64_to_f16(double value) {
  return narrow<10>(value);
}

double int64_to_odd_double(int64_t value) {
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude >> 53) {
    uint64_t lost = magnitude & 0x7FF;
    magnitude = (magnitude & ~uint64_t{0x7FF}) | (lost ? 0x800 : 0);
  }
  auto result = static_cast<double>(magnitude);
  return value < 0 ? -result : result;
}

double load_as_double(DType type, const void* data, int64_t i) {
  switch (type) {
    case DType::F64:
      return load<double>(data, i);
    case DType::F32:
      return load<float>(data, i);
    case DType::BF16:
      return bf16_to_f32(load<uint16_t>(data, i));
    case DType::F16:
      return f16_to_f32(load<uint16_t>(data, i));
    case DType::I32:
      return load<int32_t>(data, i);
    case DType::I64:
      return static_cast<double>(load<int64_t>(data, i));
    case DType::U32:
      return load<uint32_t>(data, i);
    case DType::Bool:
      return load<uint8_t>(data, i) != 0;
  }
  return 0;
}

void store_from_double(DType type, void* data, int64_t i, double value) {
  switch (type) {
    case DType::F64:
      return store(data, i, value);
    case DType::F32:
      return store(data, i, static_cast<float>(value));
    case DType::BF16:
      return store(data, i, f64_to_bf16(value));
    case DType::F16:
      return store(data, i, f64_to_f16(value));
    case DType::I32:
      return store(data, i, float_to_int<int32_t>(value));
    case DType::I64:
      return store(data, i, float_to_int<int64_t>(value));
    case DType::U32:
      return store(data, i, float_to_int<uint32_t>(value));
    case DType::Bool:
      return store(data, i, static_cast<uint8_t>(value != 0));
  }
}

double round_to(DType type, double value) {
  alignas(8) unsigned char cell[8];
  store_from_double(type, cell, 0, value);
  return load_as_double(type, cell, 0);
}

int64_t load_as_int64(DType type, const void* data, int64_t i) {
  switch (type) {
    case DType::I32:
      return load<int32_t>(data, i);
    case DType::I64:
      return load<int64_t>(data, i);
    case DType::U32:
      return load<uint32_t>(data, i);
    case DType::Bool:
      return load<uint8_t>(data, i) != 0;
    default:
      return float_to_int<int64_t>(load_as_double(type, data, i));
  }
}

void store_from_int64(DType type, void* data, int64_t i, int64_t value) {
  switch (type) {
    case DType::F64:
      return store(data, i, static_cast<double>(value));
    case DType::F32:
      return store(data, i, static_cast<float>(value));
    case DType::BF16:
      return store(data, i, f64_to_bf16(int64_to_odd_double(value)));
    case DType::F16:
      return store(data, i, f64_to_f16(int64_to_odd_double(value)));
    case DType::I32:
      return store(data, i, static_cast<int32_t>(value));
    case DType::I64:
      return store(data, i, value);
    case DType::U32:
      return store(data, i, static_cast<uint32_t>(value));
    case DType::Bool:
      return store(data, i, static_cast<uint8_t>(value != 0));
  }
}

uint64_t load_bits(DType type, const void* data, int64_t i) {
  switch (size_of(type)) {
    case 1:
      return load<uint8_t>(data, i);
    case 2:
      return load<uint16_t>(data, i);
    case 4:
      return load<uint32_t>(data, i);
    default:
      return load<uint64_t>(data, i);
  }
}

void store_bits(DType type, void* data, int64_t i, uint64_t bits) {
  switch (size_of(type)) {
    case 1:
      return store(data, i, static_cast<uint8_t>(bits));
    case 2:
      return store(data, i, static_cast<uint16_t>(bits));
    case 4:
      return store(data, i, static_cast<uint32_t>(bits));
    default:
      return store(data, i, bits);
  }
}

void convert_element(DType from, const void* source, int64_t i, DType to, void* target, int64_t j) {
  // Integers go through int64, which holds them all; floats through double, which is exact for
  // every float type, so that either way the store rounds once.
  if (is_float(from))
    store_from_double(to, target, j, load_as_double(from, source, i));
  else
    store_from_int64(to, target, j, load_as_int64(from, source, i));
}

void convert_elements(DType from, const void* source, DType to, void* target, int64_t count) {
  if (count == 0) return;
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(count * size_of(from)));
  } else if (from == DType::BF16 && to == DType::F32) {
    for (int64_t i = 0; i < count; ++i) store(target, i, bf16_to_f32(load<uint16_t>(source, i)));
  } else if (from == DType::F32 && to == DType::BF16) {
    for (int64_t i = 0; i < count; ++i) store(target, i, f32_to_bf16(load<float>(source, i)));
  } else if (from == DType::F16 && to == DType::F32) {
    for (int64_t i = 0; i < count; ++i) store(target, i, f16_to_f32(load<uint16_t>(source, i)));
  } else if (from == DType::F32 && to == DType::F16) {
    for (int64_t i = 0; i < count; ++i) store(target, i, f32_to_f16(load<float>(source, i)));
  } else {
    for (int64_t i = 0; i < count; ++i) convert_element(from, source, i, to, target, i);
  }
}

std::string format_f64(double value) {
  return format(value);
}
std::string format_f32(float value) {
  return format(value);
}
std::optional<double> parse_f64(std::string_view text) {
  return parse<double>(text);
}
std::optional<float> parse_f32(std::string_view text) {
  return parse<float>(text);
}

}  // namespace sinter
