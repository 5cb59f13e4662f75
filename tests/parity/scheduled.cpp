// The same models, their kernels scheduled for CUDA and run lane by lane on the host; and the norm
// of GPT-2's gradients, as a program asks for it.

#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/tests/parity/model.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("parity: models on the interpreter, scheduled for CUDA") {
  for (const ParityModel& m : parity_models()) {
    CAPTURE(m.name);
    const SafetensorsFile file = golden(m);
    Model model;
    build(model, m, file);
    CompileOptions options;
    options.device = DeviceKind::Interpreter;
    for (const char* target : {"sm_80", "sm_90a"}) {
      CAPTURE(target);
      options.target = target;
      auto session = make_session(compile(model.module(), options));
      for (const std::string& name : parameter_names(file))
        session->set_state(name, file.read(name));
      check(session->run("step", {{"ids", file.read("ids")}, {"targets", file.read("targets")}}),
            file, 1e-5);
    }
  }
}

TEST_CASE("parity: the norm of all gradients of GPT-2") {
  const ParityModel& m = parity_models()[0];
  const SafetensorsFile file = golden(m);
  Model model;
  const Scope step = model.graph("step", Mode::Training);
  const Value loss = build_forward(step, m);
  minimize(loss, step.parameters(), AdamW{}, {.grad_norm = "norm"});
  CompileOptions options;
  options.device = DeviceKind::Reference64;
  auto session = make_session(compile(model.module(), options));
  double all = 0;
  for (const std::string& name : parameter_names(file)) {
    session->set_state(name, file.read(name));
    all = std::hypot(all, norm2(file.read("grad." + name)));
  }
  const Bindings out = session->run(
      "step",
      {{"ids", file.read("ids")}, {"targets", file.read("targets")}, {"lr", Tensor::scalar(1e-3)}});
  CHECK(std::abs(out.at("norm").at(0) - all) <= 1e-12 * all);
}
