// Kernels as C++ through the system's compiler, over the thread pool; products by gemm().

#include <sinter/ir/ops/contract.h>
#include <sinter/runtime/detail/host_memory.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/runtime/gemm.h>
#include <sinter/runtime/host_compiler.h>
#include <sinter/runtime/thread_pool.h>

#include <algorithm>

namespace sinter::detail {
namespace {

using HostKernel = void(void** buffers, FaultSlot* faults, const uint32_t* sites, int64_t begin,
                        int64_t end);

constexpr size_t kUnit = 64;  // kernels of one translation unit, at most
// Statements that are worth waking a thread for.
constexpr double kPieceWork = 32768;

// Statements executed by one run of a block.
double work_of(const Block& block) {
  double work = 0;
  for (const Stmt& stmt : block) {
    if (auto* loop = std::get_if<For>(&stmt.what))
      work += static_cast<double>(loop->extent) * work_of(loop->body);
    else if (auto* branch = std::get_if<If>(&stmt.what))
      work += 1 + std::max(work_of(branch->body), work_of(branch->otherwise));
    else
      work += 1;
  }
  return work;
}

struct LoadedKernel {
  HostKernel* function = nullptr;
  int64_t grain = 1;  // iterations of the outermost loop that make a piece
};

class CpuMemory final : public HostMemory {
 public:
  CpuMemory(const CompiledModule& compiled, const std::vector<LoadedKernel>& kernels)
      : HostMemory(compiled), kernels_(kernels), pool_(ThreadPool::global()) {}

 protected:
  void run_kernel(const KernelStep& step, const LoopProgram& program,
                  std::span<void* const> buffers, std::span<FaultSlot> faults) override {
    const LoadedKernel& kernel = kernels_[static_cast<size_t>(step.kernel)];
    auto** pointers = const_cast<void**>(buffers.data());
    if (program.grid <= kernel.grain) {
      if (program.grid > 0)
        kernel.function(pointers, faults.data(), step.sites.data(), 0, program.grid);
      return;
    }
    pool_.parallel_for(
        0, program.grid,
        [&](int64_t begin, int64_t end) {
          kernel.function(pointers, faults.data(), step.sites.data(), begin, end);
        },
        kernel.grain);
  }

  void run_matmul(const MatmulStep& step, const void* a, const void* b, const void* c,
                  void* d) override {
    const auto& attrs = step.op->attrs<MatmulAttrs>();
    MatmulSizes s = matmul_sizes(*step.op);
    DType dtype = step.op->operand(0).dtype(), result = step.op->result().dtype();
    Gemm g =
        dense_gemm(s.batch, s.m, s.n, s.k, dtype, a, attrs.transpose_a, b, attrs.transpose_b, d);
    g.b.dtype = step.op->operand(1).dtype();
    g.compute = matmul_compute(*step.op);
    g.c_dtype = result;
    if (c != nullptr) {
      Value added = step.op->operand(2);
      const bool row = added.rank() == 1;
      g.d = {c, added.dtype(), row ? 0 : s.n, row ? 0 : s.m * s.n, false};
    }
    gemm(g, pool_);
  }

 private:
  const std::vector<LoadedKernel>& kernels_;
  ThreadPool& pool_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BuildContext& context) : compiled_(context.compiled) {
    HostCompilerOptions options;
    options.compiler = context.options.host_compiler;
    options.dump_folder = context.dump_dir;
    DiskCache* cache =
        context.options.use_cache ? &DiskCache::of(context.options.cache_dir) : nullptr;
    if (cache != nullptr && context.options.cache_limit > 0)
      cache->set_limit(context.options.cache_limit);
    options.cache = cache;
    HostCompiler compiler(options);
    compiler_ = compiler.command().back();

    const std::vector<LoopProgram>& kernels = compiled_.kernels;
    // Enough units to keep every core busy, few enough to read the prelude seldom.
    size_t cores = static_cast<size_t>(ThreadPool::global().size());
    size_t unit = std::clamp<size_t>((kernels.size() + 2 * cores - 1) / (2 * cores), 8, kUnit);
    std::vector<HostSource> sources;
    for (size_t begin = 0; begin < kernels.size(); begin += unit) {
      std::vector<const LoopProgram*> members;
      for (size_t i = begin; i < std::min(begin + unit, kernels.size()); ++i)
        members.push_back(&kernels[i]);
      sources.push_back({members.front()->symbol, print_host(members), ""});
    }
    if (!context.dump_dir.empty())
      for (size_t i = 0; i < kernels.size(); ++i)
        dump_kernel(context, static_cast<int>(i), print_host(kernels[i]), "cpp");

    std::vector<std::string> reasons;
    modules_ = compiler.compile(sources, &reasons);
    for (size_t u = 0; u < sources.size(); ++u) {
      std::vector<std::string> symbols;
      for (size_t i = u * unit; i < std::min((u + 1) * unit, kernels.size()); ++i)
        symbols.push_back(kernels[i].symbol);
      context.note_unit(sources[u].name, std::move(symbols), reasons[u]);
    }

    for (size_t i = 0; i < kernels.size(); ++i) {
      LoadedKernel kernel;
      kernel.function = modules_[i / unit]->function<HostKernel>(kernels[i].symbol);
      double whole = std::max(1.0, work_of(kernels[i].body));
      double each = whole / static_cast<double>(std::max<int64_t>(1, kernels[i].grid));
      kernel.grain = static_cast<int64_t>(std::min(1e15, std::max(1.0, kPieceWork / each)));
      loaded_.push_back(kernel);
    }
  }

  std::unique_ptr<DeviceMemory> make_memory() const override {
    return std::make_unique<CpuMemory>(compiled_, loaded_);
  }
  std::string describe() const override {
    return fmt::format("compiled by {}, products by OpenBLAS, {} threads", compiler_,
                       ThreadPool::global().size());
  }

 private:
  const CompiledModule& compiled_;
  std::string compiler_;
  std::vector<std::shared_ptr<const HostModule>> modules_;
  std::vector<LoadedKernel> loaded_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BuildContext& context) {
  return std::make_unique<CpuBackend>(context);
}

}  // namespace sinter::detail
