#pragma once
// Element types, shapes and tensor types. Shapes are static and row-major; a scalar has rank 0;
// an axis may have extent 0.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

enum class DType : uint8_t { F64, F32, BF16, F16, I32, I64, U32, Bool };

// "f32", "bf16", "bool", …
std::string_view to_string(DType type);
std::optional<DType> parse_dtype(std::string_view text);
// Bytes of one stored element; bool takes 1.
int64_t size_of(DType type);
bool is_float(DType type);
// i32, i64, u32.
bool is_integer(DType type);
// The type in which one op computes: f32 for bf16 and f16, else the type itself.
DType compute_type(DType type);

using Shape = std::vector<int64_t>;

// Number of elements; 1 for rank 0.
int64_t num_elements(const Shape& shape);
// "[2,3]"; "[]" for rank 0.
std::string to_string(const Shape& shape);
// Row-major strides in elements.
Shape row_major_strides(const Shape& shape);

struct TensorType {
  DType dtype = DType::F32;
  Shape shape;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t elements() const { return num_elements(shape); }
  int64_t bytes() const { return elements() * size_of(dtype); }
  // "f32[2,3]".
  std::string str() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// "f32[2,3]" read back; nullopt when malformed.
std::optional<TensorType> parse_tensor_type(std::string_view text);

}  // namespace sinter
