// One function, written once, and its second derivatives two ways: by hyper-dual numbers, which
// carry them through ordinary C++, and by passes over the graph that the same code builds.

#include <sinter/ir/dual.h>
#include <sinter/sinter.h>

#include <array>
#include <cmath>
#include <cstdio>

using namespace sinter;

namespace {

constexpr auto surface = [](auto x, auto y) { return x * x * y + sin(x) + y * y * y; };

void print(const char* how, std::array<double, 2> g, std::array<std::array<double, 2>, 2> h) {
  double mean = (h[0][0] + h[1][1]) / 2, apart = std::hypot((h[0][0] - h[1][1]) / 2, h[0][1]);
  std::printf(
      "%s: gradient [%.6f, %g], Hessian [[%.6f, %g], [%g, %g]], eigenvalues %.6f and %.6f\n", how,
      g[0], g[1], h[0][0], h[0][1], h[1][0], h[1][1], mean - apart, mean + apart);
}

}  // namespace

int main() {
  std::array at{2.0, 3.0};
  print("hyper-dual numbers", gradient(surface, at), hessian(surface, at));

  Model model;
  Scope g = model.graph("main");
  Value z = g.input("z", {DType::F64, {2}});
  auto f = [](Value v) {
    auto element = [&](int64_t i) { return reshape(slice_axis(v, 0, i, i + 1), {}); };
    return surface(element(0), element(1));
  };
  g.output("gradient", grad(f, z));
  g.output("hessian", hessian(f, z));

  Program program(model);
  Bindings out = program.run("main", {{"z", Tensor::from<double>({2}, {at[0], at[1]})}});
  const Tensor &d = out.at("gradient"), &h = out.at("hessian");
  print("graph passes", {d.at(0), d.at(1)}, {{{h.at(0), h.at(1)}, {h.at(2), h.at(3)}}});
}
