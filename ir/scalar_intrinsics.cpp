// The table of scalar intrinsics: each row is all that sinter knows of one function.

#include <sinter/ir/diagnostic.h>
#include <sinter/ir/scalar.h>

#include <cmath>

namespace sinter {
namespace {

using Args = std::span<const Expr>;

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

template <typename T>
T keep_nan_max(T a, T b) {
  return a != a || b != b ? a + b : (a > b ? a : b);
}
template <typename T>
T keep_nan_min(T a, T b) {
  return a != a || b != b ? a + b : (a < b ? a : b);
}

Expr one(Expr like) {
  return like.builder()->literal(like.type(), 1.0);
}
Expr zero(Expr like) {
  return like.builder()->literal(like.type(), 0.0);
}

Expr pow_partial(int i, Args x, Expr y) {
  if (i == 0) return select(x[1] == 0.0, 0.0, x[1] * pow(x[0], x[1] - 1.0));
  return select(x[0] == 0.0, 0.0, y * log(x[0]));
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
    {Fn::Exp, "exp", 1, false, "sn_exp({0})", SINTER_FLOAT(std::exp(a)), nullptr, SINTER_PARTIAL(y),
     kCostly},
    {Fn::Expm1, "expm1", 1, false, "sn_expm1({0})", SINTER_FLOAT(std::expm1(a)), nullptr,
     SINTER_PARTIAL(exp(x[0])), kCostly},  // y + 1 would lose the tail
    {Fn::Log, "log", 1, false, "sn_log({0})", SINTER_FLOAT(std::log(a)), nullptr,
     SINTER_PARTIAL(1.0 / x[0]), kCostly},
    {Fn::Log1p, "log1p", 1, false, "sn_log1p({0})", SINTER_FLOAT(std::log1p(a)), nullptr,
     SINTER_PARTIAL(1.0 / (x[0] + 1.0)), kCostly},
    {Fn::Sqrt, "sqrt", 1, false, "sn_sqrt({0})", SINTER_FLOAT(std::sqrt(a)), nullptr,
     SINTER_PARTIAL(0.5 / y), kCostly},
    {Fn::Rsqrt, "rsqrt", 1, false, "sn_rsqrt({0})", SINTER_FLOAT(T(1) / std::sqrt(a)), nullptr,
     SINTER_PARTIAL(-0.5 * y / x[0]), kCostly},
    {Fn::Sin, "sin", 1, false, "sn_sin({0})", SINTER_FLOAT(std::sin(a)), nullptr,
     SINTER_PARTIAL(cos(x[0])), kCostly},
    {Fn::Cos, "cos", 1, false, "sn_cos({0})", SINTER_FLOAT(std::cos(a)), nullptr,
     SINTER_PARTIAL(-sin(x[0])), kCostly},
    {Fn::Tanh, "tanh", 1, false, "sn_tanh({0})", SINTER_FLOAT(std::tanh(a)), nullptr,
     SINTER_PARTIAL(1.0 - y * y), kCostly},
    // 2/sqrt(pi)
    {Fn::Erf, "erf", 1, false, "sn_erf({0})", SINTER_FLOAT(std::erf(a)), nullptr,
     SINTER_PARTIAL(1.1283791670955126 * exp(-(x[0] * x[0]))), kCostly},
    {Fn::Floor, "floor", 1, false, "sn_floor({0})", SINTER_FLOAT(std::floor(a)), nullptr, nullptr},
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
