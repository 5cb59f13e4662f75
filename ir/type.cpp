#include <sinter/ir/type.h>

#include <fmt/ranges.h>
#include <sinter/ir/diagnostic.h>

#include <array>
#include <charconv>

namespace sinter {
namespace {

struct DTypeInfo {
  DType type;
  std::string_view name;
  int64_t bytes;
  bool floating, integer;
};

constexpr std::array kDTypes{
    DTypeInfo{DType::F64, "f64", 8, true, false},   DTypeInfo{DType::F32, "f32", 4, true, false},
    DTypeInfo{DType::BF16, "bf16", 2, true, false}, DTypeInfo{DType::F16, "f16", 2, true, false},
    DTypeInfo{DType::I32, "i32", 4, false, true},   DTypeInfo{DType::I64, "i64", 8, false, true},
    DTypeInfo{DType::U32, "u32", 4, false, true},   DTypeInfo{DType::Bool, "bool", 1, false, false},
};

constexpr const DTypeInfo& info(DType type) {
  return kDTypes[static_cast<size_t>(type)];
}

constexpr bool table_in_order() {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (static_cast<size_t>(kDTypes[i].type) != i) return false;
  return true;
}
static_assert(table_in_order());

}  // namespace

std::string_view to_string(DType type) {
  return info(type).name;
}
int64_t size_of(DType type) {
  return info(type).bytes;
}
bool is_float(DType type) {
  return info(type).floating;
}
bool is_integer(DType type) {
  return info(type).integer;
}

DType compute_type(DType type) {
  return type == DType::BF16 || type == DType::F16 ? DType::F32 : type;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeInfo& i : kDTypes)
    if (i.name == text) return i.type;
  return std::nullopt;
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

std::string TensorType::str() const {
  return fmt::format("{}{}", to_string(dtype), to_string(shape));
}

std::optional<TensorType> parse_tensor_type(std::string_view text) {
  size_t open = text.find('[');
  if (open == std::string_view::npos || text.back() != ']') return std::nullopt;
  auto dtype = parse_dtype(text.substr(0, open));
  if (!dtype) return std::nullopt;
  TensorType type{*dtype, {}};
  std::string_view body = text.substr(open + 1, text.size() - open - 2);
  while (!body.empty()) {
    size_t comma = body.find(',');
    std::string_view item = body.substr(0, comma);
    int64_t extent = 0;
    auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), extent);
    if (error != std::errc() || end != item.data() + item.size() || extent < 0) return std::nullopt;
    type.shape.push_back(extent);
    if (comma == std::string_view::npos) break;
    body.remove_prefix(comma + 1);
    if (body.empty()) return std::nullopt;
  }
  return type;
}

}  // namespace sinter
