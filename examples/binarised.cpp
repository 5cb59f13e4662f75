// Gradients of one's own: a network whose weights and activations are -1 or 1.
//
// The sign of x has slope 0 almost everywhere, so nothing would be learnt; the straight-through
// estimator gives it slope 1 for |x| <= 1 instead. The second rule, clip_gradient, is the identity
// with a bounded gradient.

#include <sinter/sinter.h>

#include <cmath>
#include <cstdio>
#include <string>

using namespace sinter;

namespace {

// -1 for x <= 0, else 1; dx = dy where |x| <= 1.
Value binarise(Value x) {
  return custom_vjp(
      "binarise", [](Value v) { return where(gt(v, 0), full_like(v, 1), full_like(v, -1)); },
      [](Value v, Value, Value dy) { return where(le(abs(v), 1), dy, full_like(dy, 0)); }, x);
}

// x; its gradient is kept within ±limit, element by element.
Value clip_gradient(Value x, double limit) {
  return custom_vjp(
      "clip_gradient", [](Value v) { return v; },
      [limit](Value, Value, Value dy) { return clamp(dy, -limit, limit); }, x);
}

constexpr int64_t kBits = 9, kRows = 1 << kBits, kHidden = 48;

Value network(Scope g, Value x) {
  Value w = g.parameter("w", {kBits, kHidden}, init::uniform(-1, 1));
  Value h = binarise(matmul(x, binarise(w)) / std::sqrt(static_cast<double>(kBits)));
  return clip_gradient(reshape(nn::linear(g / "out", h, 1), {kRows}), 0.05);
}

std::string text(const Tensor& t) {
  std::string out;
  for (int64_t i = 0; i < t.size(); ++i) out += (i ? ", " : "") + fmt::format("{}", t.at(i) + 0.0);
  return "[" + out + "]";
}

}  // namespace

int main() {
  Model model;
  Scope rule = model.graph("rule");
  Value x = rule.input("x", f32({7}));
  Value y = binarise(x);
  rule.output("y", y);
  rule.output("dx", grad(sum(y), x));
  Value z = rule.input("z", f32({3})), c = clip_gradient(z, 1);
  rule.output("dz", grad(sum(c * c), z));

  // Every row of nine bits; the target is whether most of them, each weighed with a sign, are set.
  Scope step = model.graph("step", Mode::Training);
  Value bits = step.input("bits", f32({kRows, kBits})), target = step.input("target", f32({kRows}));
  Value score = network(step, bits);
  step.output("right", mean(cast(gt(score * target, 0), DType::F32)));
  Value loss = mean(softplus(-(score * target)));
  step.output("loss", loss);
  minimize(loss, step.parameters(), AdamW{.weight_decay = 0});

  Program program(model);
  Bindings out =
      program.run("rule", {{"x", Tensor::from<float>({7}, {-2, -1, -0.5f, 0, 0.5f, 1, 2})},
                           {"z", Tensor::from<float>({3}, {-3, 0.25f, 5})}});
  std::printf("binarise: y = %s, dx = %s\n", text(out.at("y")).c_str(), text(out.at("dx")).c_str());
  std::printf("clip_gradient of z²: dz = %s\n", text(out.at("dz")).c_str());

  Bindings batch{{"bits", Tensor(f32({kRows, kBits}))}, {"target", Tensor(f32({kRows}))}};
  const int signs[kBits] = {1, -1, 1, 1, -1, 1, -1, -1, 1};
  for (int64_t i = 0; i < kRows; ++i) {
    int votes = 0;
    for (int64_t k = 0; k < kBits; ++k) {
      int bit = (i >> k) & 1 ? 1 : -1;
      batch["bits"].as<float>()[i * kBits + k] = static_cast<float>(bit);
      votes += bit * signs[k];
    }
    batch["target"].as<float>()[i] = votes > 0 ? 1.0f : -1.0f;
  }
  program.init(/*seed=*/1);
  double right = 0;
  for (int i = 0; i <= 400; ++i) {
    batch["lr"] = Tensor::scalar(0.02f / (1 + static_cast<float>(i) / 100));
    out = program.run("step", batch);
    right = out.at("right").at(0);
    if (i % 100 == 0)
      std::printf("step %d: loss %.4f, %.1f %% right\n", i, out.at("loss").at(0), 100 * right);
  }
  return right > 0.95 ? 0 : 1;
}
