// Newton's method on Rosenbrock's function, without ever forming a Hessian: the step solves H p =
// -g by conjugate gradients, a scan whose body multiplies by H with one Hessian-vector product.

#include <sinter/sinter.h>

#include <cmath>
#include <cstdio>

using namespace sinter;

namespace {

// (1 - x)² + 100 (y - x²)²
Value rosenbrock(Value v) {
  Value x = reshape(slice_axis(v, 0, 0, 1), {}), y = reshape(slice_axis(v, 0, 1, 2), {});
  return square(1.0 - x) + 100.0 * square(y - square(x));
}

Value dot(Value a, Value b) {
  return sum(a * b);
}

// p with H p = b, for a positive definite H that `times` multiplies by.
Value solve(const std::function<Value(Value)>& times, Value b, int64_t steps) {
  auto step = [&](const std::vector<Value>& carries, const std::vector<Value>&) {
    Value p = carries[0], rest = carries[1], direction = carries[2];
    Value before = dot(rest, rest), h = times(direction);
    // Where nothing is left to solve, both quotients would be 0 / 0.
    auto ratio = [](Value a, Value c) { return where(ne(c, 0), a / where(ne(c, 0), c, 1), 0); };
    Value length = ratio(before, dot(direction, h));
    Value now = rest - length * h;
    return ScanResult{{p + length * direction, now, now + ratio(dot(now, now), before) * direction},
                      {}};
  };
  return scan(step, {full_like(b, 0), b, b}, {}, {.length = steps}).carries[0];
}

}  // namespace

int main() {
  Model model;
  Scope g = model.graph("step");
  Value v = g.input("v", {DType::F64, {2}});
  ValueAndGrad at = value_and_grad(rosenbrock, v);
  Value p = solve([&](Value direction) { return hvp(rosenbrock, v, direction); }, -at.grad(), 2);
  g.output("value", at.value);
  g.output("slope", sqrt(dot(at.grad(), at.grad())));
  g.output("next", v + p);

  Program program(model);
  Tensor here = Tensor::from<double>({2}, {-1.2, 1});
  for (int i = 0; i < 20; ++i) {
    Bindings out = program.run("step", {{"v", here}});
    double slope = out.at("slope").at(0);
    std::printf("step %d: f(%.6f, %.6f) = %.3e, slope %.1e\n", i, here.at(0), here.at(1),
                out.at("value").at(0), slope);
    if (slope < 1e-9) return 0;
    here = out.at("next");
  }
  return 1;
}
