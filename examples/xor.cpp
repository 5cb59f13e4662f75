// The smallest network that is not linear: two inputs, eight sigmoids, one output, for the function
// that is 1 where its inputs differ. Trains from five seeds and fails unless each learns it.

#include <sinter/sinter.h>

#include <cmath>
#include <cstdio>

using namespace sinter;

namespace {

constexpr int kSteps = 2000;
constexpr float kLearningRate = 0.05f;
constexpr double kTolerance = 0.1;

Value network(Scope g, Value x) {
  Value hidden = sigmoid(nn::linear(g / "hidden", x, 8));
  return sigmoid(nn::linear(g / "out", hidden, 1));
}

}  // namespace

int main() try {
  Model model;
  Scope step = model.graph("step", Mode::Training);
  Value error = network(step, step.input("x", f32({4, 2}))) - step.input("target", f32({4, 1}));
  Value loss = mean(square(error)).named("loss");
  step.output("loss", loss);
  minimize(loss, step.parameters(), AdamW{.weight_decay = 0});

  Scope eval = model.graph("eval");
  eval.output("y", network(eval, eval.input("x", f32({4, 2}))));

  Program program(model);
  Tensor x = Tensor::from<float>({4, 2}, {0, 0, 0, 1, 1, 0, 1, 1});
  Tensor target = Tensor::from<float>({4, 1}, {0, 1, 1, 0});
  bool learnt = true;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    program.init(seed);
    for (int i = 0; i < kSteps; ++i)
      program.run("step", {{"x", x}, {"target", target}, {"lr", Tensor::scalar(kLearningRate)}});
    Tensor y = program.run("eval", {{"x", x}}).at("y");
    bool close = true;
    for (int i = 0; i < 4; ++i) close = close && std::abs(y.at(i) - target.at(i)) < kTolerance;
    std::printf("seed %d: %.3f %.3f %.3f %.3f %s\n", static_cast<int>(seed), y.at(0), y.at(1),
                y.at(2), y.at(3), close ? "ok" : "not learnt");
    learnt = learnt && close;
  }
  return learnt ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "xor: %s\n", e.what());
  return 1;
}
