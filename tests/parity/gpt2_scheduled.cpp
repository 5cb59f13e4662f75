// The same GPT-2, its kernels scheduled for CUDA and run lane by lane on the host; and the norm of
// its gradients, as a program asks for it.

#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/tests/parity/gpt2.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("parity: GPT-2 on the interpreter, scheduled for CUDA") {
  const SafetensorsFile file = golden();
  Model model;
  build(model, file);
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  for (const char* target : {"sm_80", "sm_90a"}) {
    CAPTURE(target);
    options.target = target;
    auto session = make_session(compile(model.module(), options));
    for (const std::string& name : parameter_names(file)) session->set_state(name, file.read(name));
    check(session->run("step", {{"ids", file.read("ids")}, {"targets", file.read("targets")}}),
          file, 1e-5);
  }
}

TEST_CASE("parity: the norm of all gradients of GPT-2") {
  const SafetensorsFile file = golden();
  Model model;
  const Scope step = model.graph("step", Mode::Training);
  const Value loss = build_forward(step);
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
