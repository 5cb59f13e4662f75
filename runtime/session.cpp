#include <fmt/ranges.h>
#include <sinter/runtime/detail/compiled_executable.h>

#include <algorithm>
#include <set>

namespace sinter::detail {

void check_bindings(std::string_view graph, std::span<const Port> ports, const Bindings& given,
                    bool widen) {
  for (const auto& [name, value] : given) {
    const Port* port = nullptr;
    for (const Port& p : ports)
      if (p.name == name) port = &p;
    if (port == nullptr) {
      std::vector<std::string> names;
      for (const Port& p : ports)
        if (p.state < 0) names.push_back(p.name);
      throw Error(fmt::format(
          "@{} has no input '{}'; {}", graph, name,
          names.empty() ? "it takes none" : fmt::format("it takes {}", fmt::join(names, ", "))));
    }
    if (port->state >= 0)
      throw Error(fmt::format("'{}' is a state of the session, not an input of @{}", name, graph));
    TensorType expected = port->type;
    if (widen && is_float(expected.dtype) && value.dtype() == DType::F64)
      expected.dtype = DType::F64;
    require_type(fmt::format("input '{}'", name), expected, value.type());
  }
  for (const Port& port : ports)
    if (port.state < 0 && !given.contains(port.name))
      throw Error(
          fmt::format("input '{}' ({}) of @{} is not given", port.name, port.type.str(), graph));
}

void check_settable(const State& state) {
  if (!state.cast_of.empty())
    throw Error(
        fmt::format("state '{}' is a copy of '{}', and follows it", state.name, state.cast_of));
}

namespace {

class CompiledSession final : public Session {
 public:
  explicit CompiledSession(std::shared_ptr<const Executable> executable)
      : executable_(std::move(executable)),
        compiled_(static_cast<const CompiledExecutable&>(*executable_).compiled),
        memory_(static_cast<const CompiledExecutable&>(*executable_).backend->make_memory()) {}

  const Executable& executable() const override { return *executable_; }

  Bindings run(std::string_view graph, const Bindings& inputs) override {
    launch(graph, inputs);
    return outputs(graph);
  }

  void launch(std::string_view graph, const Bindings& inputs) override {
    const Program& program = program_of(graph);
    check_bindings(graph, program.inputs, inputs);
    for (const Port& port : program.inputs)
      if (port.state < 0)
        memory_->write_input(program, port, inputs.find(port.name)->second.data());
    memory_->launch(program);
    launched_.insert(&program);
    if (std::find(unread_.begin(), unread_.end(), &program) == unread_.end())
      unread_.push_back(&program);
  }

  Bindings outputs(std::string_view graph) override {
    const Program& program = program_of(graph);
    if (!launched_.contains(&program)) throw Error(fmt::format("@{} has not been run", graph));
    DeviceMemory::Results results = memory_->results(program);
    for (const Program* ran : unread_) {
      auto fault = first_fault(*ran, results.faults);
      if (!fault) continue;
      // What was launched with it has not taken place.
      for (const Program* each : unread_) launched_.erase(each);
      unread_.clear();
      memory_->clear_faults();
      throw Error(*fault);
    }
    unread_.clear();
    Bindings values;
    for (const Port& port : program.outputs)
      if (port.state < 0)
        values.emplace(port.name,
                       Tensor::from_bytes(port.type, results.outputs + port.place.offset));
    return values;
  }

  void synchronize() override { memory_->synchronize(); }

  Tensor state(std::string_view name) const override {
    size_t index = state_index(name);
    Tensor value = Tensor::uninitialized(compiled_.module->states[index].type);
    memory_->read_state(compiled_.state_offsets[index], value.bytes(), value.data());
    return value;
  }

  void set_state(std::string_view name, const Tensor& value) override {
    const auto& states = compiled_.module->states;
    size_t index = state_index(name);
    check_settable(states[index]);
    require_type(fmt::format("state '{}'", name), states[index].type, value.type());
    memory_->write_state(compiled_.state_offsets[index], value.bytes(), value.data());
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].cast_of != name) continue;
      Tensor copy = value.to(states[i].type.dtype);
      memory_->write_state(compiled_.state_offsets[i], copy.bytes(), copy.data());
    }
  }

 private:
  const Program& program_of(std::string_view graph) const {
    auto found = compiled_.programs.find(graph);
    if (found != compiled_.programs.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, program] : compiled_.programs) names.push_back("@" + name);
    throw Error(
        fmt::format("there is no entry graph @{}; there are {}", graph, fmt::join(names, ", ")));
  }

  size_t state_index(std::string_view name) const {
    const auto& states = compiled_.module->states;
    for (size_t i = 0; i < states.size(); ++i)
      if (states[i].name == name) return i;
    throw Error(fmt::format("there is no state '{}'", name));
  }

  std::shared_ptr<const Executable> executable_;
  const CompiledModule& compiled_;
  std::unique_ptr<DeviceMemory> memory_;
  std::set<const Program*> launched_;
  std::vector<const Program*> unread_;  // launched since results were read, in order
};

}  // namespace

std::unique_ptr<Session> make_compiled_session(std::shared_ptr<const Executable> executable) {
  return std::make_unique<CompiledSession>(std::move(executable));
}

}  // namespace sinter::detail
