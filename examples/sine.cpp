#include <sinter/sinter.h>

#include <cmath>
#include <cstdio>

using namespace sinter;

// A model is a function of a scope, which names its parameters, and of its inputs.
Value network(Scope g, Value x) {
  Value h = tanh(nn::linear(g / "first", x, 32));
  return nn::linear(g / "last", h, 1);
}

int main() {
  Model model;
  Scope step = model.graph("step", Mode::Training);
  Value x = step.input("x", f32({64, 1})), y = step.input("y", f32({64, 1}));
  Value loss = mean(square(network(step, x) - y));
  step.output("loss", loss);
  minimize(loss, step.parameters(), AdamW{.weight_decay = 0});

  Program program(model);  // compiled for the GPU, the CPU or the reference, whichever is there
  program.init(/*seed=*/1);
  Bindings batch{{"x", Tensor(f32({64, 1}))}, {"y", Tensor(f32({64, 1}))}};
  for (int i = 0; i < 64; ++i) {
    float at = static_cast<float>(i) / 32 - 1;
    batch["x"].as<float>()[i] = at;
    batch["y"].as<float>()[i] = std::sin(3 * at);
  }
  batch["lr"] = Tensor::scalar(0.01f);  // a value, not a constant of the compile
  for (int i = 0; i <= 1000; ++i) {
    double now = program.run("step", batch).at("loss").at(0);
    if (i % 200 == 0) std::printf("step %d: loss %.5f\n", i, now);
  }
}
