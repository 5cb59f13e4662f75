// Per-example gradients: the gradient of each example's loss, for all examples at once by vmap, and
// one example at a time for comparison.

#include <sinter/sinter.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace sinter;

namespace {

constexpr int64_t kExamples = 8, kInputs = 5, kHidden = 6;

// The loss of one example: x [kInputs], y [].
Value loss(Value w, Value u, Value x, Value y) {
  Value h = tanh(matmul(reshape(x, {1, kInputs}), w));
  return square(reshape(matmul(h, u), {}) - y);
}

}  // namespace

int main() {
  Model model;
  TensorType w_type = f32({kInputs, kHidden}), u_type = f32({kHidden, 1});

  Scope all = model.graph("all");
  {
    Value w = all.input("w", w_type), u = all.input("u", u_type);
    auto gradients_of_one = [&](Value x, Value y) {
      return grad([&](Value w1, Value u1) { return loss(w1, u1, x, y); }, {w, u});
    };
    std::vector<Value> each = vmap(gradients_of_one, {all.input("x", f32({kExamples, kInputs})),
                                                      all.input("y", f32({kExamples}))});
    all.output("dw", each[0]);  // [kExamples, kInputs, kHidden]
    all.output("du", each[1]);
    all.output("norms", sqrt(sum(square(each[0]), {1, 2}) + sum(square(each[1]), {1, 2})));
  }
  Scope one = model.graph("one");
  {
    Value w = one.input("w", w_type), u = one.input("u", u_type);
    Value of_one = loss(w, u, one.input("x", f32({kInputs})), one.input("y", f32({})));
    std::vector<Value> grads = grad(of_one, {w, u});
    one.output("dw", grads[0]);
    one.output("du", grads[1]);
  }

  Program program(model);
  Tensor w = fill(w_type, 1), u = fill(u_type, 2);
  Tensor x = fill(f32({kExamples, kInputs}), 3), y = fill(f32({kExamples}), 4);
  Bindings together = program.run("all", {{"w", w}, {"u", u}, {"x", x}, {"y", y}});
  double apart = 0;
  for (int64_t i = 0; i < kExamples; ++i) {
    Tensor row = Tensor(f32({kInputs}));
    for (int64_t k = 0; k < kInputs; ++k) row.as<float>()[k] = x.as<float>()[i * kInputs + k];
    Bindings alone = program.run(
        "one", {{"w", w}, {"u", u}, {"x", row}, {"y", Tensor::scalar(y.as<float>()[i])}});
    for (const char* name : {"dw", "du"})
      for (int64_t k = 0, n = alone.at(name).size(); k < n; ++k)
        apart = std::max(apart, std::abs(alone.at(name).at(k) - together.at(name).at(i * n + k)));
    std::printf("example %d: gradient of norm %.4f\n", static_cast<int>(i),
                together.at("norms").at(i));
  }
  std::printf("largest difference to one at a time: %s 1e-5\n", apart < 1e-5 ? "below" : "ABOVE");
  return apart < 1e-5 ? 0 : 1;
}
