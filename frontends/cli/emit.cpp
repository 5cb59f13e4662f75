#include <sinter/codegen/loops.h>
#include <sinter/codegen/schedule.h>
#include <sinter/codegen/template_launch.h>
#include <sinter/frontends/cli/emit.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/detail/kernel_table.h>
#include <sinter/runtime/disk_cache.h>

#include <vector>

namespace sinter {
namespace {

// A kernel, and the op that launches it first.
struct Launch {
  const Op* op;
  LoopProgram program;
};

std::vector<Launch> launches(const Module& module, const std::string& only) {
  std::vector<LoopProgram> programs;
  std::vector<const Op*> ops;
  detail::KernelTable table(module, programs);
  for (const auto& graph : module.graphs()) {
    if (!only.empty() && graph->name() != only) continue;
    for (Op& op : *graph) {
      if (op.callee().empty() || !detail::writes_elements(op)) continue;
      table.of(op);
      if (ops.size() < programs.size()) ops.push_back(&op);
    }
  }
  std::vector<Launch> out;
  for (size_t i = 0; i < ops.size(); ++i) out.push_back({ops[i], std::move(programs[i])});
  return out;
}

// The distinct kernel templates, in order of launch.
std::vector<TemplateKernel> templates(const Module& module, const std::string& only) {
  std::vector<TemplateKernel> kernels;
  detail::TemplateTable table(kernels);
  for (const auto& graph : module.graphs()) {
    if (!only.empty() && graph->name() != only) continue;
    for (Op& op : *graph) {
      if (op.native().empty()) continue;
      for (TemplateAction& action : template_actions(dense_call(op, module.target)))
        if (auto* launch = std::get_if<TemplateLaunch>(&action))
          table.intern(std::move(launch->kernel));
    }
  }
  return kernels;
}

// One kernel compiled: what it takes of a multiprocessor. `dynamic`: bytes of shared memory that
// its launch adds.
std::string resources(const std::string& symbol, std::string source, int block, int64_t dynamic,
                      bool fmad, const Target& target) {
  cuda::CompileRequest request;
  request.name = symbol;
  request.source = std::move(source);
  request.arch = target.arch;
  request.fmad = fmad;
  cuda::CompiledUnit unit = cuda::compile(request, &DiskCache::global());
  const cuda::KernelResources* reported = unit.find(symbol);
  if (reported == nullptr)
    return fmt::format("{} {}: compiled, NVRTC reports no resources, block {}\n", target.arch,
                       symbol, block);
  const cuda::KernelResources& info = *reported;
  int64_t shared = info.shared_bytes + dynamic;
  if (shared > target.shared_memory)
    throw DeviceError(fmt::format("{} needs {} bytes of shared memory, {} has {}", symbol, shared,
                                  target.arch, target.shared_memory));
  if (int64_t{info.registers} * block > target.registers)
    throw DeviceError(fmt::format("{} needs {} registers in each of {} threads, a block has {}",
                                  symbol, info.registers, block, target.registers));
  return fmt::format("{} {}: {} registers, {} bytes spilled, {} bytes shared, block {}\n",
                     target.arch, symbol, info.registers,
                     info.spill_store_bytes + info.spill_load_bytes, shared, block);
}

}  // namespace

std::string emit_kernels(const Module& module, const std::string& stage, const std::string& graph) {
  std::string out;
  for (const Launch& launch : launches(module, graph)) {
    if (stage == "kernel") {
      Kernel kernel = build_kernel(*module.find(launch.op->callee()), launch.op->loc());
      std::string text = print(kernel);
      while (!text.empty() && text.back() == '\n') text.pop_back();
      out += text + " " + print(make_schedule(kernel, module.target), kernel) + "\n";
    } else if (stage == "loops") {
      out += print(launch.program);
    } else if (stage == "cuda") {
      out += print_cuda(launch.program);
    } else if (stage == "cpp") {
      out += print_host(launch.program);
    } else if (stage == "cubin") {
      out += resources(launch.program.symbol, print_cuda(launch.program), launch.program.block, 0,
                       false, module.target);
    } else {
      throw Error(
          fmt::format("--emit={}: expected ir, kernel, loops, cuda, cpp, cubin or plan", stage));
    }
  }
  std::string printed;  // several kernels may share a source
  for (const TemplateKernel& kernel : templates(module, graph)) {
    if (stage == "cubin") {
      out += resources(kernel.symbol, kernel.source, kernel.block, kernel.shared_bytes, kernel.fmad,
                       module.target);
    } else if (stage == "cuda" && kernel.source != printed) {
      out += kernel.source;
      printed = kernel.source;
    }
  }
  return out;
}

}  // namespace sinter
