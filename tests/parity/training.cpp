// The same models trained as a program trains: minimize, the whole pipeline, a session on each
// device.

#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/tests/cases/devices.h>
#include <sinter/tests/parity/model.h>

using namespace sinter;
using namespace sinter::test;

namespace {

void check_training(const ParityModel& m) {
  const SafetensorsFile file = golden(m), trained = golden(m, "_adamw");
  const Tensor losses = trained.read("losses");
  Model model;
  const Scope step = model.graph("step", Mode::Training);
  const Value loss = build_forward(step, m);
  minimize(loss, step.parameters(), {.beta2 = 0.95, .weight_decay = 0.1});
  for (DeviceKind device : devices_here()) {
    CAPTURE(to_string(device));
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(model.module(), options));
    for (const std::string& name : parameter_names(file)) session->set_state(name, file.read(name));
    for (int64_t i = 0; i < 3; ++i) {
      const Bindings out = session->run("step", {{"ids", file.read("ids")},
                                                 {"targets", file.read("targets")},
                                                 {"lr", Tensor::scalar(1e-3f)}});
      CHECK(std::abs(out.at("loss").at(0) - losses.at(i)) <= 1e-5 * losses.at(i));
    }
    for (const std::string& name : parameter_names(file)) {
      if (name.ends_with("qkv.bias")) continue;
      CAPTURE(name);
      const Tensor want = trained.read(name);
      CHECK(distance(session->state(name), want) <= 1e-5 * norm2(want));
    }
  }
}

}  // namespace

TEST_CASE("parity: three AdamW steps of GPT-2, as a program trains") {
  check_training(parity_models()[0]);
}

TEST_CASE("parity: three AdamW steps of Llama, as a program trains") {
  check_training(parity_models()[1]);
}
