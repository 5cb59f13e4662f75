#pragma once
// What a device adds to the common part of executables and sessions.

#include <sinter/runtime/detail/program.h>

namespace sinter::detail {

// The memory of one session on a device, and running programs in it. All blocks start as zeros.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Copies the host's bytes into an input; they may change once the call returns.
  virtual void write_input(const Program& program, const Port& port, const void* data) = 0;
  // All steps and the commit, in order after what was launched before; need not wait.
  virtual void launch(const Program& program) = 0;
  virtual void synchronize() = 0;
  // Waits for all that was launched; the outputs of the program's latest run and the session's
  // fault record, valid until the next call on this object.
  struct Results {
    const unsigned char* outputs = nullptr;  // the Output block
    const FaultSlot* faults = nullptr;
  };
  virtual Results results(const Program& program) = 0;
  // A fault stays recorded, and keeps every program from committing, until this.
  virtual void clear_faults() = 0;
  virtual void read_state(int64_t offset, int64_t bytes, void* data) = 0;
  virtual void write_state(int64_t offset, int64_t bytes, const void* data) = 0;
};

// The compiled kernels of one module on a device; immutable.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<DeviceMemory> make_memory() const = 0;
  // What plan.txt says of numerics and libraries; one line each.
  virtual std::string describe() const = 0;
};

// Counts what compiling took; `compiled` must outlive the backend.
struct BuildContext {
  const CompiledModule& compiled;
  const CompileOptions& options;
  std::string dump_dir;  // kernels are dumped below it when not empty
  CompileStats& stats;
  TuningRecord& tuning;  // filled by the backend

  // Counts the kernels of a unit as compiled for this reason, or as found in the cache for "".
  void note_unit(const std::string& unit, std::vector<std::string> symbols,
                 std::string reason) const;
};
std::unique_ptr<Backend> make_interpreter_backend(const BuildContext& context);
std::unique_ptr<Backend> make_cpu_backend(const BuildContext& context);
std::unique_ptr<Backend> make_cuda_backend(const BuildContext& context);

// Writes one kernel's source with its header comment to DIR/kernels/NN_symbol.EXT; the path, or ""
// when there is no dump or it cannot be written (a warning).
std::string dump_kernel(const BuildContext& context, int kernel, const std::string& source,
                        std::string_view extension);
void write_dump(const std::string& path, const std::string& text);

// Op by op on the host.
std::shared_ptr<const Executable> compile_reference(const Module& module,
                                                    const CompileOptions& options);
std::unique_ptr<Session> make_reference_session(std::shared_ptr<const Executable> executable);
// The session of an executable that compile_reference did not make.
std::unique_ptr<Session> make_compiled_session(std::shared_ptr<const Executable> executable);

// Refuses names that are unknown or missing and types that differ. `ports` are a graph's inputs;
// those that are states are not bound. `widen`: floats may also be given as f64.
void check_bindings(std::string_view graph, std::span<const Port> ports, const Bindings& given,
                    bool widen = false);
// Refuses to set a state that is derived from another one.
void check_settable(const State& state);

}  // namespace sinter::detail
