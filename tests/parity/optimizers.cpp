// Three steps of every optimizer against PyTorch in f64: one step graph each, which trains a
// parameter p of its own on the loss sum(p g), whose gradient is the input g.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/dsl/model.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/optimizer.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/cases/devices.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <set>

using namespace sinter;
using namespace sinter::test;

namespace {

std::string shape_text(Shape shape, int64_t leading = -1) {
  if (leading >= 0) shape.insert(shape.begin(), leading);
  return TensorType{DType::F32, shape}.str();
}

// Graph @CASE of each case, over states CASE.
std::unique_ptr<Module> build(const SafetensorsFile& file) {
  std::string states, graphs;
  for (const auto& entry : file.metadata()) {
    const std::string type = shape_text(file.find(entry.first + ".p")->type.shape);
    states += fmt::format("state {}: {}\n", entry.first, type);
    graphs += fmt::format(
        "graph @{0}(%{0}: {1}, %g: {1}, %lr: f32[]) -> f32[] attributes {{loss = \"l\", "
        "wrt = [\"{0}\"], {2}}} {{\n"
        "  %q = mul %{0}, %g : {1}\n  %l = sum %q : f32[]\n  return %l\n}}\n",
        entry.first, type, entry.second);
  }
  return parse_module("module {target = \"host\"}\n" + states + graphs, "optimizers.sir");
}

// The distance in 2-norm, relative to what is right.
void check_near(const Tensor& given, const double* right, double tolerance) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < given.size(); ++i) {
    error += (given.at(i) - right[i]) * (given.at(i) - right[i]);
    norm += right[i] * right[i];
  }
  CHECK(std::sqrt(error) <= tolerance * std::sqrt(norm));
}

void check_device(DeviceKind device, double tolerance) {
  const SafetensorsFile file(data_path("golden/optimizers.safetensors"));
  CompileOptions options;
  options.device = device;
  auto session = make_session(compile(*build(file), options));
  for (const auto& entry : file.metadata()) {
    const std::string& name = entry.first;
    CAPTURE(name);
    const std::string rule = name.substr(0, name.find('_'));
    const Tensor g = file.read(name + ".g"), after = file.read(name + ".after");
    const Tensor p = file.read(name + ".p");
    session->set_state(name, p.to(DType::F32));
    // The cases of one rule share its count of updates.
    const std::string count = optimizer_count(rule);
    const bool counts = session->executable().module().find_state(count) != nullptr;
    if (counts) session->set_state(count, Tensor::scalar<int32_t>(0));
    for (int64_t step = 0; step < 3; ++step) {
      CAPTURE(step);
      std::vector<double> now(g.as<double>() + step * p.size(),
                              g.as<double>() + (step + 1) * p.size());
      session->run(name, {{"g", Tensor::from_doubles({DType::F32, p.shape()}, now)},
                          {"lr", device == DeviceKind::Reference64 ? Tensor::scalar(0.01)
                                                                   : Tensor::scalar(0.01f)}});
      check_near(session->state(name), after.as<double>() + step * p.size(), tolerance);
    }
    for (const auto& tensor : file.entries()) {
      if (!tensor.name.starts_with(name + ".")) continue;
      const std::string state = tensor.name.substr(name.size() + 1);
      if (state == "p" || state == "g" || state == "after") continue;
      CAPTURE(state);
      check_near(session->state(optimizer_state(rule, state, name)), file.read(tensor).as<double>(),
                 tolerance);
    }
    if (counts) CHECK(session->state(count).as<int32_t>()[0] == 3);
  }
}

}  // namespace

TEST_CASE("parity: three steps of every optimizer in f64") {
  const SafetensorsFile file(data_path("golden/optimizers.safetensors"));
  std::set<std::string> rules;
  for (const auto& entry : file.metadata())
    rules.insert(entry.first.substr(0, entry.first.find('_')));
  for (std::string_view rule : optimizer_names()) {
    CAPTURE(rule);
    CHECK(rules.contains(std::string(rule)));
  }
  check_device(DeviceKind::Reference64, 1e-12);
}

TEST_CASE("parity: three steps of every optimizer on every device") {
  for (DeviceKind device : devices_here()) {
    CAPTURE(to_string(device));
    check_device(device, 1e-5);
  }
}
