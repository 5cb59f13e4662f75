// First and second derivatives of ordinary C++ functions by dual and hyper-dual numbers.

#include <sinter/ir/dual.h>

#include <array>
#include <cmath>
#include <cstdio>

using namespace sinter;

int main() {
  auto polynomial = [](auto x) { return x * x + 3.0 * x; };
  Dual<double> y = polynomial(Dual<double>{2, 1});
  std::printf("x^2 + 3x at 2: value %g, slope %g\n", y.value, y.slope);

  auto wave = [](auto x) { return sin(x * x); };
  Derivatives<double> w = derivatives(wave, 1.5);
  std::printf("sin(x^2) at 1.5: value %.6f, slope %.6f, second derivative %.6f\n", w.value, w.first,
              w.second);

  auto surface = [](auto a, auto b) { return a * a * b + sin(a) + b * b * b; };
  std::array<double, 2> g = gradient(surface, std::array{2.0, 3.0});
  std::array<std::array<double, 2>, 2> h = hessian(surface, std::array{2.0, 3.0});
  std::printf("x^2 y + sin x + y^3 at (2, 3): gradient [%.6f, %g]\n", g[0], g[1]);
  std::printf("  Hessian [[%.6f, %g], [%g, %g]]\n", h[0][0], h[0][1], h[1][0], h[1][1]);
}
