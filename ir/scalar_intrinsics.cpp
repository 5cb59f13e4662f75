// The table of scalar intrinsics: each row is all that sinter knows of one function.

#include <sinter/ir/diagnostic.h>
#include <sinter/ir/scalar.h>

#include <cmath>
#include <limits>

namespace sinter {
namespace {

using Args = std::span<const Expr>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kPi = 3.14159265358979323846;
constexpr double kTwoOverSqrtPi = 1.12837916709551257390;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kLn2 = 0.69314718055994530942;

// Evaluation of one definition in f64 and f32.
#define SINTER_FLOAT(expression)                                                 \
  [](double a, [[maybe_unused]] double b, [[maybe_unused]] double c) -> double { \
    using T = double;                                                            \
    return static_cast<T>(expression);                                           \
  },                                                                             \
      [](float a, [[maybe_unused]] float b, [[maybe_unused]] float c) -> float { \
        using T = float;                                                         \
        return static_cast<T>(expression);                                       \
      }
#define SINTER_INTEGER(expression)                                                   \
  [](int64_t a, [[maybe_unused]] int64_t b, [[maybe_unused]] int64_t c) -> int64_t { \
    return static_cast<int64_t>(expression);                                         \
  }
#define SINTER_PARTIAL(expression)                                                       \
  []([[maybe_unused]] int i, [[maybe_unused]] Args x, [[maybe_unused]] Expr y) -> Expr { \
    return expression;                                                                   \
  }

// Wrapping integer arithmetic without undefined behaviour.
constexpr uint64_t u(int64_t v) {
  return static_cast<uint64_t>(v);
}

// Of zeros of both signs max takes 0 and min -0, as the instructions of a GPU do.
template <typename T>
T keep_nan_max(T a, T b) {
  if (a == b) return std::signbit(a) ? b : a;
  return a != a || b != b ? a + b : (a > b ? a : b);
}
template <typename T>
T keep_nan_min(T a, T b) {
  if (a == b) return std::signbit(a) ? a : b;
  return a != a || b != b ? a + b : (a < b ? a : b);
}

Expr one(Expr like) {
  return like.builder()->literal(like.type(), 1.0);
}
Expr zero(Expr like) {
  return like.builder()->literal(like.type(), 0.0);
}

// fmod moved into the divisor's sign, as Python's %.
template <typename T>
T floored_rem(T a, T b) {
  const T r = std::fmod(a, b);
  if (r == 0) return std::copysign(r, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
int64_t floored_rem(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// Bits that a shift pushes out, or that it would take from nowhere, are lost.
int64_t shift_left(int64_t a, int64_t b) {
  return u(b) < 64 ? static_cast<int64_t>(u(a) << u(b)) : 0;
}
int64_t shift_right(int64_t a, int64_t b) {
  return a >> (u(b) < 64 ? b : 63);
}

// x with erfc(x) = q: a start near enough, then steps of Halley's method, which triple the digits.
double erfc_inverse(double q) {
  if (!(q > 0 && q < 2)) {
    if (q == 0) return std::numeric_limits<double>::infinity();
    return q == 2 ? -std::numeric_limits<double>::infinity()
                  : std::numeric_limits<double>::quiet_NaN();
  }
  if (q > 1) return -erfc_inverse(2 - q);
  const double t = -std::log(q);
  // Far out erfc(x) is exp(-x*x) / (x sqrt(pi)); near 1 it is 1 - 2x / sqrt(pi).
  double x = t > 2 ? std::sqrt(t - 0.5 * std::log(kPi * t)) : (1 - q) / kTwoOverSqrtPi;
  for (int i = 0; i < 5; ++i) {
    const double error = x < 0.5 ? (1 - q) - std::erf(x) : std::erfc(x) - q;
    const double step = error / (kTwoOverSqrtPi * std::exp(-x * x));
    x += step / (1 - x * step);
  }
  return x;
}

// Where a slope is undefined because the value is (0 to the power 0, say), it counts as 0.
Expr pow_partial(int i, Args x, Expr y) {
  if (i == 0) return select(x[1] == 0.0, 0.0, x[1] * pow(x[0], x[1] - 1.0));
  return select(x[0] == 0.0 || y == 0.0, 0.0, y * log(x[0]));
}

// 0 at the origin, as for a norm; an infinite operand outweighs any other.
Expr hypot_partial(int i, Args x, Expr y) {
  Expr mine = x[static_cast<size_t>(i)];
  Expr sign = select(mine > 0.0, 1.0, -one(mine));
  return select(y == 0.0, 0.0, select(abs(mine) == kInf, sign, mine / y));
}

// 0 at the origin. Divided twice: the square of the distance would overflow and underflow.
Expr atan2_partial(int i, Args x, Expr) {
  Expr r = hypot(x[0], x[1]);
  Expr slope = i == 0 ? x[1] / r / r : -(x[0] / r / r);
  return select(r == 0.0 || r == kInf, 0.0, slope);
}

// By halves: the slope is finite a little further than the value.
Expr exp2_partial(int, Args x, Expr) {
  Expr half = exp2(0.5 * x[0]);
  return kLn2 * half * half;
}

// In f64: the exponential multiplies an error in y by 2 y*y.
Expr erfc_inv_partial(int, Args x, Expr y) {
  Expr wide = erfc_inv(cast(x[0], DType::F64));
  return cast((-1.0 / kTwoOverSqrtPi) * exp(wide * wide), y.type());
}

// -floor(a / b), from a result that is exact.
Expr rem_partial(int i, Args x, Expr y) {
  return i == 0 ? one(y) : -round((x[0] - y) / x[1]);
}

// Equal operands share the slope, so that the total is preserved.
Expr max_partial(int i, Args x, Expr) {
  Expr mine = x[static_cast<size_t>(i)], other = x[static_cast<size_t>(1 - i)];
  return select(mine > other, 1.0, select(mine == other, 0.5 * one(mine), 0.0));
}
Expr min_partial(int i, Args x, Expr) {
  Expr mine = x[static_cast<size_t>(i)], other = x[static_cast<size_t>(1 - i)];
  return select(mine < other, 1.0, select(mine == other, 0.5 * one(mine), 0.0));
}

Expr select_partial(int i, Args x, Expr y) {
  if (i == 0) return zero(y);
  return i == 1 ? select(x[0], one(y), zero(y)) : select(x[0], zero(y), one(y));
}

constexpr bool kCostly = true;

const Intrinsic kTable[] = {
    {Fn::Param, "param", 0, false, "", nullptr, nullptr, nullptr, nullptr},
    {Fn::Literal, "literal", 0, false, "", nullptr, nullptr, nullptr, nullptr},
    {Fn::Cast, "cast", 1, false, "", nullptr, nullptr, nullptr, nullptr},
    {Fn::Add, "add", 2, false, "({0} + {1})", SINTER_FLOAT(a + b), SINTER_INTEGER(u(a) + u(b)),
     SINTER_PARTIAL(one(y))},
    {Fn::Sub, "sub", 2, false, "({0} - {1})", SINTER_FLOAT(a - b), SINTER_INTEGER(u(a) - u(b)),
     SINTER_PARTIAL(i == 0 ? one(y) : -one(y))},
    {Fn::Mul, "mul", 2, false, "({0} * {1})", SINTER_FLOAT(a* b), SINTER_INTEGER(u(a) * u(b)),
     SINTER_PARTIAL(x[static_cast<size_t>(1 - i)])},
    {Fn::Div, "div", 2, false, "({0} / {1})", SINTER_FLOAT(a / b), nullptr,
     SINTER_PARTIAL(i == 0 ? 1.0 / x[1] : -(y / x[1])), kCostly},
    {Fn::Neg, "neg", 1, false, "(-{0})", SINTER_FLOAT(-a), SINTER_INTEGER(0 - u(a)),
     SINTER_PARTIAL(-one(y))},
    // At 0 the slope is 0; NaN passes through.
    {Fn::Abs, "abs", 1, false, "sn_abs({0})", SINTER_FLOAT(std::fabs(a)),
     SINTER_INTEGER(a < 0 ? 0 - u(a) : u(a)),
     SINTER_PARTIAL(select(x[0] > 0.0, 1.0, select(x[0] < 0.0, -1.0 * one(y), x[0])))},
    {Fn::Max, "max", 2, false, "sn_max({0}, {1})", SINTER_FLOAT(keep_nan_max<T>(a, b)),
     SINTER_INTEGER(a > b ? a : b), max_partial},
    {Fn::Min, "min", 2, false, "sn_min({0}, {1})", SINTER_FLOAT(keep_nan_min<T>(a, b)),
     SINTER_INTEGER(a < b ? a : b), min_partial},
    {Fn::Pow, "pow", 2, false, "sn_pow({0}, {1})", SINTER_FLOAT(std::pow(a, b)), nullptr,
     pow_partial, kCostly},
    {Fn::Fma, "fma", 3, false, "sn_fma({0}, {1}, {2})", SINTER_FLOAT(std::fma(a, b, c)), nullptr,
     SINTER_PARTIAL(i == 2 ? one(y) : x[static_cast<size_t>(1 - i)])},
    {Fn::Rem, "rem", 2, false, "sn_rem({0}, {1})", SINTER_FLOAT(floored_rem<T>(a, b)),
     SINTER_INTEGER(floored_rem(a, b)), rem_partial, kCostly},
    {Fn::Exp, "exp", 1, false, "sn_exp({0})", SINTER_FLOAT(std::exp(a)), nullptr, SINTER_PARTIAL(y),
     kCostly},
    {Fn::Exp2, "exp2", 1, false, "sn_exp2({0})", SINTER_FLOAT(std::exp2(a)), nullptr, exp2_partial,
     kCostly},
    {Fn::Expm1, "expm1", 1, false, "sn_expm1({0})", SINTER_FLOAT(std::expm1(a)), nullptr,
     SINTER_PARTIAL(exp(x[0])), kCostly},  // y + 1 would lose the tail
    {Fn::Log, "log", 1, false, "sn_log({0})", SINTER_FLOAT(std::log(a)), nullptr,
     SINTER_PARTIAL(1.0 / x[0]), kCostly},
    {Fn::Log2, "log2", 1, false, "sn_log2({0})", SINTER_FLOAT(std::log2(a)), nullptr,
     SINTER_PARTIAL((1.0 / kLn2) / x[0]), kCostly},
    {Fn::Log1p, "log1p", 1, false, "sn_log1p({0})", SINTER_FLOAT(std::log1p(a)), nullptr,
     SINTER_PARTIAL(1.0 / (x[0] + 1.0)), kCostly},
    {Fn::Sqrt, "sqrt", 1, false, "sn_sqrt({0})", SINTER_FLOAT(std::sqrt(a)), nullptr,
     SINTER_PARTIAL(0.5 / y), kCostly},
    {Fn::Rsqrt, "rsqrt", 1, false, "sn_rsqrt({0})", SINTER_FLOAT(T(1) / std::sqrt(a)), nullptr,
     SINTER_PARTIAL(-0.5 * y / x[0]), kCostly},
    {Fn::Inv1p, "inv1p", 1, false, "sn_inv1p({0})", SINTER_FLOAT(T(1) / (T(1) + a)), nullptr,
     SINTER_PARTIAL(-(y* y)), kCostly},
    // By the double: one rounding.
    {Fn::Cbrt, "cbrt", 1, false, "sn_cbrt({0})", SINTER_FLOAT(std::cbrt(static_cast<double>(a))),
     nullptr, SINTER_PARTIAL(1.0 / (3.0 * (y * y))), kCostly},
    {Fn::Hypot, "hypot", 2, false, "sn_hypot({0}, {1})", SINTER_FLOAT(std::hypot(a, b)), nullptr,
     hypot_partial, kCostly},
    {Fn::Sin, "sin", 1, false, "sn_sin({0})", SINTER_FLOAT(std::sin(a)), nullptr,
     SINTER_PARTIAL(cos(x[0])), kCostly},
    {Fn::Cos, "cos", 1, false, "sn_cos({0})", SINTER_FLOAT(std::cos(a)), nullptr,
     SINTER_PARTIAL(-sin(x[0])), kCostly},
    {Fn::Tan, "tan", 1, false, "sn_tan({0})", SINTER_FLOAT(std::tan(a)), nullptr,
     SINTER_PARTIAL(1.0 + y * y), kCostly},
    {Fn::Sinh, "sinh", 1, false, "sn_sinh({0})", SINTER_FLOAT(std::sinh(a)), nullptr,
     SINTER_PARTIAL(cosh(x[0])), kCostly},
    {Fn::Cosh, "cosh", 1, false, "sn_cosh({0})", SINTER_FLOAT(std::cosh(a)), nullptr,
     SINTER_PARTIAL(sinh(x[0])), kCostly},
    {Fn::Tanh, "tanh", 1, false, "sn_tanh({0})", SINTER_FLOAT(std::tanh(a)), nullptr,
     SINTER_PARTIAL(1.0 - y * y), kCostly},
    // (1 - x) (1 + x) keeps the digits of 1 - x*x near 1.
    {Fn::Asin, "asin", 1, false, "sn_asin({0})", SINTER_FLOAT(std::asin(a)), nullptr,
     SINTER_PARTIAL(rsqrt((1.0 - x[0]) * (1.0 + x[0]))), kCostly},
    {Fn::Acos, "acos", 1, false, "sn_acos({0})", SINTER_FLOAT(std::acos(a)), nullptr,
     SINTER_PARTIAL(-rsqrt((1.0 - x[0]) * (1.0 + x[0]))), kCostly},
    {Fn::Atan, "atan", 1, false, "sn_atan({0})", SINTER_FLOAT(std::atan(a)), nullptr,
     SINTER_PARTIAL(1.0 / (1.0 + x[0] * x[0])), kCostly},
    {Fn::Atan2, "atan2", 2, false, "sn_atan2({0}, {1})", SINTER_FLOAT(std::atan2(a, b)), nullptr,
     atan2_partial, kCostly},
    {Fn::Erf, "erf", 1, false, "sn_erf({0})", SINTER_FLOAT(std::erf(a)), nullptr,
     SINTER_PARTIAL(kTwoOverSqrtPi* exp(-(x[0] * x[0]))), kCostly},
    {Fn::Erfc, "erfc", 1, false, "sn_erfc({0})", SINTER_FLOAT(std::erfc(a)), nullptr,
     SINTER_PARTIAL(-kTwoOverSqrtPi* exp(-(x[0] * x[0]))), kCostly},
    {Fn::ErfcInv, "erfc_inv", 1, false, "sn_erfc_inv({0})",
     SINTER_FLOAT(erfc_inverse(static_cast<double>(a))), nullptr, erfc_inv_partial, kCostly},
    // By the double: the rounding of x / sqrt(2) would show in the tail.
    {Fn::NormCdf, "norm_cdf", 1, false, "sn_norm_cdf({0})",
     SINTER_FLOAT(0.5 * std::erfc(-kSqrtHalf * static_cast<double>(a))), nullptr,
     SINTER_PARTIAL((0.5 * kSqrtHalf * kTwoOverSqrtPi) * exp(-0.5 * (x[0] * x[0]))), kCostly},
    {Fn::Floor, "floor", 1, false, "sn_floor({0})", SINTER_FLOAT(std::floor(a)), nullptr, nullptr},
    {Fn::Ceil, "ceil", 1, false, "sn_ceil({0})", SINTER_FLOAT(std::ceil(a)), nullptr, nullptr},
    {Fn::Round, "round", 1, false, "sn_round({0})", SINTER_FLOAT(std::nearbyint(a)), nullptr,
     nullptr},
    {Fn::Trunc, "trunc", 1, false, "sn_trunc({0})", SINTER_FLOAT(std::trunc(a)), nullptr, nullptr},
    {Fn::BitAnd, "bit_and", 2, false, "({0} & {1})", nullptr, nullptr, SINTER_INTEGER(u(a) & u(b)),
     nullptr},
    {Fn::BitOr, "bit_or", 2, false, "({0} | {1})", nullptr, nullptr, SINTER_INTEGER(u(a) | u(b)),
     nullptr},
    {Fn::BitXor, "bit_xor", 2, false, "({0} ^ {1})", nullptr, nullptr, SINTER_INTEGER(u(a) ^ u(b)),
     nullptr},
    {Fn::BitNot, "bit_not", 1, false, "(~{0})", nullptr, nullptr, SINTER_INTEGER(~u(a)), nullptr},
    {Fn::Shl, "shl", 2, false, "sn_shl({0}, {1})", nullptr, nullptr,
     SINTER_INTEGER(shift_left(a, b)), nullptr},
    {Fn::Shr, "shr", 2, false, "sn_shr({0}, {1})", nullptr, nullptr,
     SINTER_INTEGER(shift_right(a, b)), nullptr},
    {Fn::Eq, "eq", 2, true, "({0} == {1})", SINTER_FLOAT(a == b), SINTER_INTEGER(a == b), nullptr},
    {Fn::Ne, "ne", 2, true, "({0} != {1})", SINTER_FLOAT(a != b), SINTER_INTEGER(a != b), nullptr},
    {Fn::Lt, "lt", 2, true, "({0} < {1})", SINTER_FLOAT(a < b), SINTER_INTEGER(a < b), nullptr},
    {Fn::Le, "le", 2, true, "({0} <= {1})", SINTER_FLOAT(a <= b), SINTER_INTEGER(a <= b), nullptr},
    {Fn::Gt, "gt", 2, true, "({0} > {1})", SINTER_FLOAT(a > b), SINTER_INTEGER(a > b), nullptr},
    {Fn::Ge, "ge", 2, true, "({0} >= {1})", SINTER_FLOAT(a >= b), SINTER_INTEGER(a >= b), nullptr},
    {Fn::And, "and", 2, true, "({0} && {1})", nullptr, nullptr, SINTER_INTEGER(a&& b), nullptr},
    {Fn::Or, "or", 2, true, "({0} || {1})", nullptr, nullptr, SINTER_INTEGER(a || b), nullptr},
    {Fn::Not, "not", 1, true, "(!{0})", nullptr, nullptr, SINTER_INTEGER(!a), nullptr},
    {Fn::Select, "select", 3, false, "({0} ? {1} : {2})", nullptr, nullptr, nullptr,
     select_partial},
};

#undef SINTER_FLOAT
#undef SINTER_INTEGER
#undef SINTER_PARTIAL

}  // namespace

const Intrinsic& intrinsic(Fn fn) {
  const Intrinsic& row = kTable[static_cast<size_t>(fn)];
  SINTER_CHECK(row.fn == fn, "the intrinsic table is out of order at {}", row.name);
  return row;
}

const Intrinsic* find_intrinsic(std::string_view name) {
  for (const Intrinsic& row : kTable)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace sinter
