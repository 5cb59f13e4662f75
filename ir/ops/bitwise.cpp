#include <sinter/ir/ops/bitwise.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/pointwise.h>

namespace sinter {

namespace {

Expr call(Fn fn, PointwiseArgs x) {
  return x[0].builder()->call(fn, x);
}

}  // namespace

void register_bitwise(OpRegistry& r) {
  auto add = [&r](std::string_view name, std::string_view doc,
                  std::vector<std::string_view> operands, Fn fn) {
    r.add(pointwise(name, doc, std::move(operands), Domain::Integer,
                    [fn](PointwiseArgs x) { return call(fn, x); })
              .not_differentiable("integers have no derivative")
              .build());
  };
  r.add(pointwise("logical_xor", "whether a and b, bools, differ", {"a", "b"}, Domain::Bool,
                  [](PointwiseArgs x) { return x[0] != x[1]; })
            .gives_bool()
            .not_differentiable("a comparison or logical op gives bool")
            .build());
  add("bitwise_and", "the bits set in both a and b, integers", {"a", "b"}, Fn::BitAnd);
  add("bitwise_or", "the bits set in a or b, integers", {"a", "b"}, Fn::BitOr);
  add("bitwise_xor", "the bits that differ between a and b, integers", {"a", "b"}, Fn::BitXor);
  add("bitwise_not", "the bits not set in x, an integer", {"x"}, Fn::BitNot);
  add("shift_left", "a * 2^b of integers; 0 where b is negative or not below the width", {"a", "b"},
      Fn::Shl);
  add("shift_right",
      "floor(a / 2^b) of integers; the sign alone where b is negative or not below the width",
      {"a", "b"}, Fn::Shr);
}

Value logical_xor(Operand a, Operand b) {
  return build_pointwise("logical_xor", {a, b});
}
Value bitwise_and(Operand a, Operand b) {
  return build_pointwise("bitwise_and", {a, b});
}
Value bitwise_or(Operand a, Operand b) {
  return build_pointwise("bitwise_or", {a, b});
}
Value bitwise_xor(Operand a, Operand b) {
  return build_pointwise("bitwise_xor", {a, b});
}
Value bitwise_not(Value x, SourceLocation loc) {
  return detail::build_unary("bitwise_not", x, std::move(loc));
}
Value shift_left(Operand a, Operand b) {
  return build_pointwise("shift_left", {a, b});
}
Value shift_right(Operand a, Operand b) {
  return build_pointwise("shift_right", {a, b});
}

}  // namespace sinter
