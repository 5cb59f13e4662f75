// A GPT-2 and a Llama of two layers against PyTorch in f64, from the same weights and data: loss,
// logits, every parameter's gradient, and three AdamW steps.

#include <sinter/runtime/reference.h>
#include <sinter/tests/cases/devices.h>
#include <sinter/tests/parity/model.h>

using namespace sinter;
using namespace sinter::test;

namespace {

// Any graph on the f64 reference.
Bindings run_f64(const Graph& graph, const Bindings& bindings) {
  std::vector<Tensor> in;
  for (Value input : graph.inputs()) in.push_back(bindings.at(input.name()));
  const std::vector<Tensor> out = Reference({.f64 = true}).run(graph, in);
  Bindings named;
  for (size_t i = 0; i < out.size(); ++i) named.emplace(graph.outputs()[i].name, out[i]);
  return named;
}

Bindings run_on(DeviceKind device, const Model& model, const SafetensorsFile& file,
                std::vector<std::string> disabled = {}) {
  CompileOptions options;
  options.device = device;
  options.disabled = std::move(disabled);
  auto session = make_session(compile(model.module(), options));
  for (const std::string& name : parameter_names(file)) session->set_state(name, file.read(name));
  return session->run("step", {{"ids", file.read("ids")}, {"targets", file.read("targets")}});
}

bool here(DeviceKind kind) {
  const std::vector<DeviceKind> kinds = devices_here();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Loss and gradients against PyTorch, and the same bits whatever passes are off.
void check_device(const ParityModel& m, DeviceKind device) {
  CAPTURE(m.name);
  const SafetensorsFile file = golden(m);
  Model model;
  build(model, m, file);
  const Bindings result = run_on(device, model, file);
  check(result, file, 1e-5);
  for (const char* pass : {"fuse", "cse", "recompute", "layout", "plan-memory"}) {
    CAPTURE(pass);
    const Bindings other = run_on(device, model, file, {pass});
    for (const auto& entry : result) {
      const auto& name = entry.first;  // clang 14 captures no structured binding
      const auto& value = entry.second;
      CAPTURE(name);
      CHECK(value.same_bits(other.at(name)));
    }
  }
}

// AdamW on every parameter, written out with the op.
void check_adamw_f64(const ParityModel& m) {
  CAPTURE(m.name);
  const SafetensorsFile file = golden(m), trained = golden(m, "_adamw");
  const std::vector<std::string> names = parameter_names(file);
  const Tensor losses = trained.read("losses");

  // The step's graph, with an update of every parameter.
  Model model;
  Graph& graph = build(model, m, file);
  const Value t = graph.add_input("t", {DType::I32, {}});
  const Value lr = graph.add_input("lr", {DType::F32, {}});
  for (const std::string& name : names) {
    const Value p = graph.find_input(name);
    Value g;
    for (const GraphOutput& output : graph.outputs())
      if (output.name == "grad." + name) g = output.value;
    const Value mean = graph.add_input("m." + name, p.type());
    const Value square = graph.add_input("v." + name, p.type());
    const AdamWAttrs attrs{0.9, 0.95, 1e-8, p.rank() >= 2 ? 0.1 : 0.0};
    const AdamWResult next = adamw(p, g, mean, square, t, lr, attrs);
    graph.add_output("p." + name, next.p);
    graph.add_output("m." + name, next.m);
    graph.add_output("v." + name, next.v);
  }

  Bindings bindings = inputs(file);
  for (const std::string& name : names)
    for (const char* moment : {"m.", "v."})
      bindings.insert_or_assign(moment + name, Tensor({DType::F64, file.find(name)->type.shape}));
  bindings.insert_or_assign("lr", Tensor::full({DType::F64, {}}, 1e-3));
  for (int step = 1; step <= 3; ++step) {
    bindings.insert_or_assign("t", Tensor::scalar<int32_t>(step));
    const Bindings out = run_f64(graph, bindings);
    CHECK(std::abs(out.at("loss").at(0) - losses.at(step - 1)) <= 1e-12 * losses.at(step - 1));
    for (const std::string& name : names) {
      bindings.insert_or_assign(name, out.at("p." + name));
      for (const char* moment : {"m.", "v."})
        bindings.insert_or_assign(moment + name, out.at(moment + name));
    }
  }
  for (const std::string& name : names) {
    CAPTURE(name);
    const Tensor want = trained.read(name);
    // The key bias moves by what rounding leaves of a gradient that is 0.
    const double tolerance = name.ends_with("qkv.bias") ? 1e-10 : 1e-12;
    CHECK(distance(bindings.at(name), want) <= tolerance * norm2(want));
  }
}

}  // namespace

TEST_CASE("parity: models on the f64 reference") {
  for (const ParityModel& m : parity_models()) {
    CAPTURE(m.name);
    const SafetensorsFile file = golden(m);
    REQUIRE(parameter_names(file).size() == (m.config.style == nn::GptStyle::Gpt2 ? 28 : 19));
    Model model;
    check(run_f64(build(model, m, file), inputs(file)), file, 1e-12);
  }
}

TEST_CASE("parity: models on the reference in f32") {
  for (const ParityModel& m : parity_models()) {
    CAPTURE(m.name);
    const SafetensorsFile file = golden(m);
    Model model;
    build(model, m, file);
    check(run_on(DeviceKind::Reference, model, file), file, 1e-5);
  }
}

TEST_CASE("parity: models on the interpreter") {
  for (const ParityModel& m : parity_models()) check_device(m, DeviceKind::Interpreter);
}

TEST_CASE("parity: GPT-2 on the host") {
  if (!here(DeviceKind::Cpu)) SINTER_SKIP("no host compiler");
  check_device(parity_models()[0], DeviceKind::Cpu);
}

TEST_CASE("parity: Llama on the host") {
  if (!here(DeviceKind::Cpu)) SINTER_SKIP("no host compiler");
  check_device(parity_models()[1], DeviceKind::Cpu);
}

TEST_CASE("parity: models on CUDA") {
  if (!here(DeviceKind::Cuda)) SINTER_SKIP("no GPU");
  for (const ParityModel& m : parity_models()) check_device(m, DeviceKind::Cuda);
}

TEST_CASE("parity: three AdamW steps of models in f64") {
  for (const ParityModel& m : parity_models()) check_adamw_f64(m);
}
