// A step over the parts of a batch is the step over the whole (MP-08); gradients are unscaled, then
// clipped, then applied (MP-06), and not applied where they are not finite.

#include <doctest/doctest.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/ir/ops.h>
#include <sinter/tests/cases/devices.h>

#include <cmath>
#include <limits>

using namespace sinter;

namespace {

constexpr int64_t kClasses = 4;

// The logits of a row are a row of the parameter z; `rows` at a time. SGD at rate 1 moves z by its
// gradient.
Value network(const Scope& g, int64_t rows) {
  Value z = g.parameter("z", {4, kClasses}, init::zeros());
  return embedding(z, g.input("ids", i32({rows})));
}

std::unique_ptr<Model> whole(int64_t rows) {
  auto model = std::make_unique<Model>();
  Scope step = model->graph("step", Mode::Training);
  CrossEntropy ce = cross_entropy(network(step, rows), step.input("targets", i32({rows})));
  step.output("loss", ce.loss);
  minimize(ce.loss, step.parameters(), Sgd{}, {.grad_norm = "norm"});
  return model;
}

std::unique_ptr<Model> parts(int64_t rows) {
  auto model = std::make_unique<Model>();
  Scope part = model->graph("accumulate", Mode::TrainingPart);
  CrossEntropy ce =
      cross_entropy(network(part, rows), part.input("targets", i32({rows})), -100, "sum");
  accumulate(ce.loss, part.parameters(), {{"loss", ce.loss}, {"count", ce.count}});
  Scope update = model->graph("update");
  Value count = cast(maximum(accumulated(update, "count", i32({})), 1), DType::F32);
  update.output("loss", accumulated(update, "loss", f32({})) / count);
  minimize_accumulated(update, part, Sgd{}, {.grad_norm = "norm", .divisor = count});
  return model;
}

Tensor logits() {
  std::vector<float> z(4 * kClasses, 0);
  z[0] = 4;
  for (size_t row = 1; row < 4; ++row) z[row * kClasses] = 2;
  return Tensor::from<float>({4, kClasses}, z);
}

Tensor ints(std::vector<int32_t> values) {
  auto n = static_cast<int64_t>(values.size());
  return Tensor::from<int32_t>({n}, values);
}

const Bindings kRate{{"lr", Tensor::scalar(1.0f)}};

void check_near(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.size(); ++i) CHECK(std::abs(a.at(i) - b.at(i)) <= 1e-6);
}

// w takes the gradient `g`, which comes multiplied by `scale`.
std::unique_ptr<Model> scaled(double clip) {
  auto model = std::make_unique<Model>();
  Scope step = model->graph("step", Mode::Training);
  Value w = step.parameter("w", {2}, init::zeros());
  Value g = step.input("g", f32({2})), scale = step.input("scale", f32({}));
  Value loss = sum(w * g) * scale;
  minimize(loss, step.parameters(),
           AdamW{.weight_decay = 0.5, .decays = [](auto...) { return true; }},
           {.clip = clip, .grad_norm = "norm", .skipped = "told", .divisor = scale});
  return model;
}

}  // namespace

TEST_CASE("MP-08: parts of unequal counts make the step of the whole batch") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    Program all(*whole(4), {.device = device});
    all.init();
    all.set_state("z", logits());
    Bindings right = all.run("step", {{"ids", ints({0, 1, 2, 3})},
                                      {"targets", ints({1, 0, 0, 0})},
                                      {"lr", Tensor::scalar(1.0f)}});
    CHECK(right.at("loss").at(0) == doctest::Approx(1.268937).epsilon(1e-6));

    Program some(*parts(3), {.device = device});
    some.init();
    some.set_state("z", logits());
    // Twice, as the first part must forget the step before.
    for (int round = 0; round < 2; ++round) {
      some.set_state("z", logits());
      some.launch("accumulate_first",
                  {{"ids", ints({0, 0, 0})}, {"targets", ints({1, -100, -100})}});
      some.launch("accumulate", {{"ids", ints({1, 2, 3})}, {"targets", ints({0, 0, 0})}});
      some.launch("accumulate", {{"ids", ints({0, 1, 2})}, {"targets", ints({-100, -100, -100})}});
      Bindings got = some.run("update", kRate);
      CHECK(got.at("loss").at(0) == doctest::Approx(1.268937).epsilon(1e-6));
      CHECK(got.at("norm").at(0) == doctest::Approx(right.at("norm").at(0)).epsilon(1e-6));
      check_near(some.state("z"), all.state("z"));
    }
    // Nothing but ignored targets: no loss, no step and no NaN.
    some.set_state("z", logits());
    some.launch("accumulate_first",
                {{"ids", ints({0, 1, 2})}, {"targets", ints({-100, -100, -100})}});
    CHECK(some.run("update", kRate).at("loss").at(0) == 0);
    CHECK(some.state("z").same_bits(logits()));
  }
}

TEST_CASE("MP-06: unscaled, then clipped, then applied") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    Program program(*scaled(1.0), {.device = device});
    program.init();
    Bindings out = program.run("step", {{"g", Tensor::from<float>({2}, {3, 4})},
                                        {"scale", Tensor::scalar(1024.0f)},
                                        {"lr", Tensor::scalar(0.01f)}});
    CHECK(out.at("norm").at(0) == 5);
    // The mean gradient after one step is a tenth of what AdamW was given.
    Tensor m = program.state("adamw.m.w");
    CHECK(m.at(0) == doctest::Approx(0.06).epsilon(1e-6));
    CHECK(m.at(1) == doctest::Approx(0.08).epsilon(1e-6));
    // A norm below the limit stays.
    out = program.run("step", {{"g", Tensor::from<float>({2}, {0.3f, 0.4f})},
                               {"scale", Tensor::scalar(1024.0f)},
                               {"lr", Tensor::scalar(0.01f)}});
    CHECK(out.at("norm").at(0) == doctest::Approx(0.5));
    CHECK(program.state("adamw.m.w").at(0) == doctest::Approx(0.9 * 0.06 + 0.03).epsilon(1e-6));
  }
}

TEST_CASE("optimizer: a step that is not finite changes nothing but the count of such steps") {
  const float inf = std::numeric_limits<float>::infinity();
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    Program program(*scaled(0), {.device = device});
    program.init();
    auto step = [&](float a, float b) {
      return program.run("step", {{"g", Tensor::from<float>({2}, {a, b})},
                                  {"scale", Tensor::scalar(2.0f)},
                                  {"lr", Tensor::scalar(0.1f)}});
    };
    CHECK(step(1, 2).at("told").at(0) == 0);
    std::map<std::string, Tensor> before;
    for (const char* name : {"w", "adamw.m.w", "adamw.v.w", "adamw.t"})
      before.emplace(name, program.state(name));
    CHECK(before.at("adamw.t").at(0) == 1);
    CHECK(step(std::nanf(""), 2).at("told").at(0) == 1);
    CHECK(step(1, -inf).at("told").at(0) == 2);
    CHECK(step(3e38f, 3e38f).at("told").at(0) == 3);
    for (const auto& entry : before)
      CHECK_MESSAGE(program.state(entry.first).same_bits(entry.second), entry.first);
    CHECK(step(1, 2).at("told").at(0) == 3);
    CHECK(program.state("adamw.t").at(0) == 2);
    CHECK(program.state("skipped").at(0) == 3);
  }
}
