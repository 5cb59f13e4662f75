#pragma once
// A compiled model with its state: what an application runs.
//
//   Program program(model);
//   program.init(seed);
//   Bindings out = program.run("step", {{"x", x}, {"lr", Tensor::scalar(1e-3f)}});
//
// Inputs that are not given follow the convention: `seed` is that of init, `step` counts this
// graph's runs from 0, `offset` is 0. These three may be given to graphs that do not take them.

#include <sinter/frontends/dsl/model.h>
#include <sinter/runtime/executable.h>

namespace sinter {

// The best device that works here: a GPU, else the CPU, else the reference.
DeviceKind best_device();
inline CompileOptions best_device_options() {
  CompileOptions options;
  options.device = best_device();
  return options;
}

// `seed` as random ops take it: u32[2], low word first.
Tensor seed_tensor(uint64_t seed);

class Program {
 public:
  explicit Program(const Model& model, const CompileOptions& options = best_device_options());

  // Runs the graph `init`; the counts of runs start again.
  void init(uint64_t seed = 0);
  Bindings run(std::string_view graph, Bindings inputs = {});
  // As run, without waiting: the next run reports what goes wrong.
  void launch(std::string_view graph, Bindings inputs = {});

  uint64_t seed() const { return seed_; }
  Tensor state(std::string_view name) const { return session_->state(name); }
  void set_state(std::string_view name, const Tensor& value) { session_->set_state(name, value); }
  Session& session() { return *session_; }
  const Executable& executable() const { return *executable_; }

 private:
  Bindings filled(std::string_view graph, Bindings inputs);

  std::shared_ptr<const Executable> executable_;
  std::unique_ptr<Session> session_;
  std::map<std::string, uint32_t, std::less<>> runs_;
  uint64_t seed_ = 0;
};

}  // namespace sinter
