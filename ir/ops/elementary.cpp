#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/elementary.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/pointwise.h>

#include <limits>

namespace sinter {

using detail::build_unary;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLn2 = 0.69314718055994530942;

Expr one(Expr like) {
  return like.builder()->literal(like.type(), 1.0);
}

// 1 / (1 + exp(-x)), without overflow.
Expr logistic(Expr x) {
  Expr e = exp(select(x >= 0.0, -x, x));
  return select(x >= 0.0, one(x), e) / (1.0 + e);
}

// The slope of logaddexp by `mine`: 0 where both are -inf, as for logsumexp; shared where both are
// the same infinity.
Expr logaddexp_slope(Expr mine, Expr other) {
  Expr alike = mine == other && abs(mine) == kInf;
  return select(alike, select(mine > 0.0, 0.5 * one(mine), 0.0), logistic(mine - other));
}

// Slope zero everywhere.
Expr flat(PointwiseArgs, Expr, const void*) {
  return {};
}

void register_transcendental(OpRegistry& r) {
  auto add = [&r](std::string_view name, std::string_view doc, auto f, double flops, double low,
                  double high, double gap = 0, bool bounded = false) {
    PointwiseBuilder b =
        pointwise(name, doc, {"x"}, Domain::Float, [f](PointwiseArgs x) { return f(x[0]); });
    b.flops(flops).sample_range(low, high, gap);
    if (bounded) b.bounded(0);
    r.add(b.build());
  };
  constexpr bool kBounded = true;
  add(
      "exp2", "2 to the power x", [](Expr x) { return exp2(x); }, 4, -2, 2);
  add(
      "log2", "the logarithm to base 2; NaN below 0, -inf at 0", [](Expr x) { return log2(x); }, 4,
      0.1, 3);
  add(
      "log1p", "log(1 + x) without cancellation near 0; NaN below -1, -inf there",
      [](Expr x) { return log1p(x); }, 6, -0.7, 3);
  add(
      "cbrt", "the cube root, of either sign", [](Expr x) { return cbrt(x); }, 8, -2, 2, 0.3);
  add(
      "tan", "the tangent of x in radians", [](Expr x) { return tan(x); }, 10, -1.2, 1.2);
  add(
      "sinh", "the hyperbolic sine", [](Expr x) { return sinh(x); }, 8, -2, 2);
  add(
      "cosh", "the hyperbolic cosine", [](Expr x) { return cosh(x); }, 8, -2, 2);
  add(
      "asin", "the arcsine in [-pi/2, pi/2]; NaN outside [-1, 1]", [](Expr x) { return asin(x); },
      12, -0.9, 0.9);
  add(
      "acos", "the arccosine in [0, pi]; NaN outside [-1, 1]", [](Expr x) { return acos(x); }, 12,
      -0.9, 0.9);
  add(
      "atan", "the arctangent in [-pi/2, pi/2]", [](Expr x) { return atan(x); }, 10, -2, 2, 0,
      kBounded);
  add(
      "erf", "the error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x",
      [](Expr x) { return erf(x); }, 14, -2, 2, 0, kBounded);
  add(
      "erfc", "1 - erf(x) with all digits in the tail", [](Expr x) { return erfc(x); }, 16, -2, 2,
      0, kBounded);
  add(
      "erfc_inv", "y with erfc(y) = x; inf at 0, -inf at 2, NaN outside [0, 2]",
      [](Expr x) { return erfc_inv(x); }, 30, 0.2, 1.8);
  add(
      "norm_cdf",
      "the normal distribution's share below x, erfc(-x / sqrt(2)) / 2, with all digits in the "
      "tail",
      [](Expr x) { return norm_cdf(x); }, 18, -2, 2, 0, kBounded);
  r.add(pointwise("reciprocal", "1 / x", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return 1.0 / x[0]; })
            .partial(0, [](PointwiseArgs, Expr y, const void*) { return -(y * y); })
            .sample_range(-2, 2, 0.3)
            .build());
}

void register_rounding(OpRegistry& r) {
  r.add(pointwise("ceil", "the smallest whole number not below x; slope 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return ceil(x[0]); })
            .sample_range(0.1, 0.9)
            .build());
  r.add(pointwise("round", "the nearest whole number, of two the even one; slope 0", {"x"},
                  Domain::Float, [](PointwiseArgs x) { return round(x[0]); })
            .sample_range(0.6, 1.4)
            .build());
  r.add(pointwise("trunc", "x without its fraction, towards 0; slope 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return trunc(x[0]); })
            .sample_range(0.1, 0.9)
            .build());
  r.add(pointwise("sign", "1 above 0, -1 below, else x itself (0, -0, NaN); slope 0", {"x"},
                  Domain::Numeric,
                  [](PointwiseArgs x) {
                    return select(x[0] > 0, one(x[0]), select(x[0] < 0, -one(x[0]), x[0]));
                  })
            .partial(0, &flat)
            .sample_range(-2, 2, 0.05)
            .build());
}

void register_of_several(OpRegistry& r) {
  r.add(
      pointwise("atan2",
                "the angle of the point (x, y) in [-pi, pi], as C's atan2; gradients are 0 at the "
                "origin",
                {"y", "x"}, Domain::Float,
                [](PointwiseArgs x) {
                  Expr args[] = {x[0], x[1]};
                  return x[0].builder()->call(Fn::Atan2, args);
                })
          .flops(14)
          .sample_range(-2, 2, 0.3)
          .build());
  r.add(pointwise("hypot",
                  "sqrt(a*a + b*b) without overflow or underflow; gradients are 0 at the origin",
                  {"a", "b"}, Domain::Float, [](PointwiseArgs x) { return hypot(x[0], x[1]); })
            .bounded(0)
            .bounded(1)
            .flops(5)
            .sample_range(-2, 2, 0.3)
            .build());
  r.add(pointwise("remainder",
                  "a - b floor(a / b), of the sign of b, as Python's %; integers by 0 give 0, "
                  "floats NaN",
                  {"a", "b"}, Domain::Numeric, [](PointwiseArgs x) { return rem(x[0], x[1]); })
            .flops(4)
            .sample_range(1.1, 1.9, 0.02)
            .build());
  r.add(
      pointwise("logaddexp",
                "log(exp(a) + exp(b)) without overflow; -inf with gradients 0 where both are -inf",
                {"a", "b"}, Domain::Float,
                [](PointwiseArgs x) {
                  Expr far = exp(-abs(x[0] - x[1]));
                  return select(x[0] == x[1], x[0] + kLn2, max(x[0], x[1]) + log1p(far));
                })
          .partial(0,
                   [](PointwiseArgs x, Expr, const void*) { return logaddexp_slope(x[0], x[1]); })
          .partial(1,
                   [](PointwiseArgs x, Expr, const void*) { return logaddexp_slope(x[1], x[0]); })
          .bounded(0)
          .bounded(1)
          .flops(12)
          .build());
  r.add(pointwise("lerp", "a + t (b - a), from the nearer end: a at t = 0, b at t = 1",
                  {"a", "b", "t"}, Domain::Float,
                  [](PointwiseArgs x) {
                    Expr a = x[0], b = x[1], t = x[2];
                    return select(t < 0.5, a + t * (b - a), b - (1.0 - t) * (b - a));
                  })
            .partial(0, [](PointwiseArgs x, Expr, const void*) { return 1.0 - x[2]; })
            .partial(1, [](PointwiseArgs x, Expr, const void*) { return x[2]; })
            .partial(2, [](PointwiseArgs x, Expr, const void*) { return x[1] - x[0]; })
            .bounded(0)
            .bounded(1)
            .flops(4)
            .build());
  r.add(pointwise("fma", "a * b + c, rounded once", {"a", "b", "c"}, Domain::Float,
                  [](PointwiseArgs x) { return fma(x[0], x[1], x[2]); })
            .bounded(0)
            .bounded(1)
            .flops(2)
            .build());
}

void register_tests(OpRegistry& r) {
  auto test = [&r](std::string_view name, std::string_view doc, auto f) {
    r.add(pointwise(name, doc, {"x"}, Domain::Float, [f](PointwiseArgs x) { return f(x[0]); })
              .gives_bool()
              .not_differentiable("a test of floats gives bool")
              .build());
  };
  test("isfinite", "whether x is neither infinite nor NaN, as bool",
       [](Expr x) { return abs(x) < kInf; });
  test("isnan", "whether x is NaN, as bool", [](Expr x) { return x != x; });
  test("isinf", "whether x is inf or -inf, as bool", [](Expr x) { return abs(x) == kInf; });
}

}  // namespace

void register_elementary(OpRegistry& r) {
  register_transcendental(r);
  register_rounding(r);
  register_of_several(r);
  register_tests(r);
}

// ---- Functions

Value exp2(Value x, SourceLocation loc) {
  return build_unary("exp2", x, std::move(loc));
}
Value log2(Value x, SourceLocation loc) {
  return build_unary("log2", x, std::move(loc));
}
Value log1p(Value x, SourceLocation loc) {
  return build_unary("log1p", x, std::move(loc));
}
Value reciprocal(Value x, SourceLocation loc) {
  return build_unary("reciprocal", x, std::move(loc));
}
Value cbrt(Value x, SourceLocation loc) {
  return build_unary("cbrt", x, std::move(loc));
}
Value tan(Value x, SourceLocation loc) {
  return build_unary("tan", x, std::move(loc));
}
Value sinh(Value x, SourceLocation loc) {
  return build_unary("sinh", x, std::move(loc));
}
Value cosh(Value x, SourceLocation loc) {
  return build_unary("cosh", x, std::move(loc));
}
Value asin(Value x, SourceLocation loc) {
  return build_unary("asin", x, std::move(loc));
}
Value acos(Value x, SourceLocation loc) {
  return build_unary("acos", x, std::move(loc));
}
Value atan(Value x, SourceLocation loc) {
  return build_unary("atan", x, std::move(loc));
}
Value erf(Value x, SourceLocation loc) {
  return build_unary("erf", x, std::move(loc));
}
Value erfc(Value x, SourceLocation loc) {
  return build_unary("erfc", x, std::move(loc));
}
Value erfc_inv(Value x, SourceLocation loc) {
  return build_unary("erfc_inv", x, std::move(loc));
}
Value norm_cdf(Value x, SourceLocation loc) {
  return build_unary("norm_cdf", x, std::move(loc));
}
Value ceil(Value x, SourceLocation loc) {
  return build_unary("ceil", x, std::move(loc));
}
Value round(Value x, SourceLocation loc) {
  return build_unary("round", x, std::move(loc));
}
Value trunc(Value x, SourceLocation loc) {
  return build_unary("trunc", x, std::move(loc));
}
Value sign(Value x, SourceLocation loc) {
  return build_unary("sign", x, std::move(loc));
}
Value isfinite(Value x, SourceLocation loc) {
  return build_unary("isfinite", x, std::move(loc));
}
Value isnan(Value x, SourceLocation loc) {
  return build_unary("isnan", x, std::move(loc));
}
Value isinf(Value x, SourceLocation loc) {
  return build_unary("isinf", x, std::move(loc));
}
Value atan2(Operand y, Operand x) {
  return build_pointwise("atan2", {y, x});
}
Value hypot(Operand a, Operand b) {
  return build_pointwise("hypot", {a, b});
}
Value remainder(Operand a, Operand b) {
  return build_pointwise("remainder", {a, b});
}
Value logaddexp(Operand a, Operand b) {
  return build_pointwise("logaddexp", {a, b});
}
Value lerp(Operand a, Operand b, Operand t) {
  return build_pointwise("lerp", {a, b, t});
}
Value fma(Operand a, Operand b, Operand c) {
  return build_pointwise("fma", {a, b, c});
}

}  // namespace sinter
