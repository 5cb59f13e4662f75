// Recompute changes no bit of loss and gradients, with dropout on, however it is asked for.

#include <doctest/doctest.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/nn/layers.h>
#include <sinter/ir/ops.h>
#include <sinter/tests/cases/devices.h>

using namespace sinter;

namespace {

constexpr int64_t kBlocks = 4;

// Blocks `group` of which are a segment (0: none is), or a budget in bytes.
Bindings losses_and_gradients(DeviceKind device, int64_t group, int64_t budget, int& repeated) {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value x = g.input("x", f32({16, 8}));
  for (int64_t i = 0; i < kBlocks; ++i) {
    auto segment = with_recompute(g, group > 0 ? fmt::format("s{}", i / group) : "");
    Scope block = g / i;
    Value h = nn::mlp(block, nn::rms_norm(block, x), 24, {.dropout = 0.2});
    x = x + g.dropout(h, 0.3);
  }
  if (budget > 0) recompute_within(g, budget);
  Value loss = mean(square(x));
  g.output("loss", loss);
  minimize(loss, g.parameters());
  g.graph().attributes["keep_gradients"] = true;
  CompileOptions options;
  options.device = device;
  Program program(model, options);
  repeated = 0;
  for (const Remark& r : program.executable().remarks())
    repeated += r.pass == "recompute" && r.message.starts_with("recomputed: ");
  program.init(3);
  Bindings in{{"x", fill(f32({16, 8}), 2)}, {"lr", Tensor::scalar(0.01f)}};
  program.run("step", in);
  return program.run("step", in);
}

}  // namespace

TEST_CASE("DR-02: recompute by block, root and budget is bit-equal, dropout on") {
  for (DeviceKind device : test::devices_here()) {
    if (device == DeviceKind::Reference) continue;  // it recomputes nothing
    CAPTURE(to_string(device));
    int repeated = 0;
    Bindings right = losses_and_gradients(device, 0, 0, repeated);
    CHECK(repeated == 0);
    struct Ask {
      int64_t group, budget;
    };
    for (Ask ask : {Ask{1, 0}, Ask{recompute_group(kBlocks), 0}, Ask{0, 18000}}) {
      CAPTURE(ask.group);
      Bindings got = losses_and_gradients(device, ask.group, ask.budget, repeated);
      CHECK(repeated > 0);
      REQUIRE(got.size() == right.size());
      for (const auto& entry : right)
        CHECK_MESSAGE(entry.second.same_bits(got.at(entry.first)), entry.first);
    }
  }
}
