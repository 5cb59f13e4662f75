#include <sinter/runtime/tensor.h>

#include <sinter/ir/diagnostic.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace sinter {
namespace {

constexpr size_t kAlignment = 64;

// Elements of a shape that a caller made up: refuses what num_elements takes for granted.
int64_t checked_elements(const TensorType& type) {
  int64_t count = 1;
  bool overflow = false;
  for (int64_t extent : type.shape) {
    if (extent < 0) throw Error(fmt::format("tensor type {} has a negative extent", type.str()));
    overflow |= __builtin_mul_overflow(count, extent, &count);
  }
  int64_t bytes = 0;
  overflow |= __builtin_mul_overflow(count, size_of(type.dtype), &bytes);
  // An extent 0 makes the product 0, whatever overflowed before it.
  for (int64_t extent : type.shape)
    if (extent == 0) return 0;
  if (overflow) throw Error(fmt::format("tensor type {} is too large", type.str()));
  return count;
}

std::shared_ptr<unsigned char[]> allocate(int64_t bytes) {
  size_t rounded =
      (std::max<size_t>(static_cast<size_t>(bytes), 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (!memory) throw std::bad_alloc();
  return {static_cast<unsigned char*>(memory), [](unsigned char* p) { std::free(p); }};
}

// The fill rule's value before it is scaled, in 0…96. Reducing i and s first changes nothing, and
// keeps large indices from overflowing.
int64_t fill_value(int64_t i, int64_t s) {
  const int64_t j = i % 97;
  const int64_t t = (s % 97 + 97) % 97;
  return (37 * j * j + (53 + 2 * t) * j + 101 * t) % 97;
}

}  // namespace

Tensor::Tensor() : Tensor(TensorType{DType::F32, {0}}) {}

Tensor::Tensor(TensorType type) : Tensor(std::move(type), Raw{}) {
  std::memset(data(), 0, static_cast<size_t>(bytes()));
}

Tensor::Tensor(TensorType type, Raw)
    : type_(std::move(type)), size_(checked_elements(type_)), bytes_(allocate(bytes())) {}

Tensor Tensor::uninitialized(TensorType type) {
  return Tensor(std::move(type), Raw{});
}

Tensor Tensor::from_doubles(TensorType type, std::span<const double> values) {
  detail::check_count(type.shape, values.size());
  Tensor result = uninitialized(std::move(type));
  for (int64_t i = 0; i < result.size(); ++i)
    store_from_double(result.dtype(), result.data(), i, values[static_cast<size_t>(i)]);
  return result;
}

Tensor Tensor::from_doubles(TensorType type, std::initializer_list<double> values) {
  return from_doubles(std::move(type), std::span<const double>(values.begin(), values.size()));
}

Tensor Tensor::full(TensorType type, double value) {
  Tensor result = uninitialized(std::move(type));
  for (int64_t i = 0; i < result.size(); ++i)
    store_from_double(result.dtype(), result.data(), i, value);
  return result;
}

Tensor Tensor::from_bytes(TensorType type, const void* bytes) {
  Tensor result = uninitialized(std::move(type));
  if (result.bytes() > 0) std::memcpy(result.data(), bytes, static_cast<size_t>(result.bytes()));
  return result;
}

std::vector<double> Tensor::to_doubles() const {
  std::vector<double> values(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) values[static_cast<size_t>(i)] = at(i);
  return values;
}

Tensor Tensor::clone() const {
  return from_bytes(type_, data());
}

Tensor Tensor::to(DType dtype) const {
  Tensor result = uninitialized({dtype, shape()});
  convert_elements(type_.dtype, data(), dtype, result.data(), size_);
  return result;
}

bool Tensor::same_bits(const Tensor& other) const {
  return type_ == other.type_ &&
         std::memcmp(data(), other.data(), static_cast<size_t>(bytes())) == 0;
}

void Tensor::require_dtype(DType requested) const {
  if (requested != type_.dtype)
    throw Error(fmt::format("tensor of type {} accessed as {}", type_.str(), to_string(requested)));
}

void require_type(std::string_view what, const TensorType& expected, const TensorType& given) {
  if (expected != given)
    throw Error(fmt::format("{} expects {}, given {}", what, expected.str(), given.str()));
}

Tensor fill(const TensorType& type, int64_t s) {
  if (!is_float(type.dtype))
    throw Error(fmt::format("fill:S makes fractions and cannot fill {}; use fill:S:M", type.str()));
  Tensor result = Tensor::uninitialized(type);
  for (int64_t i = 0; i < result.size(); ++i)
    store_from_double(type.dtype, result.data(), i,
                      static_cast<double>(fill_value(i, s) - 48) / 32);
  return result;
}

Tensor fill_mod(const TensorType& type, int64_t s, int64_t modulus) {
  if (modulus <= 0) throw Error(fmt::format("fill modulus must be positive, given {}", modulus));
  Tensor result = Tensor::uninitialized(type);
  for (int64_t i = 0; i < result.size(); ++i)
    store_from_int64(type.dtype, result.data(), i, fill_value(i, s) % modulus);
  return result;
}

namespace detail {
void check_count(const Shape& shape, size_t given) {
  const int64_t expected = checked_elements({DType::Bool, shape});
  if (static_cast<uint64_t>(expected) != given)
    throw Error(
        fmt::format("shape {} has {} elements, given {}", to_string(shape), expected, given));
}
}  // namespace detail

}  // namespace sinter
