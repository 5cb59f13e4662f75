// MP-04: an f32 parameter moves by updates that its bf16 copy cannot show.

#include <doctest/doctest.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/cases/devices.h>

using namespace sinter;

TEST_CASE("MP-04: the f32 parameter moves, and its bf16 copy follows") {
  // The gradient is 1 always; `copy` is what a product of the next step would read.
  auto module = parse_module(R"(module {target = "host"}
state p: f32[1]
state m: f32[1]
state v: f32[1]
state t: i32[]
graph @step(%p: f32[1], %m: f32[1], %v: f32[1], %t: i32[]) -> (f32[1], f32[1], f32[1], i32[], bf16[1]) {
  %one = full {value = 1} : i32[]
  %t1 = add %t, %one : i32[]
  %g = full {value = 1.0} : f32[1]
  %lr = full {value = 0.001} : f32[]
  %p1, %m1, %v1 = adamw %p, %g, %m, %v, %t1, %lr {weight_decay = 0.0} : f32[1], f32[1], f32[1]
  %c = cast %p1 : bf16[1]
  return p = %p1, m = %m1, v = %v1, t = %t1, copy = %c
})",
                             "mp04.sir");
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(*module, options));
    session->set_state("p", Tensor::from<float>({1}, {1}));
    double copy = 0;
    for (int i = 0; i < 100; ++i) copy = session->run("step", {}).at("copy").at(0);
    CHECK(session->state("p").at(0) == doctest::Approx(0.9).epsilon(1e-5));
    CHECK(copy == 0.8984375);
  }
}
