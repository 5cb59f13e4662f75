// The CUDA device: kernels through NVRTC, products by cuBLASLt, one CUDA graph per entry graph.
//
// All blocks have fixed addresses, so a graph is built once. Inputs are copied through one of two
// pinned slots ahead of the launch. In front of the first node that writes state a kernel looks
// whether a fault of any graph is recorded, and if so closes the gate: one integer, which all nodes
// that write state read, and without which they do nothing. The record, one for the session, is
// cleared only by whoever has read it, so that a fault is never lost and never followed by an
// update.

#ifdef SINTER_HAVE_CUDA

#include <sinter/codegen/templates.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/runtime/cuda/cublaslt.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/cuda/graph.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/cuda/tensor_map.h>
#include <sinter/runtime/cuda/tune.h>
#include <sinter/runtime/detail/backend.h>
#include <sinter/runtime/disk_cache.h>

#include <algorithm>
#include <cstring>

namespace sinter::detail {
namespace {

constexpr size_t kUnit = 8;         // kernels of one translation unit, at most
constexpr int kStateThreads = 256;  // as in state.cuh

struct LoadedKernel {
  cuda::Kernel kernel;
  cuda::LaunchShape shape;
};

// What a backend shares with its sessions.
struct Code {
  const CompiledModule& compiled;
  cuda::Device& device;
  std::vector<cuda::Module> modules;
  std::vector<LoadedKernel> kernels;
  std::vector<LoadedKernel> templates;
  cuda::Kernel gate, copy_state;
  const TuningRecord& tuning;
};

cuda::MatmulSpec matmul_spec(const MatmulStep& step) {
  MatmulSizes s = matmul_sizes(*step.op);
  const auto& attrs = step.op->attrs<MatmulAttrs>();
  cuda::MatmulSpec spec;
  SINTER_CHECK(step.op->operand(1).dtype() == step.op->operand(0).dtype() &&
                   matmul_compute(*step.op) == step.op->operand(0).dtype(),
               "{}: run the pass round-operands before", step.op->name());
  spec.allow_tf32 = attrs.compute == "tf32";
  spec.m = s.m;
  spec.n = s.n;
  spec.k = s.k;
  spec.input = step.op->operand(0).dtype();
  spec.output = step.op->result().dtype();
  spec.transpose_a = attrs.transpose_a;
  spec.transpose_b = attrs.transpose_b;
  spec.bias = step.c && step.op->operand(2).rank() == 1;
  spec.accumulate = step.c && !spec.bias;
  if (spec.bias && step.c->offset % spec.alignment != 0)
    spec.alignment = step.c->offset & -step.c->offset;
  spec.batch = s.batch;
  spec.batch_stride_a = s.m * s.k;
  spec.batch_stride_b = s.k * s.n;
  spec.batch_stride_c = s.m * s.n;
  return spec;
}

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(const Code& code)
      : code_(code),
        device_(code.device),
        stream_(device_),
        arena_(device_, static_cast<size_t>(code.compiled.arena_bytes)),
        state_(device_, static_cast<size_t>(code.compiled.state_bytes)),
        faults_(device_, static_cast<size_t>(code.compiled.num_faults) * sizeof(FaultSlot)),
        gate_(device_, sizeof(int)),
        read_faults_(device_, faults_.size()) {
    if (state_.size() > 0) cuda::fill_bytes(stream_, state_.address(), 0, state_.size());
    cuda::fill_bytes(stream_, gate_.address(), 0, gate_.size());
    clear_faults();
    for (const auto& [name, program] : code.compiled.programs)
      entries_.emplace(&program, make_entry(program));
    stream_.synchronize();
  }

  ~CudaMemory() override {
    try {
      stream_.synchronize();
    } catch (const DeviceError&) {
      // Whoever runs or reads is told; a destructor cannot.
    }
  }

  void write_input(const Program& program, const Port& port, const void* data) override {
    Entry& entry = entries_.at(&program);
    Slot& slot = entry.slots[entry.current];
    if (!entry.filling) {
      if (slot.used) slot.taken.synchronize();
      entry.filling = true;
    }
    std::memcpy(static_cast<unsigned char*>(slot.staging.data()) + port.place.offset, data,
                static_cast<size_t>(port.type.bytes()));
  }

  void launch(const Program& program) override {
    Entry& entry = entries_.at(&program);
    if (entry.filling) {
      Slot& slot = entry.slots[entry.current];
      cuda::copy_to_device(stream_, entry.inputs.address(), slot.staging.data(),
                           entry.inputs.size());
      stream_.record(slot.taken);
      slot.used = true;
      entry.filling = false;
      entry.current = 1 - entry.current;
    }
    entry.executable->launch(stream_);
  }

  void synchronize() override { stream_.synchronize(); }

  Results results(const Program& program) override {
    Entry& entry = entries_.at(&program);
    cuda::copy_to_host(stream_, entry.read_back.data(), entry.outputs.address(),
                       entry.outputs.size());
    cuda::copy_to_host(stream_, read_faults_.data(), faults_.address(), faults_.size());
    stream_.synchronize();
    return {static_cast<const unsigned char*>(entry.read_back.data()),
            static_cast<const FaultSlot*>(read_faults_.data())};
  }

  void clear_faults() override {
    std::vector<FaultSlot> none(static_cast<size_t>(code_.compiled.num_faults), kNoFault);
    cuda::copy_to_device(stream_, faults_.address(), none.data(), faults_.size());
    stream_.synchronize();
  }

  void read_state(int64_t offset, int64_t bytes, void* data) override {
    cuda::copy_to_host(stream_, data, state_.address() + static_cast<uint64_t>(offset),
                       static_cast<size_t>(bytes));
    stream_.synchronize();
  }
  void write_state(int64_t offset, int64_t bytes, const void* data) override {
    cuda::copy_to_device(stream_, state_.address() + static_cast<uint64_t>(offset), data,
                         static_cast<size_t>(bytes));
    stream_.synchronize();
  }

 private:
  struct Slot {
    explicit Slot(cuda::Device& device, size_t bytes)
        : staging(device, bytes), taken(device, false) {}
    cuda::PinnedBuffer staging;
    cuda::Event taken;  // the device has read the slot
    bool used = false;
  };
  struct Entry {
    cuda::DeviceBuffer inputs;
    cuda::DeviceBuffer outputs;
    cuda::PinnedBuffer read_back;
    std::vector<Slot> slots;
    size_t current = 0;
    bool filling = false;
    std::vector<cuda::MatmulPlan> products;
    std::unique_ptr<cuda::ExecutableGraph> executable;
  };

  Entry make_entry(const Program& program) {
    Entry entry;
    entry.inputs = cuda::DeviceBuffer(device_, static_cast<size_t>(program.input_bytes));
    entry.outputs = cuda::DeviceBuffer(device_, static_cast<size_t>(program.output_bytes));
    entry.read_back = cuda::PinnedBuffer(device_, entry.outputs.size());
    for (int i = 0; i < 2; ++i) entry.slots.emplace_back(device_, entry.inputs.size());
    build_graph(program, entry);
    return entry;
  }

  cuda::DevicePtr address(const Entry& entry, const Place& place) const {
    cuda::DevicePtr bases[kSpaces] = {arena_.address(), state_.address(), entry.inputs.address(),
                                      entry.outputs.address()};
    return bases[static_cast<size_t>(place.space)] + static_cast<uint64_t>(place.offset);
  }

  void build_graph(const Program& program, Entry& entry) {
    // Algorithms are chosen, and the workspace grown, before anything is captured.
    for (const Step& step : program.steps)
      if (auto* matmul = std::get_if<MatmulStep>(&step)) {
        cuda::MatmulSpec spec = matmul_spec(*matmul);
        auto chosen = code_.tuning.choices.find(spec.str());
        entry.products.emplace_back(
            device_, spec, chosen != code_.tuning.choices.end() ? chosen->second : std::string());
        if (entry.products.back().workspace_bytes() > 0 && workspace_.size() == 0)
          workspace_ = cuda::DeviceBuffer(device_, cuda::kMatmulWorkspace);
      }
    cuda::Graph graph(device_);
    size_t product = 0;
    for (const Step& step : program.steps) {
      if (auto* kernel = std::get_if<KernelStep>(&step))
        add_kernel(graph, program, entry, *kernel);
      else if (auto* matmul = std::get_if<MatmulStep>(&step))
        add_product(graph, entry, *matmul, entry.products[product++]);
      else if (auto* copy = std::get_if<CopyStep>(&step))
        add_copy(graph, entry, *copy);
      else if (auto* native = std::get_if<TemplateStep>(&step))
        add_template(graph, entry, *native);
      else
        add_gate(graph);
    }
    entry.executable = std::make_unique<cuda::ExecutableGraph>(graph);
    entry.executable->upload(stream_);
  }

  void add_kernel(cuda::Graph& graph, const Program& program, const Entry& entry,
                  const KernelStep& step) {
    const LoadedKernel& loaded = code_.kernels[static_cast<size_t>(step.kernel)];
    if (loaded.shape.blocks == 0) return;
    cuda::KernelArguments arguments;
    for (const Place& place : step.buffers) arguments.add(address(entry, place));
    if (!code_.compiled.kernels[static_cast<size_t>(step.kernel)].faults.empty())
      arguments.add(faults_.address() +
                    static_cast<uint64_t>(program.first_fault + step.first_fault) *
                        sizeof(FaultSlot));
    for (uint32_t site : step.sites) arguments.add(site);
    if (step.writes_state) arguments.add(gate_.address());
    graph.add_kernel(loaded.kernel, loaded.shape, arguments);
  }

  void add_product(cuda::Graph& graph, const Entry& entry, const MatmulStep& step,
                   const cuda::MatmulPlan& plan) {
    cuda::DevicePtr a = address(entry, step.a), b = address(entry, step.b);
    cuda::DevicePtr d = address(entry, step.d), c = step.c ? address(entry, *step.c) : d;
    graph.add_child(cuda::Graph::capture(
        stream_, [&] { plan.run(stream_, a, b, c, d, workspace_.address()); }));
  }

  void add_template(cuda::Graph& graph, const Entry& entry, const TemplateStep& step) {
    auto at = [&](const TemplatePointer& pointer) { return address(entry, step.place(pointer)); };
    for (const auto& action : step.actions) {
      if (auto* fill = std::get_if<TemplateFill>(&action)) {
        if (fill->words > 0)
          graph.add_fill(at(fill->to), fill->value, 4, static_cast<size_t>(fill->words));
        continue;
      }
      const auto& launch = std::get<TemplateStep::Launch>(action);
      cuda::KernelArguments arguments;
      for (const TemplateArgument& argument : launch.arguments) {
        if (argument.map) {
          const TensorMapSpec& spec = *argument.map;
          cuda::TensorMap map = cuda::encode_tensor_map(
              at(spec.base), {spec.dims, spec.strides, spec.box, spec.swizzle});
          arguments.add_bytes(&map, sizeof(map));
          continue;
        }
        std::vector<unsigned char> bytes = argument.bytes;
        for (const TemplateArgument::Patch& patch : argument.patches) {
          cuda::DevicePtr pointer = at(patch.pointer);
          std::memcpy(bytes.data() + patch.at, &pointer, sizeof(pointer));
        }
        arguments.add_bytes(bytes.data(), bytes.size());
      }
      const LoadedKernel& loaded = code_.templates[static_cast<size_t>(launch.kernel)];
      cuda::LaunchShape shape = loaded.shape;
      shape.blocks = launch.grid;
      graph.add_kernel(loaded.kernel, shape, arguments);
    }
  }

  void add_copy(cuda::Graph& graph, const Entry& entry, const CopyStep& step) {
    cuda::DevicePtr to = address(entry, step.to), from = address(entry, step.from);
    if (!step.writes_state) {
      graph.add_copy_on_device(to, from, static_cast<size_t>(step.bytes));
      return;
    }
    cuda::KernelArguments arguments;
    arguments.add(to).add(from).add(static_cast<long long>(step.bytes)).add(gate_.address());
    cuda::LaunchShape shape;
    shape.threads = kStateThreads;
    int64_t most = int64_t{device_.info().multiprocessors} * 8;
    shape.blocks = std::clamp<int64_t>(step.bytes / 16 / kStateThreads + 1, 1, most);
    graph.add_kernel(code_.copy_state, shape, arguments);
  }

  void add_gate(cuda::Graph& graph) {
    if (code_.compiled.num_faults == 0) return;  // it stays open
    cuda::KernelArguments arguments;
    arguments.add(gate_.address()).add(faults_.address()).add(code_.compiled.num_faults);
    cuda::LaunchShape shape;
    shape.threads = 1;
    shape.blocks = 1;
    graph.add_kernel(code_.gate, shape, arguments);
  }

  const Code& code_;
  cuda::Device& device_;
  cuda::Stream stream_;
  cuda::DeviceBuffer arena_, state_, faults_, gate_, workspace_;
  cuda::PinnedBuffer read_faults_;
  std::map<const Program*, Entry> entries_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BuildContext& context)
      : code_{context.compiled, cuda::Device::get(context.options.device_index), {}, {}, {}, {}, {},
              context.tuning} {
    const std::vector<LoopProgram>& kernels = context.compiled.kernels;
    std::string arch = context.compiled.module->target.arch;
    std::vector<cuda::CompileRequest> requests;
    auto add_request = [&](std::string name, std::string source) {
      cuda::CompileRequest request;
      request.name = std::move(name);
      request.source = std::move(source);
      request.arch = arch;
      request.allow_ptx = true;
      requests.push_back(std::move(request));
    };
    for (size_t begin = 0; begin < kernels.size(); begin += kUnit) {
      std::vector<const LoopProgram*> members;
      for (size_t i = begin; i < std::min(begin + kUnit, kernels.size()); ++i)
        members.push_back(&kernels[i]);
      add_request(members.front()->symbol, print_cuda(members));
    }
    // Kernels of one source are one unit.
    std::map<std::string_view, size_t> unit_of_source;
    for (const TemplateKernel& kernel : context.compiled.templates) {
      if (!unit_of_source.emplace(kernel.source, requests.size()).second) continue;
      add_request(kernel.symbol, kernel.source);
      requests.back().fmad = kernel.fmad;
    }
    add_request("sinter_state", std::string(template_text("state.cuh")));
    if (!context.dump_dir.empty())
      for (size_t i = 0; i < kernels.size(); ++i)
        dump_kernel(context, static_cast<int>(i), print_cuda(kernels[i]), "cu");
    if (!context.dump_dir.empty())
      for (size_t i = 0; i < context.compiled.templates.size(); ++i) {
        const TemplateKernel& kernel = context.compiled.templates[i];
        write_dump(fmt::format("{}/kernels/{:02}_{}.cu", context.dump_dir, kernels.size() + i,
                               kernel.symbol),
                   kernel.source);
      }

    DiskCache* cache =
        context.options.use_cache ? &DiskCache::of(context.options.cache_dir) : nullptr;
    if (cache != nullptr && context.options.cache_limit > 0)
      cache->set_limit(context.options.cache_limit);
    std::vector<cuda::CompiledUnit> units = cuda::compile_all(requests, cache);
    std::string log;
    for (size_t u = 0; u < units.size(); ++u) {
      code_.modules.emplace_back(code_.device, units[u].image, requests[u].name,
                                 cuda::nvrtc_version());
      log += fmt::format("== {}\n{}\n", requests[u].name, units[u].log);
    }
    if (!context.dump_dir.empty()) write_dump(context.dump_dir + "/kernels/compile.log", log);

    std::vector<std::vector<std::string>> symbols(requests.size());  // by unit
    for (size_t i = 0; i < kernels.size(); ++i) {
      const LoopProgram& program = kernels[i];
      symbols[i / kUnit].push_back(program.symbol);
      LoadedKernel loaded;
      loaded.kernel = code_.modules[i / kUnit].kernel(program.symbol);
      loaded.shape = {program.grid, program.block, 0};
      if (program.shared_bytes > kStaticSharedBytes) {
        loaded.shape.shared_bytes = program.shared_bytes;
        loaded.kernel.allow_dynamic_shared(program.shared_bytes);
      }
      code_.kernels.push_back(std::move(loaded));
    }
    for (const TemplateKernel& kernel : context.compiled.templates) {
      const size_t unit = unit_of_source.at(kernel.source);
      LoadedKernel loaded;
      loaded.kernel = code_.modules[unit].kernel(kernel.symbol);
      loaded.shape = {1, kernel.block, kernel.shared_bytes};
      if (kernel.shared_bytes > kStaticSharedBytes)
        loaded.kernel.allow_dynamic_shared(kernel.shared_bytes);
      code_.templates.push_back(std::move(loaded));
      symbols[unit].push_back(kernel.symbol);
    }
    for (size_t u = 0; u < units.size(); ++u)
      context.note_unit(requests[u].name, std::move(symbols[u]), units[u].reason);
    choose_algorithms(context);
    code_.gate = code_.modules.back().kernel("sinter_gate");
    code_.copy_state = code_.modules.back().kernel("sinter_copy_state");
  }

  std::unique_ptr<DeviceMemory> make_memory() const override {
    return std::make_unique<CudaMemory>(code_);
  }
  std::string describe() const override {
    return fmt::format("NVRTC {}, products by cuBLASLt {} without TF32, {} timed choices",
                       cuda::version_text(cuda::nvrtc_version()), cuda::cublaslt_version(),
                       code_.tuning.choices.size());
  }

 private:
  void choose_algorithms(const BuildContext& context) {
    std::vector<cuda::MatmulSpec> products;
    for (const auto& [name, program] : context.compiled.programs)
      for (const Step& step : program.steps)
        if (auto* matmul = std::get_if<MatmulStep>(&step)) products.push_back(matmul_spec(*matmul));
    if (products.empty()) return;
    context.tuning = usable_record(
        context.options.tuning,
        fmt::format("{} cublaslt {}", code_.device.info().arch(), cuda::cublaslt_version()));
    if (context.options.tune) cuda::tune_products(code_.device, products, context.tuning);
  }

  Code code_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BuildContext& context) {
  return std::make_unique<CudaBackend>(context);
}

}  // namespace sinter::detail

#else

#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/detail/backend.h>

namespace sinter::detail {

std::unique_ptr<Backend> make_cuda_backend(const BuildContext&) {
  throw DeviceError(cuda::unavailable_reason());
}

}  // namespace sinter::detail

#endif
