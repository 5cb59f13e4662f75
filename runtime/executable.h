#pragma once
// Compiling a module, and running it.
//
// `compile` runs the pipeline on a copy of the module and gives an immutable Executable: for each
// entry graph a list of steps (kernels, matmuls), a memory plan, and what must be known to run it
// on its device. A Session owns the state, one arena and the input slots, and runs entry graphs;
// all entry graphs share state by name.

#include <sinter/ir/graph.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/compile_reason.h>
#include <sinter/runtime/tensor.h>
#include <sinter/runtime/tuning.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sinter {

enum class DeviceKind : uint8_t {
  Reference,    // op by op on the host, in the graph's own types
  Reference64,  // the same with every float type as f64
  Interpreter,  // scheduled loops, lane by lane, with checks
  Cpu,          // kernels through the system's C++ compiler, OpenBLAS
  Cuda,         // kernels through NVRTC, cuBLASLt, one CUDA graph per entry graph
};
std::string_view to_string(DeviceKind kind);

struct MemoryInfo {
  int64_t free = 0, total = 0;  // bytes
};

struct CompileOptions {
  DeviceKind device = DeviceKind::Cpu;
  int device_index = 0;  // Cuda: which one
  // What the passes plan for. Empty: the device's own (Cpu: host with its cores; Cuda: the card;
  // Interpreter: the module's target).
  std::string target;
  std::vector<std::string> disabled;   // passes
  std::vector<PipelineStep> pipeline;  // empty: the default one
  std::vector<std::string> print_after;
  std::string dump_dir;     // empty: SINTER_DUMP, or none
  bool use_cache = true;    // the disk cache
  std::string cache_dir;    // empty: SINTER_CACHE, or the user's cache folder
  int64_t cache_limit = 0;  // bytes that the folder may hold; 0: SINTER_CACHE_LIMIT, or 2 GiB
  // Shared memory that a block may use, in bytes, where the target has more: kernels are then made
  // as for a smaller card. 0: SINTER_SHARED_MEMORY, or all that there is.
  int64_t shared_memory = 0;
  // A plan that takes more bytes of the device's memory is refused (OutOfMemory, see memory.h). 0:
  // as much as the device has free.
  int64_t memory = 0;
  // Cuda: times the ways to carry out each product, and keeps the fastest in the record. Without it
  // a product is carried out as `tuning` says, or as the library's heuristic has it.
  bool tune = false;
  TuningRecord tuning;  // made by an earlier compile; of another card or library: ignored
  std::optional<MemoryInfo> memory_info;  // in place of what the device says
  // Cpu: the C++ compiler, a path or a name on PATH. Empty: SINTER_CXX, CXX, or the first found.
  std::string host_compiler;
  // Cuda: the NVRTC library, or the folder of the CUDA libraries. Empty: SINTER_NVRTC, or where the
  // loader finds them. A process loads them once: naming another one after that is a DeviceError.
  std::string nvrtc;
  std::function<void(const std::string&)> on_print;
};

struct CompileStats {
  double seconds = 0;                // from the call to a runnable executable
  int kernels = 0;                   // distinct ones
  int compiled = 0;                  // sent to NVRTC or the host compiler
  int cached = 0;                    // found in the disk cache
  std::vector<CompiledFor> reasons;  // why, for each unit that was compiled
  std::vector<std::pair<std::string, double>> phases;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // After the pipeline.
  virtual const Module& module() const = 0;
  virtual const CompileOptions& options() const = 0;
  virtual const std::vector<Remark>& remarks() const = 0;
  virtual const CompileStats& stats() const = 0;
  // The timed choices in force; empty but for Cuda.
  virtual const TuningRecord& tuning() const = 0;
  // By entry graph; empty for the reference.
  virtual const std::map<std::string, MemoryPlan>& plans() const = 0;
  // What plan.txt holds: per launch its ordinal, symbol, IR ops and the user's lines; memory; the
  // numerics options in force.
  virtual std::string plan_text() const = 0;
};

// Throws Error (the user's module), DeviceError (device or compiler missing or failing).
std::shared_ptr<const Executable> compile(const Module& module, const CompileOptions& options = {});

// Named tensors of one run.
using Bindings = std::map<std::string, Tensor, std::less<>>;

class Session {
 public:
  virtual ~Session() = default;
  virtual const Executable& executable() const = 0;

  // Runs an entry graph with its inputs that are no states; the outputs that are no states. State
  // outputs become the new state. Bindings are refused, before anything runs, when a name is
  // unknown or missing, or a type differs (both sides are named). Throws Error for an index out of
  // range, with op, position, value and limit; the state is then what it was before.
  virtual Bindings run(std::string_view graph, const Bindings& inputs) = 0;
  // As run, without waiting or reading back; the outputs of the latest run are then in `outputs`,
  // which throws what `run` would. Until `run` or `outputs` of any graph has thrown it, an index
  // out of range keeps all graphs of the session from changing the state: no step is taken after a
  // failed one. What was launched since outputs were last read then counts as not run.
  virtual void launch(std::string_view graph, const Bindings& inputs) = 0;
  virtual Bindings outputs(std::string_view graph) = 0;
  virtual void synchronize() = 0;

  virtual Tensor state(std::string_view name) const = 0;
  // Checked by name, dtype and shape. Copies of the state follow (State::cast_of); a copy itself
  // cannot be set.
  virtual void set_state(std::string_view name, const Tensor& value) = 0;
};

// State starts as zeros; run the module's `init` graph, or set it.
std::unique_ptr<Session> make_session(std::shared_ptr<const Executable> executable);

struct DeviceEntry {
  DeviceKind kind;
  std::string name;         // "cpu (2 cores)", "cuda:0 NVIDIA H200 sm_90a"
  std::string unavailable;  // why it cannot be used; "" when it can
};
std::vector<DeviceEntry> list_devices();

}  // namespace sinter
