#pragma once
// Pointwise elementary functions of floats beyond the arithmetic ones, and tests of floats.
//
// Operands are broadcast to a common shape; a C++ number takes the other operand's dtype. bf16 and
// f16 are computed in f32 and rounded once.

#include <sinter/ir/ops/operand.h>

namespace sinter {

Value exp2(Value x, SourceLocation loc = SourceLocation::here());        // 2 to the power x
Value log2(Value x, SourceLocation loc = SourceLocation::here());        // the logarithm to base 2
Value log1p(Value x, SourceLocation loc = SourceLocation::here());       // log(1 + x)
Value reciprocal(Value x, SourceLocation loc = SourceLocation::here());  // 1 / x
Value cbrt(Value x, SourceLocation loc = SourceLocation::here());        // the cube root
Value tan(Value x, SourceLocation loc = SourceLocation::here());         // the tangent
Value sinh(Value x, SourceLocation loc = SourceLocation::here());        // the hyperbolic sine
Value cosh(Value x, SourceLocation loc = SourceLocation::here());        // the hyperbolic cosine
Value asin(Value x, SourceLocation loc = SourceLocation::here());        // in [-pi/2, pi/2]
Value acos(Value x, SourceLocation loc = SourceLocation::here());        // in [0, pi]
Value atan(Value x, SourceLocation loc = SourceLocation::here());        // in [-pi/2, pi/2]
Value erf(Value x, SourceLocation loc = SourceLocation::here());         // the error function
Value erfc(Value x, SourceLocation loc = SourceLocation::here());  // 1 - erf(x), with all digits
Value erfc_inv(Value x, SourceLocation loc = SourceLocation::here());  // y with erfc(y) = x
// The normal distribution's share below x: erfc(-x / sqrt(2)) / 2, with all digits in the tail.
Value norm_cdf(Value x, SourceLocation loc = SourceLocation::here());

Value ceil(Value x, SourceLocation loc = SourceLocation::here());   // rounded up, slope 0
Value round(Value x, SourceLocation loc = SourceLocation::here());  // ties to even, slope 0
Value trunc(Value x, SourceLocation loc = SourceLocation::here());  // towards 0, slope 0
// 1, -1, or x itself where that is 0 or NaN; slope 0. Integers too.
Value sign(Value x, SourceLocation loc = SourceLocation::here());

Value atan2(Operand y, Operand x);  // the angle of (x, y); gradients 0 at the origin
Value hypot(Operand a, Operand b);  // sqrt(a*a + b*b) without overflow; gradients 0 at the origin
// a - b floor(a / b): the sign is that of b. Integers too; by 0 they give 0, floats NaN.
Value remainder(Operand a, Operand b);
Value logaddexp(Operand a, Operand b);        // log(exp(a) + exp(b)) without overflow
Value lerp(Operand a, Operand b, Operand t);  // a + t (b - a), exact at t = 0 and t = 1
Value fma(Operand a, Operand b, Operand c);   // a * b + c, rounded once

Value isfinite(Value x, SourceLocation loc = SourceLocation::here());  // neither NaN nor infinite
Value isnan(Value x, SourceLocation loc = SourceLocation::here());
Value isinf(Value x, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
