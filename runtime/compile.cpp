#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/detail/compiled_executable.h>
#include <sinter/runtime/detail/memory_check.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/host_compiler.h>
#include <sinter/runtime/log.h>
#include <sinter/runtime/thread_pool.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace sinter {

using detail::BuildContext;
using detail::CompiledExecutable;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Target host_target() {
  Target target;
  target.multiprocessors = ThreadPool::global().size();
  return target;
}

Target cuda_target(int ordinal) {
  cuda::Device::get(ordinal);  // throws, saying what to do, where there is none
  cuda::DeviceInfo info = cuda::device_info(ordinal);
  Target target;
  target.arch = info.arch();
  target.multiprocessors = info.multiprocessors;
  target.warp = info.warp;
  target.threads = info.threads_per_block;
  target.threads_per_multiprocessor = info.threads_per_multiprocessor;
  target.registers = info.registers_per_multiprocessor;
  target.shared_memory = info.shared_per_block;
  target.shared_per_multiprocessor = info.shared_per_multiprocessor;
  target.l2 = info.l2;
  target.vector_bytes = 16;
  target.memory = info.memory;
  return target;
}

// The cap on a block's shared memory, or 0.
int64_t shared_memory_cap(const CompileOptions& options) {
  if (options.shared_memory < 0)
    throw Error(fmt::format("shared_memory is {}, less than nothing", options.shared_memory));
  if (options.shared_memory > 0) return options.shared_memory;
  const char* text = std::getenv("SINTER_SHARED_MEMORY");
  if (text == nullptr || *text == '\0') return 0;
  const char* end = text + std::strlen(text);
  int64_t bytes = 0;
  auto [rest, error] = std::from_chars(text, end, bytes);
  if (error != std::errc() || rest != end || bytes < 0)
    throw Error(fmt::format("SINTER_SHARED_MEMORY is '{}', not a number of bytes", text));
  return bytes;
}

// What the passes plan for.
Target choose_target(const CompileOptions& options, const Target& of_module) {
  std::optional<Target> named;
  if (!options.target.empty()) {
    named = Target::named(options.target);
    if (!named) throw Error(fmt::format("there is no target '{}'", options.target));
  }
  switch (options.device) {
    case DeviceKind::Cpu: {
      Target own = host_target();
      if (named && named->arch != own.arch)
        throw Error(fmt::format("device cpu runs code for target host, not {}", named->arch));
      return own;
    }
    case DeviceKind::Cuda: {
      Target own = cuda_target(options.device_index);
      if (named && named->arch != own.arch)
        throw Error(fmt::format("device cuda:{} is {}, not {}", options.device_index, own.arch,
                                named->arch));
      return own;
    }
    default:
      return named ? *named : of_module;
  }
}

// All passes, with a look at the ops before they are fused.
void run_passes(PassManager& manager, const std::vector<PipelineStep>& steps,
                detail::CompiledModule& compiled) {
  auto fuse = std::find_if(steps.begin(), steps.end(),
                           [](const PipelineStep& step) { return step.pass->name == "fuse"; });
  manager.run(*compiled.module, {steps.begin(), fuse});
  for (const auto& graph : compiled.module->graphs())
    for (Op& op : *graph)
      if (op.loc().known()) compiled.places[std::string(op.name())].push_back(op.loc());
  manager.run(*compiled.module, {fuse, steps.end()});
}

std::unique_ptr<detail::Backend> make_backend(const BuildContext& context) {
  switch (context.options.device) {
    case DeviceKind::Cpu:
      return detail::make_cpu_backend(context);
    case DeviceKind::Cuda:
      return detail::make_cuda_backend(context);
    default:
      return detail::make_interpreter_backend(context);
  }
}

}  // namespace

std::string_view to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::Reference:
      return "reference";
    case DeviceKind::Reference64:
      return "reference64";
    case DeviceKind::Interpreter:
      return "interpreter";
    case DeviceKind::Cpu:
      return "cpu";
    case DeviceKind::Cuda:
      return "cuda";
  }
  return "";
}

namespace detail {

void BuildContext::note_unit(const std::string& unit, std::vector<std::string> symbols,
                             std::string reason) const {
  int count = static_cast<int>(symbols.size());
  if (reason.empty()) {
    stats.cached += count;
    return;
  }
  stats.compiled += count;
  std::string names;
  for (const std::string& name : symbols) names += (names.empty() ? "" : ", ") + name;
  log_info(fmt::format("compiled unit {}{}: {}", unit,
                       names.empty() || names == unit ? "" : fmt::format(" ({})", names), reason));
  stats.reasons.push_back({unit, std::move(symbols), std::move(reason)});
}

std::string CompiledExecutable::plan_text() const {
  const Target& target = compiled.module->target;
  std::string recompute;
  for (const Remark& r : pass_remarks)
    if (r.pass == "recompute")
      recompute +=
          fmt::format("  {}{}\n", r.message, r.location.known() ? " at " + r.location.str() : "");
  if (!recompute.empty()) recompute = "\nactivations\n" + recompute;
  return detail::plan_text(compiled, compile_options) + recompute +
         fmt::format("\nnumerics: no contraction, no fast-math; reductions split for {} {}; {}\n",
                     target.multiprocessors,
                     target.is_cuda() ? "multiprocessors" : "threads (SINTER_THREADS)",
                     backend->describe());
}

void write_dump(const std::string& path, const std::string& text) {
  if (!write_text(path, text)) log_warning(fmt::format("{}: cannot be written", path));
}

std::string dump_kernel(const BuildContext& context, int kernel, const std::string& source,
                        std::string_view extension) {
  if (context.dump_dir.empty()) return "";
  const LoopProgram& program = context.compiled.kernels[static_cast<size_t>(kernel)];
  std::string path =
      fmt::format("{}/kernels/{:02}_{}.{}", context.dump_dir, kernel, program.symbol, extension);
  write_dump(path, kernel_header(context.compiled, kernel) + source);
  return path;
}

}  // namespace detail

MemoryNeed planned_memory(const Module& module, const CompileOptions& options) {
  detail::CompiledModule compiled;
  compiled.module = module.clone();
  compiled.module->target = choose_target(options, module.target);
  PassManager manager;
  manager.disabled = options.disabled;
  run_passes(manager, options.pipeline.empty() ? default_pipeline() : options.pipeline, compiled);
  return detail::memory_need(*compiled.module, manager.plans);
}

std::shared_ptr<const Executable> compile(const Module& module, const CompileOptions& options) {
  if (options.device == DeviceKind::Reference || options.device == DeviceKind::Reference64)
    return detail::compile_reference(module, options);

  auto start = Clock::now();
  if (!options.nvrtc.empty()) cuda::use_nvrtc(options.nvrtc);
  auto executable = std::make_shared<CompiledExecutable>();
  executable->compile_options = options;
  std::string problem;
  std::string dump_dir = detail::dump_folder(options.dump_dir, problem);
  if (!problem.empty()) log_warning(problem);

  detail::CompiledModule& compiled = executable->compiled;
  CompileStats& stats = executable->compile_stats;
  compiled.module = module.clone();
  Target& target = compiled.module->target;
  target = choose_target(options, module.target);
  if (int64_t cap = shared_memory_cap(options); cap > 0 && target.is_cuda())
    target.shared_memory = std::min(target.shared_memory, cap);

  PassManager manager;
  manager.disabled = options.disabled;
  manager.print_after = options.print_after;
  manager.on_print = options.on_print;
  manager.dump_dir = dump_dir;
  run_passes(manager, options.pipeline.empty() ? default_pipeline() : options.pipeline, compiled);
  compiled.plans = std::move(manager.plans);
  executable->pass_remarks = manager.remarks();
  for (const PassManager::Timing& timing : manager.timings())
    stats.phases.emplace_back(timing.pass, timing.seconds);

  detail::check_memory(*compiled.module, compiled.plans, options);

  auto lowering = Clock::now();
  detail::build_programs(compiled);
  stats.kernels = static_cast<int>(compiled.kernels.size() + compiled.templates.size());
  stats.phases.emplace_back("codegen", seconds_since(lowering));

  auto building = Clock::now();
  executable->backend = make_backend({compiled, options, dump_dir, stats, executable->record});
  stats.phases.emplace_back("compile", seconds_since(building));
  if (!dump_dir.empty()) {
    detail::write_dump(dump_dir + "/plan.txt", executable->plan_text());
    log_info(fmt::format("dumped to {}", dump_dir));
  }
  stats.seconds = seconds_since(start);
  log_info(fmt::format("compiled for {} {}: {} kernels, {} compiled, {} from the cache, {:.2f} s",
                       to_string(options.device), target.arch, stats.kernels, stats.compiled,
                       stats.cached, stats.seconds));
  return executable;
}

std::unique_ptr<Session> make_session(std::shared_ptr<const Executable> executable) {
  if (dynamic_cast<const CompiledExecutable*>(executable.get()) != nullptr)
    return detail::make_compiled_session(std::move(executable));
  return detail::make_reference_session(std::move(executable));
}

std::vector<DeviceEntry> list_devices() {
  std::vector<DeviceEntry> devices{{DeviceKind::Reference, "reference", ""},
                                   {DeviceKind::Interpreter, "interpreter", ""}};
  DeviceEntry cpu{DeviceKind::Cpu, fmt::format("cpu ({} cores)", ThreadPool::global().size()), ""};
  try {
    HostCompiler compiler;
  } catch (const DeviceError& error) {
    cpu.unavailable = error.what();
  }
  devices.push_back(std::move(cpu));
  int count = cuda::device_count();
  for (int i = 0; i < count; ++i) {
    cuda::DeviceInfo info = cuda::device_info(i);
    devices.push_back(
        {DeviceKind::Cuda, fmt::format("cuda:{} {} {}", i, info.name, info.arch()), ""});
  }
  if (count == 0) devices.push_back({DeviceKind::Cuda, "cuda", cuda::unavailable_reason()});
  return devices;
}

}  // namespace sinter
