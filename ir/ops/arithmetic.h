#pragma once
// Pointwise arithmetic, comparison, logic and conversion.
//
// Operands are broadcast to a common shape; a C++ number takes the other operand's dtype.

#include <sinter/ir/ops/operand.h>

#include <limits>

namespace sinter {

struct ClampAttrs {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  static constexpr auto fields() {
    return std::tuple{field("min", &ClampAttrs::min, "the smallest result"),
                      field("max", &ClampAttrs::max, "the largest result")};
  }
};
struct CastAttrs {
  ResultType type;
  static constexpr auto fields() { return std::tuple{field("type", &CastAttrs::type)}; }
};

Value add(Operand a, Operand b);      // a + b
Value sub(Operand a, Operand b);      // a - b
Value mul(Operand a, Operand b);      // a * b
Value div(Operand a, Operand b);      // a / b, floats
Value maximum(Operand a, Operand b);  // the larger one; NaN survives, ties share the gradient
Value minimum(Operand a, Operand b);  // the smaller one; NaN survives, ties share the gradient
Value pow(Operand a, Operand b);      // a to the power b, floats
Value neg(Value x, SourceLocation loc = SourceLocation::here());     // -x
Value abs(Value x, SourceLocation loc = SourceLocation::here());     // |x|, slope 0 at 0
Value square(Value x, SourceLocation loc = SourceLocation::here());  // x * x
Value sqrt(Value x, SourceLocation loc = SourceLocation::here());    // the square root
Value rsqrt(Value x, SourceLocation loc = SourceLocation::here());   // 1 / sqrt(x)
Value exp(Value x, SourceLocation loc = SourceLocation::here());     // e to the power x
Value expm1(Value x, SourceLocation loc = SourceLocation::here());   // exp(x) - 1
Value log(Value x, SourceLocation loc = SourceLocation::here());     // the natural logarithm
Value sin(Value x, SourceLocation loc = SourceLocation::here());     // the sine
Value cos(Value x, SourceLocation loc = SourceLocation::here());     // the cosine
Value tanh(Value x, SourceLocation loc = SourceLocation::here());    // the hyperbolic tangent
Value floor(Value x, SourceLocation loc = SourceLocation::here());   // rounded down, slope 0

Value eq(Operand a, Operand b);  // a == b as bool
Value ne(Operand a, Operand b);  // a != b as bool; true for NaN
Value lt(Operand a, Operand b);  // a < b as bool
Value le(Operand a, Operand b);  // a <= b as bool
Value gt(Operand a, Operand b);  // a > b as bool
Value ge(Operand a, Operand b);  // a >= b as bool
Value logical_and(Operand a, Operand b);
Value logical_or(Operand a, Operand b);
Value logical_not(Value x, SourceLocation loc = SourceLocation::here());

// a where c (bool) holds, else b; the side not chosen gets a gradient of exactly zero.
Value where(Operand c, Operand a, Operand b);
// min(max(x, min), max); NaN survives.
Value clamp(Value x, double min, double max, SourceLocation loc = SourceLocation::here());
// dy == 0 ? 0 : dy * p: how derivatives multiply, so that an infinite slope times zero is zero.
Value grad_mul(Operand dy, Operand p);
// a == 0 or b == 0 ? 0 : a * b: how they multiply once more, where either factor may be masked.
Value zero_mul(Operand a, Operand b);
// The sum of one or more values of one type, left to right in the compute type, rounded once.
Value add_n(std::vector<Value> terms, SourceLocation loc = SourceLocation::here());
// The value in another dtype; x itself when it has that dtype already.
Value cast(Value x, DType dtype, SourceLocation loc = SourceLocation::here());
// x, through which no gradient flows.
Value stop_gradient(Value x, SourceLocation loc = SourceLocation::here());

inline Value operator+(Operand a, Operand b) {
  return add(a, b);
}
inline Value operator-(Operand a, Operand b) {
  return sub(a, b);
}
inline Value operator*(Operand a, Operand b) {
  return mul(a, b);
}
inline Value operator/(Operand a, Operand b) {
  return div(a, b);
}
inline Value operator-(Operand x) {
  return neg(x.value, x.loc());
}

}  // namespace sinter
