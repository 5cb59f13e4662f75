#include <sinter/codegen/loops.h>
#include <sinter/codegen/schedule.h>
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
      if (op.callee().empty()) continue;
      table.of(op);
      if (ops.size() < programs.size()) ops.push_back(&op);
    }
  }
  std::vector<Launch> out;
  for (size_t i = 0; i < ops.size(); ++i) out.push_back({ops[i], std::move(programs[i])});
  return out;
}

std::string resources(const Launch& launch, const Target& target) {
  cuda::CompileRequest request;
  request.name = launch.program.symbol;
  request.source = print_cuda(launch.program);
  request.arch = target.arch;
  cuda::CompiledUnit unit = cuda::compile(request, &DiskCache::global());
  const cuda::KernelResources* reported = unit.find(launch.program.symbol);
  if (reported == nullptr)
    return fmt::format("{} {}: compiled, NVRTC reports no resources, block {}\n", target.arch,
                       launch.program.symbol, launch.program.block);
  const cuda::KernelResources& info = *reported;
  if (info.shared_bytes > target.shared_memory)
    throw DeviceError(fmt::format("{} needs {} bytes of shared memory, {} has {}",
                                  launch.program.symbol, info.shared_bytes, target.arch,
                                  target.shared_memory));
  if (int64_t{info.registers} * launch.program.block > 65536)
    throw DeviceError(fmt::format("{} needs {} registers in each of {} threads, a block has 65536",
                                  launch.program.symbol, info.registers, launch.program.block));
  return fmt::format("{} {}: {} registers, {} bytes spilled, {} bytes shared, block {}\n",
                     target.arch, launch.program.symbol, info.registers,
                     info.spill_store_bytes + info.spill_load_bytes, info.shared_bytes,
                     launch.program.block);
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
      out += resources(launch, module.target);
    } else {
      throw Error(
          fmt::format("--emit={}: expected ir, kernel, loops, cuda, cpp, cubin or plan", stage));
    }
  }
  return out;
}

}  // namespace sinter
