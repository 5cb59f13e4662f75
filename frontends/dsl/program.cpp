#include <sinter/frontends/dsl/program.h>

namespace sinter {

DeviceKind best_device() {
  std::vector<DeviceEntry> devices = list_devices();
  for (DeviceKind kind : {DeviceKind::Cuda, DeviceKind::Cpu})
    for (const DeviceEntry& d : devices)
      if (d.kind == kind && d.unavailable.empty()) return kind;
  return DeviceKind::Reference;
}

Tensor seed_tensor(uint64_t seed) {
  return Tensor::from<uint32_t>({2},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

Program::Program(const Model& model, const CompileOptions& options)
    : executable_(compile(model.module(), options)), session_(make_session(executable_)) {}

void Program::init(uint64_t seed) {
  seed_ = seed;
  runs_.clear();
  run("init");
  runs_.clear();
}

Bindings Program::run(std::string_view graph, Bindings inputs) {
  Bindings outputs = session_->run(graph, filled(graph, std::move(inputs)));
  ++runs_.find(graph)->second;
  return outputs;
}

void Program::launch(std::string_view graph, Bindings inputs) {
  session_->launch(graph, filled(graph, std::move(inputs)));
  ++runs_.find(graph)->second;
}

Bindings Program::filled(std::string_view graph, Bindings inputs) {
  const Graph* g = executable_->module().find(graph);
  if (g == nullptr) throw Error(fmt::format("there is no graph @{}", graph));
  uint32_t& count = runs_.try_emplace(std::string(graph), 0).first->second;
  auto fill = [&](const char* name, auto&& make) {
    if (!g->find_input(name))
      inputs.erase(name);
    else if (!inputs.contains(name))
      inputs.emplace(name, make());
  };
  fill("seed", [&] { return seed_tensor(seed_); });
  fill("step", [&] { return Tensor::scalar(count); });
  fill("offset", [] { return Tensor::scalar(int64_t{0}); });
  return inputs;
}

}  // namespace sinter
