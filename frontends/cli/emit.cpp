#include <sinter/codegen/loops.h>
#include <sinter/codegen/schedule.h>
#include <sinter/frontends/cli/emit.h>
#include <sinter/runtime/cuda/nvrtc.h>

#include <set>
#include <vector>

namespace sinter {
namespace {

struct Launch {
  Kernel kernel;
  LoopProgram program;
};

std::vector<Launch> launches(const Module& module, const std::string& only) {
  std::vector<Launch> out;
  std::set<std::string> seen, symbols;
  for (const auto& graph : module.graphs()) {
    if (!only.empty() && graph->name() != only) continue;
    for (Op& op : *graph) {
      if (op.callee().empty() || !seen.insert(op.callee()).second) continue;
      Kernel kernel = build_kernel(*module.find(op.callee()), op.loc());
      LoopProgram program = lower(kernel, module.target);
      if (symbols.insert(program.symbol).second)
        out.push_back({std::move(kernel), std::move(program)});
    }
  }
  return out;
}

std::string resources(const Launch& launch, const Target& target) {
  cuda::CompileRequest request;
  request.name = launch.program.symbol;
  request.source = print_cuda(launch.program);
  request.arch = target.arch;
  cuda::CompiledUnit unit = cuda::compile(request);
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
      std::string text = print(launch.kernel);
      while (!text.empty() && text.back() == '\n') text.pop_back();
      out += text + " " + print(make_schedule(launch.kernel, module.target), launch.kernel) + "\n";
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
