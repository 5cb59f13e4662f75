#pragma once
// Dual numbers: a value with its derivative along one direction, carried through ordinary C++.
//
//   auto f = [](auto x) { return x * x + 3.0 * x; };
//   f(Dual<double>{2, 1});                  // {10, 7}: f(2) and f'(2)
//   derivatives(f, 2.0);                    // {10, 7, 2}: f, f' and f''
//   auto g = [](auto x, auto y) { return x * x * y; };
//   hessian(g, std::array{2.0, 3.0});       // {{6, 4}, {4, 0}}
//
// T is any type with arithmetic, comparisons and the functions of <cmath>, found in std or by
// argument-dependent lookup: float, double, or Dual again. A Dual of Duals is a hyper-dual number;
// its `slope.slope` is an exact second derivative, without a step size. This header stands alone.
//
// At kinks the conventions are those of the graph's ops: |x| has slope 0 at 0, equal operands of
// max and min share the slope, hypot and atan2 have slope 0 at the origin.

#include <array>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <type_traits>

namespace sinter {

template <typename T>
struct Dual {
  T value{};
  T slope{};

  Dual() = default;
  // A constant.
  template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N>>>
  Dual(N number) : value(static_cast<T>(number)) {}
  Dual(T v, T s) : value(v), slope(s) {}
};

// The number inside, however deeply nested.
template <typename T>
constexpr T value_of(T x) {
  return x;
}
template <typename T>
constexpr auto value_of(const Dual<T>& x) {
  return value_of(x.value);
}

namespace detail {
template <typename T>
struct IsDual : std::false_type {};
template <typename T>
struct IsDual<Dual<T>> : std::true_type {};

// What makes Dual<T> with a number a Dual<T>.
template <typename A, typename B>
using DualOf = std::conditional_t<IsDual<A>::value, A, B>;
template <typename A, typename B>
inline constexpr bool kDualPair = (IsDual<A>::value &&
                                   (std::is_same_v<A, B> || std::is_arithmetic_v<B>)) ||
                                  (IsDual<B>::value && std::is_arithmetic_v<A>);
template <typename A, typename B>
using EnableDual = std::enable_if_t<kDualPair<A, B>, DualOf<A, B>>;
template <typename A, typename B>
using EnableCompare = std::enable_if_t<kDualPair<A, B>, bool>;
}  // namespace detail

// ---- Arithmetic

template <typename T>
Dual<T> operator-(const Dual<T>& a) {
  return {-a.value, -a.slope};
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D operator+(const A& x, const B& y) {
  const D a(x), b(y);
  return {a.value + b.value, a.slope + b.slope};
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D operator-(const A& x, const B& y) {
  const D a(x), b(y);
  return {a.value - b.value, a.slope - b.slope};
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D operator*(const A& x, const B& y) {
  const D a(x), b(y);
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D operator/(const A& x, const B& y) {
  const D a(x), b(y);
  const auto quotient = a.value / b.value;
  return {quotient, (a.slope - quotient * b.slope) / b.value};
}
template <typename T, typename B>
auto operator+=(Dual<T>& a, const B& b) -> decltype(a = a + b) {
  return a = a + b;
}
template <typename T, typename B>
auto operator-=(Dual<T>& a, const B& b) -> decltype(a = a - b) {
  return a = a - b;
}
template <typename T, typename B>
auto operator*=(Dual<T>& a, const B& b) -> decltype(a = a * b) {
  return a = a * b;
}
template <typename T, typename B>
auto operator/=(Dual<T>& a, const B& b) -> decltype(a = a / b) {
  return a = a / b;
}

// Comparisons look at values alone.
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator==(const A& a, const B& b) {
  return value_of(a) == value_of(b);
}
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator!=(const A& a, const B& b) {
  return value_of(a) != value_of(b);
}
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator<(const A& a, const B& b) {
  return value_of(a) < value_of(b);
}
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator<=(const A& a, const B& b) {
  return value_of(a) <= value_of(b);
}
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator>(const A& a, const B& b) {
  return value_of(a) > value_of(b);
}
template <typename A, typename B, typename = detail::EnableCompare<A, B>>
bool operator>=(const A& a, const B& b) {
  return value_of(a) >= value_of(b);
}

// ---- Functions of one number

template <typename T>
Dual<T> exp(const Dual<T>& x) {
  using std::exp;
  const T y = exp(x.value);
  return {y, y * x.slope};
}
template <typename T>
Dual<T> exp2(const Dual<T>& x) {
  using std::exp2;
  const T y = exp2(x.value);
  return {y, 0.69314718055994530942 * y * x.slope};
}
template <typename T>
Dual<T> expm1(const Dual<T>& x) {
  using std::exp, std::expm1;
  return {expm1(x.value), exp(x.value) * x.slope};
}
template <typename T>
Dual<T> log(const Dual<T>& x) {
  using std::log;
  return {log(x.value), x.slope / x.value};
}
template <typename T>
Dual<T> log2(const Dual<T>& x) {
  using std::log2;
  return {log2(x.value), x.slope / (0.69314718055994530942 * x.value)};
}
template <typename T>
Dual<T> log1p(const Dual<T>& x) {
  using std::log1p;
  return {log1p(x.value), x.slope / (1.0 + x.value)};
}
template <typename T>
Dual<T> sqrt(const Dual<T>& x) {
  using std::sqrt;
  const T y = sqrt(x.value);
  return {y, x.slope / (2.0 * y)};
}
template <typename T>
Dual<T> cbrt(const Dual<T>& x) {
  using std::cbrt;
  const T y = cbrt(x.value);
  return {y, x.slope / (3.0 * y * y)};
}
template <typename T>
Dual<T> sin(const Dual<T>& x) {
  using std::cos, std::sin;
  return {sin(x.value), cos(x.value) * x.slope};
}
template <typename T>
Dual<T> cos(const Dual<T>& x) {
  using std::cos, std::sin;
  return {cos(x.value), -(sin(x.value) * x.slope)};
}
template <typename T>
Dual<T> tan(const Dual<T>& x) {
  using std::tan;
  const T y = tan(x.value);
  return {y, (1.0 + y * y) * x.slope};
}
template <typename T>
Dual<T> sinh(const Dual<T>& x) {
  using std::cosh, std::sinh;
  return {sinh(x.value), cosh(x.value) * x.slope};
}
template <typename T>
Dual<T> cosh(const Dual<T>& x) {
  using std::cosh, std::sinh;
  return {cosh(x.value), sinh(x.value) * x.slope};
}
template <typename T>
Dual<T> tanh(const Dual<T>& x) {
  using std::cosh, std::tanh;
  const T c = cosh(x.value);
  return {tanh(x.value), x.slope / (c * c)};
}
template <typename T>
Dual<T> asin(const Dual<T>& x) {
  using std::asin, std::sqrt;
  return {asin(x.value), x.slope / sqrt(1.0 - x.value * x.value)};
}
template <typename T>
Dual<T> acos(const Dual<T>& x) {
  using std::acos, std::sqrt;
  return {acos(x.value), -(x.slope / sqrt(1.0 - x.value * x.value))};
}
template <typename T>
Dual<T> atan(const Dual<T>& x) {
  using std::atan;
  return {atan(x.value), x.slope / (1.0 + x.value * x.value)};
}
template <typename T>
Dual<T> erf(const Dual<T>& x) {
  using std::erf, std::exp;
  return {erf(x.value), 1.12837916709551257390 * exp(-(x.value * x.value)) * x.slope};
}
template <typename T>
Dual<T> erfc(const Dual<T>& x) {
  using std::erfc, std::exp;
  return {erfc(x.value), -1.12837916709551257390 * exp(-(x.value * x.value)) * x.slope};
}
template <typename T>
Dual<T> abs(const Dual<T>& x) {
  return x > 0 ? x : x < 0 ? -x : Dual<T>{x.value, T{}};
}
template <typename T>
Dual<T> fabs(const Dual<T>& x) {
  return abs(x);
}
// Steps: slope 0.
template <typename T>
Dual<T> floor(const Dual<T>& x) {
  return std::floor(value_of(x));
}
template <typename T>
Dual<T> ceil(const Dual<T>& x) {
  return std::ceil(value_of(x));
}
template <typename T>
Dual<T> nearbyint(const Dual<T>& x) {
  return std::nearbyint(value_of(x));
}
template <typename T>
Dual<T> trunc(const Dual<T>& x) {
  return std::trunc(value_of(x));
}

// ---- Functions of several numbers

template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D max(const A& x, const B& y) {
  const D a(x), b(y);
  if (a == b) return 0.5 * (a + b);
  return a > b ? a : b;
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D min(const A& x, const B& y) {
  const D a(x), b(y);
  if (a == b) return 0.5 * (a + b);
  return a < b ? a : b;
}
// A base of 0 passes no slope to the exponent, nor an exponent of 0 to the base.
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D pow(const A& x, const B& y) {
  using std::log, std::pow;
  const D a(x), b(y);
  D power;
  power.value = pow(a.value, b.value);
  if (b != 0) power.slope += b.value * pow(a.value, b.value - 1.0) * a.slope;
  if constexpr (detail::IsDual<B>::value)
    if (a != 0) power.slope += power.value * log(a.value) * b.slope;
  return power;
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D hypot(const A& x, const B& y) {
  using std::hypot;
  const D a(x), b(y);
  D length;
  length.value = hypot(a.value, b.value);
  if (length != 0)
    length.slope = a.value / length.value * a.slope + b.value / length.value * b.slope;
  return length;
}
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D atan2(const A& y, const B& x) {
  using std::atan2, std::hypot;
  const D b(y), a(x);
  D angle;
  angle.value = atan2(b.value, a.value);
  const auto r = hypot(a.value, b.value);
  if (r != 0) angle.slope = (a.value / r * b.slope - b.value / r * a.slope) / r;
  return angle;
}
// The result has the sign of a; the quotient is a step.
template <typename A, typename B, typename D = detail::EnableDual<A, B>>
D fmod(const A& x, const B& y) {
  return D(x) - D(std::trunc(value_of(x) / value_of(y))) * D(y);
}
template <typename T>
Dual<T> fma(const Dual<T>& a, const Dual<T>& b, const Dual<T>& c) {
  return a * b + c;
}

// ---- Derivatives of functions

// f, f' and f'' of a generic function of one number at x.
template <typename T>
struct Derivatives {
  T value, first, second;
};
template <typename F, typename T>
Derivatives<T> derivatives(F f, T x) {
  const Dual<Dual<T>> y = f(Dual<Dual<T>>{{x, T(1)}, {T(1), T(0)}});
  return {y.value.value, y.value.slope, y.slope.slope};
}

// The gradient of a generic function of N numbers, given as arguments of their own.
template <typename F, typename T, size_t N>
std::array<T, N> gradient(F f, const std::array<T, N>& at) {
  std::array<T, N> out;
  for (size_t i = 0; i < N; ++i) {
    std::array<Dual<T>, N> x;
    for (size_t k = 0; k < N; ++k) x[k] = {at[k], T(k == i ? 1 : 0)};
    out[i] = std::apply(f, x).slope;
  }
  return out;
}
// The matrix of its second derivatives.
template <typename F, typename T, size_t N>
std::array<std::array<T, N>, N> hessian(F f, const std::array<T, N>& at) {
  std::array<std::array<T, N>, N> out;
  for (size_t i = 0; i < N; ++i)
    for (size_t j = 0; j <= i; ++j) {
      std::array<Dual<Dual<T>>, N> x;
      for (size_t k = 0; k < N; ++k) x[k] = {{at[k], T(k == i ? 1 : 0)}, {T(k == j ? 1 : 0), T(0)}};
      out[i][j] = out[j][i] = std::apply(f, x).slope.slope;
    }
  return out;
}

}  // namespace sinter
