// CE-06: large odd vocabularies. N times V beyond 2^31 needs a GPU: tests/gpu/memory.cpp.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/memory.h>
#include <sinter/tests/cases/devices.h>

using namespace sinter;

namespace {

// Logits of zeros but for a number that the caller adds, in bf16, and their gradient.
std::unique_ptr<Module> loss_of(int64_t rows, int64_t classes, const char* target) {
  return parse_module(fmt::format(R"(module {{target = "{2}"}}
graph @g(%x: bf16[{0},{1}], %t: i32[{0}]) -> (f32[], bf16[{0},{1}]) {{
  %loss, %count = cross_entropy %x, %t : f32[], i32[]
  %one = full {{value = 1.0}} : f32[]
  %d = cross_entropy_backward %x, %t, %one : bf16[{0},{1}]
  return %loss, %d
}})",
                                  rows, classes, target),
                      "ce06.sir");
}

}  // namespace

TEST_CASE("CE-06: zero logits over 50257 and 128257 classes") {
  struct Case {
    int64_t classes;
    double loss, gradient;
  };
  for (Case c : {Case{50257, 10.82491, 1.989773e-5}, Case{128257, 11.76179, 7.796845e-6}})
    for (DeviceKind device : test::devices_here()) {
      if (device == DeviceKind::Interpreter) continue;
      CAPTURE(c.classes);
      CAPTURE(to_string(device));
      CompileOptions options;
      options.device = device;
      auto session = make_session(compile(*loss_of(1, c.classes, "host"), options));
      auto last = static_cast<int32_t>(c.classes - 1);
      Bindings out = session->run("g", {{"x", Tensor({DType::BF16, {1, c.classes}})},
                                        {"t", Tensor::from<int32_t>({1}, {last})}});
      CHECK(out.at("loss").at(0) == doctest::Approx(c.loss).epsilon(1e-6));
      const Tensor& d = out.at("d");
      // bf16 keeps 8 bits of it.
      for (int64_t i : {int64_t{0}, c.classes / 2, c.classes - 2})
        CHECK(d.at(i) == doctest::Approx(c.gradient).epsilon(0.004));
      CHECK(d.at(c.classes - 1) == doctest::Approx(c.gradient - 1).epsilon(0.004));
    }
}

TEST_CASE("CE-06: the gradient of the logits takes their place") {
  const int64_t rows = 8192, classes = 128257, width = 64, logits = rows * classes * 2;
  auto module = parse_module(fmt::format(R"(module {{target = "sm_90a"}}
state w: bf16[{1},{2}]
graph @g(%x: bf16[{0},{2}], %w: bf16[{1},{2}], %t: i32[{0}]) -> f32[] {{
  %z = matmul %x, %w {{transpose_b = true}} : bf16[{0},{1}]
  %loss, %count = cross_entropy %z, %t : f32[], i32[]
  return %loss
}})",
                                         rows, classes, width),
                             "ce06.sir");
  Graph& graph = *module->find("g");
  graph.attributes["loss"] = std::string("loss");
  graph.attributes["wrt"] = std::vector<std::string>{"w", "x"};
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  MemoryNeed need = planned_memory(*module, options);
  MESSAGE("arena " << need.arena << " bytes, logits " << logits);
  CHECK(need.arena >= logits);
  CHECK(need.arena < logits + logits / 50);
}
