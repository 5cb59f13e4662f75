#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>

namespace sinter::detail {

std::optional<Diagnostic> require_float(const InferContext& c, size_t operand) {
  if (is_float(c.type(operand).dtype)) return std::nullopt;
  return c.error("{} must be a float tensor", c.describe(operand));
}

std::optional<Diagnostic> require_index(const InferContext& c, size_t operand) {
  DType t = c.type(operand).dtype;
  if (t == DType::I32 || t == DType::I64) return std::nullopt;
  return c.error("{} must be i32 or i64", c.describe(operand));
}

std::optional<Diagnostic> require_same(const InferContext& c, size_t a, size_t b) {
  if (c.type(a) == c.type(b)) return std::nullopt;
  return c.error("{} must have the type of {}", c.describe(b), c.describe(a));
}

Value widen(Value v) {
  return cast(v, compute_type(v.dtype()));
}

bool is_narrow(Value v) {
  return compute_type(v.dtype()) != v.dtype();
}

int64_t count_over(const Shape& shape, const std::vector<int64_t>& axes) {
  int64_t count = 1;
  for (int64_t axis : axes) count *= shape[static_cast<size_t>(axis)];
  return count;
}

Value sum_rows(Value v) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i + 1 < v.rank(); ++i) axes.push_back(i);
  return axes.empty() ? v : sum(v, axes);
}

Sample sample_of(std::vector<TensorType> operands, AttrMap attrs) {
  Sample s;
  s.operands = std::move(operands);
  s.attrs = std::move(attrs);
  return s;
}

}  // namespace sinter::detail
