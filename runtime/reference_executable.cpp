// The reference as a device: op by op on the host, in the graph's own types or in f64.

#include <fmt/ranges.h>
#include <sinter/runtime/detail/backend.h>
#include <sinter/runtime/reference.h>

#include <chrono>
#include <optional>
#include <utility>

namespace sinter::detail {
namespace {

// What a module must go through to say what it computes; all other passes keep its meaning.
std::vector<PipelineStep> meaning_pipeline() {
  std::vector<PipelineStep> steps;
  for (std::string_view name : {"verify", "autodiff", "accumulate", "optimizer"})
    if (const PassInfo* pass = find_pass(name)) steps.push_back({pass, {}});
  return steps;
}

struct Entry {
  ReferenceProgram program;
  std::vector<Port> inputs, outputs;
};

class ReferenceExecutable final : public Executable {
 public:
  ReferenceExecutable(const Module& module, const CompileOptions& options)
      : options_(options), module_(module.clone()) {
    auto start = std::chrono::steady_clock::now();
    PassManager manager;
    manager.disabled = options.disabled;
    manager.print_after = options.print_after;
    manager.on_print = options.on_print;
    manager.dump_dir = options.dump_dir;
    manager.run(*module_, options.pipeline.empty() ? meaning_pipeline() : options.pipeline);
    remarks_ = manager.remarks();
    for (const Graph* graph : entry_graphs(*module_)) {
      Entry entry{ReferenceProgram(*graph, {.f64 = wide()}), {}, {}};
      for (Value v : graph->inputs()) entry.inputs.push_back(port(v.name(), v.type()));
      for (const GraphOutput& o : graph->outputs())
        entry.outputs.push_back(port(o.name, o.value.type()));
      entries_.emplace(graph->name(), std::move(entry));
    }
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  const Module& module() const override { return *module_; }
  const CompileOptions& options() const override { return options_; }
  const std::vector<Remark>& remarks() const override { return remarks_; }
  const CompileStats& stats() const override { return stats_; }
  const TuningRecord& tuning() const override { return tuning_; }
  const std::map<std::string, MemoryPlan>& plans() const override { return plans_; }
  std::string plan_text() const override {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back("@" + name);
    return fmt::format("device {}: op by op, no plan; graphs {}\n", to_string(options_.device),
                       fmt::join(names, ", "));
  }

  bool wide() const { return options_.device == DeviceKind::Reference64; }
  // The type in which values of this declared type are held.
  TensorType held(TensorType type) const {
    if (wide() && is_float(type.dtype)) type.dtype = DType::F64;
    return type;
  }
  const Entry& entry(std::string_view graph) const {
    auto found = entries_.find(graph);
    if (found == entries_.end()) throw Error(fmt::format("there is no entry graph @{}", graph));
    return found->second;
  }

 private:
  Port port(const std::string& name, const TensorType& type) const {
    Port p{name, type, -1, {}};
    for (size_t i = 0; i < module_->states.size(); ++i)
      if (module_->states[i].name == name) p.state = static_cast<int>(i);
    return p;
  }

  CompileOptions options_;
  std::unique_ptr<Module> module_;
  std::vector<Remark> remarks_;
  CompileStats stats_;
  TuningRecord tuning_;
  std::map<std::string, MemoryPlan> plans_;
  std::map<std::string, Entry, std::less<>> entries_;
};

class ReferenceSession final : public Session {
 public:
  explicit ReferenceSession(std::shared_ptr<const Executable> executable)
      : owner_(std::move(executable)),
        executable_(static_cast<const ReferenceExecutable&>(*owner_)) {
    for (const State& state : executable_.module().states)
      states_.emplace_back(executable_.held(state.type));
  }

  const Executable& executable() const override { return *owner_; }

  Bindings run(std::string_view graph, const Bindings& inputs) override {
    launch(graph, inputs);
    return outputs(graph);
  }

  void launch(std::string_view graph, const Bindings& inputs) override {
    const Entry& entry = executable_.entry(graph);
    check_bindings(graph, entry.inputs, inputs, executable_.wide());
    latest_.erase(std::string(graph));
    if (fault_) return;
    try {
      latest_.emplace(graph, evaluate(entry, inputs));
    } catch (const Error& error) {
      fault_ = error.diagnostic();
    }
  }
  Bindings outputs(std::string_view graph) override {
    executable_.entry(graph);
    if (std::optional<Diagnostic> fault = std::exchange(fault_, {})) throw Error(*fault);
    auto found = latest_.find(graph);
    if (found == latest_.end()) throw Error(fmt::format("@{} has not been run", graph));
    return found->second;
  }
  void synchronize() override {}

  Tensor state(std::string_view name) const override { return states_[index_of(name)].clone(); }
  void set_state(std::string_view name, const Tensor& value) override {
    const auto& states = executable_.module().states;
    size_t index = index_of(name);
    check_settable(states[index]);
    TensorType expected = states[index].type;
    TensorType held = executable_.held(expected);
    if (value.type() != held) require_type(fmt::format("state '{}'", name), expected, value.type());
    states_[index] = value.dtype() == held.dtype ? value.clone() : value.to(held.dtype);
    for (size_t i = 0; i < states.size(); ++i)
      if (states[i].cast_of == name)
        states_[i] = states_[index].to(executable_.held(states[i].type).dtype);
  }

 private:
  Bindings evaluate(const Entry& entry, const Bindings& inputs) {
    std::vector<Tensor> values;
    for (const Port& port : entry.inputs)
      values.push_back(port.state < 0 ? inputs.find(port.name)->second
                                      : states_[static_cast<size_t>(port.state)]);
    std::vector<Tensor> results = entry.program.run(values);
    Bindings outputs;
    for (size_t i = 0; i < results.size(); ++i) {
      const Port& port = entry.outputs[i];
      if (port.state < 0)
        outputs.emplace(port.name, std::move(results[i]));
      else
        states_[static_cast<size_t>(port.state)] = std::move(results[i]);
    }
    return outputs;
  }

  size_t index_of(std::string_view name) const {
    const auto& states = executable_.module().states;
    for (size_t i = 0; i < states.size(); ++i)
      if (states[i].name == name) return i;
    throw Error(fmt::format("there is no state '{}'", name));
  }

  std::shared_ptr<const Executable> owner_;
  const ReferenceExecutable& executable_;
  std::vector<Tensor> states_;
  std::map<std::string, Bindings, std::less<>> latest_;
  std::optional<Diagnostic> fault_;  // until somebody reads it
};

}  // namespace

std::shared_ptr<const Executable> compile_reference(const Module& module,
                                                    const CompileOptions& options) {
  return std::make_shared<ReferenceExecutable>(module, options);
}

std::unique_ptr<Session> make_reference_session(std::shared_ptr<const Executable> executable) {
  return std::make_unique<ReferenceSession>(std::move(executable));
}

}  // namespace sinter::detail
