#pragma once
// What every device must do with the narrow copies of weights that weight-copies keeps.

#include <sinter/tests/device_cases.h>

#include <limits>

namespace sinter::test {

inline const char* weight_copy_text() {
  return R"(module {target = "host"}
state w: f32[8,8]
state b: f32[8]
graph @init(%seed: u32[2], %step: u32[], %offset: i64[]) -> (f32[8,8], f32[8]) {
  %w = random_normal %seed, %step, %offset : f32[8,8]
  %b = full {value = 0.0} : f32[8]
  return w = %w, b = %b
}
graph @step(%x: f32[4,8], %w: f32[8,8], %b: f32[8], %lr: f32[]) -> f32[] attributes {
    autocast = "bf16", loss = "l", wrt = ["w", "b"], optimizer = "adamw", lr = "lr",
    skipped = "skips"} {
  %h = matmul %x, %w : f32[4,8]
  %bb = broadcast %b : f32[4,8]
  %y = add %h, %bb : f32[4,8]
  %z = tanh %y : f32[4,8]
  %o = matmul %z, %w : f32[4,8]
  %q = square %o : f32[4,8]
  %l = mean %q : f32[]
  return %l
}
graph @eval(%x: f32[4,8], %w: f32[8,8]) -> f32[4,8] attributes {autocast = "bf16"} {
  %y = matmul %x, %w : f32[4,8]
  return %y
}
)";
}

inline Tensor waves(const TensorType& type, double scale) {
  Tensor t(type);
  for (int64_t i = 0; i < t.size(); ++i)
    t.as<float>()[i] = static_cast<float>(scale * std::sin(1.3 * static_cast<double>(i) + 0.2));
  return t;
}

// The copy is the cast of the weight, after the first weights, after steps, after steps that are
// skipped, and after the weight is set; all graphs read it, and their results have the bits of
// casting in each run.
inline void keeps_weight_copies(const CompileOptions& options) {
  CompileOptions casting = options;
  casting.disabled.emplace_back("weight-copies");
  auto kept = session_for(weight_copy_text(), options);
  auto cast = session_for(weight_copy_text(), casting);
  REQUIRE(kept->executable().module().find_state("w.bf16") != nullptr);
  REQUIRE(cast->executable().module().find_state("w.bf16") == nullptr);
  // A bias is an operand of its product.
  REQUIRE(kept->executable().module().find_state("b.bf16") != nullptr);

  Tensor x = waves({DType::F32, {4, 8}}, 1);
  auto both = [&](std::string_view graph, const Bindings& inputs) {
    Bindings a = kept->run(graph, inputs), b = cast->run(graph, inputs);
    REQUIRE(a.size() == b.size());
    for (const auto& each : a) CHECK_MESSAGE(each.second.same_bits(b.at(each.first)), each.first);
    for (const State& s : cast->executable().module().states)
      CHECK_MESSAGE(kept->state(s.name).same_bits(cast->state(s.name)), s.name);
    for (const std::string name : {"w", "b"})
      CHECK(kept->state(name + ".bf16").same_bits(kept->state(name).to(DType::BF16)));
  };
  auto step = [&](const Tensor& input) {
    both("step", {{"x", input}, {"lr", Tensor::scalar(0.01F)}});
    both("eval", {{"x", x}});
  };
  both("init", {{"seed", Tensor::from<uint32_t>({2}, {1, 0})},
                {"step", Tensor::scalar(uint32_t{0})},
                {"offset", Tensor::scalar(int64_t{0})}});
  both("eval", {{"x", x}});
  for (int i = 0; i < 3; ++i) step(x);

  Tensor before = kept->state("w");
  Tensor infinite = Tensor::full({DType::F32, {4, 8}}, std::numeric_limits<double>::infinity());
  step(infinite);
  CHECK(kept->state("skipped").at(0) == 1);
  CHECK(kept->state("w").same_bits(before));

  Tensor given = waves({DType::F32, {8, 8}}, 0.7);
  for (auto* session : {kept.get(), cast.get()}) session->set_state("w", given);
  CHECK(kept->state("w.bf16").same_bits(given.to(DType::BF16)));
  both("eval", {{"x", x}});
  step(x);
  CHECK(error_of([&] {
          kept->set_state("w.bf16", given.to(DType::BF16));
        }).find("state 'w.bf16' is a copy of 'w', and follows it") != std::string::npos);
}

}  // namespace sinter::test
