#pragma once
// A dense, row-major tensor in host memory.
//
// Copies share the bytes (clone() does not); the bytes are aligned to 64 and never resized. Typed
// access is checked: reading bf16 through float, or binding i64 tokens to i32, is refused with an
// Error that names both sides. Thread safety is that of the bytes.

#include <sinter/ir/numeric.h>
#include <sinter/ir/type.h>

#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace sinter {

class Tensor {
 public:
  // f32[0].
  Tensor();
  // Zero-filled; refuses negative extents and sizes beyond 64 bits.
  explicit Tensor(TensorType type);
  // Elements not written; for results that are written whole.
  static Tensor uninitialized(TensorType type);

  // The dtype is that of T; refuses a count that is not the shape's.
  template <typename T>
  static Tensor from(Shape shape, std::span<const T> values);
  template <typename T>
  static Tensor from(Shape shape, const std::vector<T>& values);
  template <typename T>
  static Tensor from(Shape shape, std::initializer_list<T> values);
  template <typename T>
  static Tensor scalar(T value);
  // Each value converted to type.dtype, rounded once.
  static Tensor from_doubles(TensorType type, std::span<const double> values);
  static Tensor from_doubles(TensorType type, std::initializer_list<double> values);
  // Every element `value`, converted.
  static Tensor full(TensorType type, double value);
  // type.bytes() bytes copied from `bytes`.
  static Tensor from_bytes(TensorType type, const void* bytes);

  const TensorType& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const Shape& shape() const { return type_.shape; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * size_of(type_.dtype); }

  void* data() { return bytes_.get(); }
  const void* data() const { return bytes_.get(); }
  // The elements; refuses a T that does not store this dtype.
  template <typename T>
  T* as();
  template <typename T>
  const T* as() const;
  template <typename T>
  std::vector<T> to_vector() const;
  // The elements of any dtype, converted; exact except for i64 beyond 2^53.
  std::vector<double> to_doubles() const;
  // Element i in row-major order, converted.
  double at(int64_t i) const { return load_as_double(type_.dtype, data(), i); }

  Tensor clone() const;
  // Converted to another dtype, rounded once.
  Tensor to(DType dtype) const;
  // Same type and same bits; NaN equals an identical NaN.
  bool same_bits(const Tensor& other) const;

 private:
  struct Raw {};
  Tensor(TensorType type, Raw);
  void require_dtype(DType requested) const;

  TensorType type_;
  int64_t size_ = 0;
  std::shared_ptr<unsigned char[]> bytes_;
};

// Refuses `given` where `expected` is bound: "input 'x' expects f32[2,3], given f64[2,3]". `what`
// says what is bound ("input 'x'").
void require_type(std::string_view what, const TensorType& expected, const TensorType& given);

// The fill rule: element i is (((37 i i + (53 + 2 s) i + 101 s) mod 97) - 48) / 32, exact in every
// float type. Refuses integer types.
Tensor fill(const TensorType& type, int64_t s);
// The fill rule's mod-97 value modulo `modulus`, for integers and anything that holds them.
Tensor fill_mod(const TensorType& type, int64_t s, int64_t modulus);

namespace detail {
void check_count(const Shape& shape, size_t given);
}

template <typename T>
Tensor Tensor::from(Shape shape, std::span<const T> values) {
  detail::check_count(shape, values.size());
  return from_bytes({dtype_of<T>, std::move(shape)}, values.data());
}

template <typename T>
Tensor Tensor::from(Shape shape, const std::vector<T>& values) {
  if constexpr (std::is_same_v<T, bool>) {  // packed: no span of it exists
    detail::check_count(shape, values.size());
    Tensor result = uninitialized({DType::Bool, std::move(shape)});
    for (size_t i = 0; i < values.size(); ++i) result.as<bool>()[i] = values[i];
    return result;
  } else {
    return from(std::move(shape), std::span<const T>(values));
  }
}

template <typename T>
Tensor Tensor::from(Shape shape, std::initializer_list<T> values) {
  return from(std::move(shape), std::span<const T>(values.begin(), values.size()));
}

template <typename T>
Tensor Tensor::scalar(T value) {
  return from(Shape{}, std::span<const T>(&value, 1));
}

template <typename T>
T* Tensor::as() {
  require_dtype(dtype_of<T>);
  return static_cast<T*>(data());
}

template <typename T>
const T* Tensor::as() const {
  require_dtype(dtype_of<T>);
  return static_cast<const T*>(data());
}

template <typename T>
std::vector<T> Tensor::to_vector() const {
  const T* first = as<T>();
  return std::vector<T>(first, first + size_);
}

}  // namespace sinter
