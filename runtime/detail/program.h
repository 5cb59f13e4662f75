#pragma once
// A compiled module as every device runs it: per entry graph a list of steps over places in a few
// blocks of memory. Nothing here knows a device.
//
// Blocks: the states (one layout for the whole module); per entry graph its inputs and its outputs;
// one arena that all graphs share. A run reads State and Input and writes Arena and Output. State
// it writes by steps that are marked, and those stand behind a gate, which stands behind all that
// may find a fault: once the session's record holds one, of any graph, they do nothing.

#include <sinter/codegen/loops.h>
#include <sinter/codegen/template_launch.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/plan.h>
#include <sinter/runtime/executable.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace sinter::detail {

enum class Space : uint8_t { Arena, State, Input, Output };
constexpr int kSpaces = 4;

struct Place {
  Space space = Space::Arena;
  int64_t offset = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

// One launch of a kernel.
struct KernelStep {
  int kernel = -1;  // in CompiledModule::kernels
  std::vector<Place> buffers;
  int first_fault = 0;  // of the kernel's faults among the program's
  std::vector<uint32_t> sites;
  bool writes_state = false;
  const Op* op = nullptr;
};
// A product, left to the device's library.
struct MatmulStep {
  const Op* op = nullptr;
  Place a, b, d;
  std::optional<Place> c;
};
// An op that kernel templates carry out: launches and fills, in order.
struct TemplateStep {
  struct Launch {
    int kernel = -1;  // in CompiledModule::templates
    int64_t grid = 1;
    std::vector<TemplateArgument> arguments;
  };
  const Op* op = nullptr;
  std::vector<std::variant<Launch, TemplateFill>> actions;
  std::vector<Place> operands, results;  // of absent operands: anything
  std::vector<std::vector<int64_t>> operand_strides, result_strides;  // elements
  Place scratch;

  Place place(const TemplatePointer& pointer) const;
};
struct CopyStep {
  Place from, to;
  int64_t bytes = 0;
  bool writes_state = false;
};
// Before the first step that writes state: looks whether there is a fault.
struct GateStep {};
using Step = std::variant<KernelStep, MatmulStep, TemplateStep, CopyStep, GateStep>;

// An input or output of an entry graph.
struct Port {
  std::string name;
  TensorType type;
  int state = -1;  // index among the module's states; -1: none
  Place place;     // states: State; others: Input or Output
};

// Bytes of the arena that nobody reads once so many steps are done.
struct DeadRange {
  size_t steps = 0;
  int64_t offset = 0, bytes = 0;
};

struct Program {
  const Graph* graph = nullptr;
  std::vector<Step> steps;
  std::vector<Port> inputs, outputs;
  std::vector<KernelFault> faults;  // in order of execution
  int first_fault = 0;              // of them, in the session's record
  std::vector<DeadRange> dead;      // in order
  int64_t arena_bytes = 0, input_bytes = 0, output_bytes = 0;

  const Port* find_input(std::string_view name) const;
};

struct CompiledModule {
  std::unique_ptr<Module> module;  // after the pipeline
  std::map<std::string, MemoryPlan> plans;
  std::vector<LoopProgram> kernels;       // distinct ones
  std::vector<TemplateKernel> templates;  // distinct ones
  std::map<std::string, Program, std::less<>> programs;
  std::vector<int64_t> state_offsets;  // by state
  int64_t state_bytes = 0;
  int64_t arena_bytes = 0;  // the largest of all programs
  int num_faults = 0;       // of all programs: the slots of a session's fault record
  // Where the ops stood before they were fused, by name: a fusion knows its lines, but not which of
  // them made which op.
  std::map<std::string, std::vector<SourceLocation>, std::less<>> places;
};

// Fills kernels, programs and state layout from module and plans.
void build_programs(CompiledModule& compiled);

// The message of the program's first fault in a session's record, with its place; null when there
// is none.
std::unique_ptr<Diagnostic> first_fault(const Program& program, const FaultSlot* record);
constexpr FaultSlot kNoFault{INT64_MAX, 0};

// What plan.txt holds.
std::string plan_text(const CompiledModule& compiled, const CompileOptions& options);
// The comment above a dumped kernel: each launch with its IR ops, the user's names and lines.
std::string kernel_header(const CompiledModule& compiled, int kernel);

}  // namespace sinter::detail
