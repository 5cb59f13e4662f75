#include <sinter/ir/numeric.h>
#include <sinter/ir/ops/detail/build.h>

#include <algorithm>

namespace sinter::detail {

Graph& graph_of(std::string_view op, std::string_view operand, Value v, const SourceLocation& loc) {
  if (!v) throw Error(Diagnostic{loc, fmt::format("{}: operand {} is not set", op, operand)});
  return v.graph();
}

Value build_unary(std::string_view op, Value x, SourceLocation loc) {
  Graph& graph = graph_of(op, "x", x, loc);
  return build_op(graph, op, {x}, NoAttrs{}, std::move(loc)).result();
}

ScalarFn cast_fn(DType from, DType to) {
  ScalarBuilder b;
  Expr x = b.param(from);
  Expr y = b.cast(x, to);
  return b.finish({&y, 1});
}

BodyNode cast_node(BodyBuilder& b, BodyNode x, DType from, DType to) {
  if (from == to) return x;
  return b.scalar(cast_fn(from, to), {&x, 1});
}

BodyNode select_node(BodyBuilder& b, BodyNode c, BodyNode a, BodyNode otherwise, DType type) {
  ScalarBuilder s;
  Expr condition = s.param(DType::Bool);
  Expr first = s.param(type), second = s.param(type);
  Expr y = select(condition, first, second);
  BodyNode args[] = {c, a, otherwise};
  return b.scalar(s.finish({&y, 1}), args);
}

namespace {
TensorType parsed(std::string_view text) {
  std::optional<TensorType> type = parse_tensor_type(text);
  SINTER_CHECK(type.has_value(), "\"{}\" is not a type", text);
  return *type;
}
}  // namespace

Sample sample(std::initializer_list<std::string_view> operands, AttrMap attrs,
              std::string_view result) {
  Sample s;
  for (std::string_view text : operands) s.operands.push_back(parsed(text));
  s.attrs = std::move(attrs);
  if (!result.empty()) s.result = parsed(result);
  return s;
}

Cell number_cell(const Number& number, DType type) {
  Cell cell{};
  if (is_float(type)) {
    cell.f = number.as_double();
    return cell;
  }
  const int64_t* whole = std::get_if<int64_t>(&number.value);
  cell.i = whole ? *whole : float_to_int<int64_t>(number.as_double());
  if (type == DType::Bool)
    cell.i = cell.i != 0;
  else if (type == DType::I32)
    cell.i = std::clamp<int64_t>(cell.i, INT32_MIN, INT32_MAX);
  else if (type == DType::U32)
    cell.i = std::clamp<int64_t>(cell.i, 0, UINT32_MAX);
  return cell;
}

bool fits(const Number& number, DType type) {
  if (is_float(type)) return true;
  Cell cell = number_cell(number, type);
  if (const int64_t* whole = std::get_if<int64_t>(&number.value)) return cell.i == *whole;
  // 2^63 itself saturates to a neighbour that rounds back to it.
  double d = number.as_double();
  return d < 0x1p63 && static_cast<double>(cell.i) == d;
}

}  // namespace sinter::detail
