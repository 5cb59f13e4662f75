#include <sinter/codegen/detail/print_c.h>
#include <sinter/codegen/loops.h>
#include <sinter/codegen/templates.h>
#include <sinter/ir/diagnostic.h>

#include <limits>
#include <set>

namespace sinter {
namespace {

class CudaPrinter final : public detail::CPrinter {
 public:
  using CPrinter::CPrinter;

 private:
  void head() override {
    // Kernel arguments take at most 4 KiB.
    SINTER_CHECK(p_.buffers.size() + p_.sites.size() < 512,
                 "{}: {} buffers{} are too many for a kernel's arguments", p_.symbol,
                 p_.buffers.size(),
                 p_.sites.empty() ? "" : fmt::format(" and {} sites", p_.sites.size()));
    SINTER_CHECK(p_.block >= 1 && p_.block <= 1024, "{}: a block of {} lanes", p_.symbol, p_.block);
    std::string arguments;
    for (const KernelBuffer& b : p_.buffers)
      arguments += fmt::format("{}{}{}* {}", arguments.empty() ? "" : ", ",
                               b.output ? "" : "const ", storage_type(b.type.dtype), b.name);
    if (!p_.faults.empty())
      arguments += fmt::format("{}FaultSlot* faults", arguments.empty() ? "" : ", ");
    for (size_t i = 0; i < p_.sites.size(); ++i)
      arguments += fmt::format(", uint32_t {}", site_text(static_cast<int>(i)));
    if (p_.gated) arguments += ", const int* gate";
    open(fmt::format("extern \"C\" __global__ void __launch_bounds__({}{}) {}({}) {{", p_.block,
                     p_.blocks > 0 ? fmt::format(", {}", p_.blocks) : "", p_.symbol, arguments));
    if (p_.gated) line("if (*gate != 0) return;");
    keep_words(p_.body, false);
    if (dynamic()) line("extern __shared__ __align__(16) unsigned char shared_memory[];");
  }

  void loop(const For& s) override {
    switch (s.level) {
      case Level::Grid:
        SINTER_CHECK(outermost(s) && s.extent <= std::numeric_limits<int32_t>::max(),
                     "{}: a grid of {} blocks", p_.symbol, s.extent);
        line(fmt::format("const int i{} = static_cast<int>(blockIdx.x);", s.loop));
        block(s.body);
        return;
      case Level::Lane:
        SINTER_CHECK(s.extent == p_.block, "{}: {} lanes in a block of {}", p_.symbol, s.extent,
                     p_.block);
        line(fmt::format("const int i{} = static_cast<int>(threadIdx.x);", s.loop));
        block(s.body);
        return;
      case Level::Vector:
        line("#pragma unroll");
        break;
      case Level::Serial:
        break;
      case Level::Cores:
      case Level::Simd:
        SINTER_CHECK(false, "{}: a loop over {} on CUDA", p_.symbol, to_string(s.level));
    }
    counted_loop(s, "0", fmt::format("{}", s.extent));
  }

  void alloc(const Alloc& s) override {
    if (s.space == Space::Registers) {
      line(array_text(s) + ";");
    } else if (dynamic()) {
      const int64_t size = size_of(s.type);
      shared_ = (shared_ + size - 1) / size * size;
      line(fmt::format("{0}* a{1} = reinterpret_cast<{0}*>(shared_memory + {2});",
                       storage_type(s.type), s.array, shared_));
      shared_ += s.size * size;
      SINTER_CHECK(shared_ <= p_.shared_bytes, "{}: {} bytes of shared memory are not enough",
                   p_.symbol, p_.shared_bytes);
    } else {
      line(fmt::format("__shared__ {};", array_text(s)));
    }
  }

  void lane_reduce(const LaneReduce& s) override {
    SINTER_CHECK(p_.block % 32 == 0 || p_.block < 32, "{}: a lane reduction in a block of {}",
                 p_.symbol, p_.block);
    const uint32_t mask = p_.block < 32 ? (1U << p_.block) - 1 : ~0U;
    const std::string_view type = type_of(s.var);
    line(fmt::format(
        "const {0} v{1} = sn_lane_reduce<{2}>(0x{3:08x}u, v{4}, []({0} a, {0} b) -> "
        "{0} {{ return {5}; }});",
        type, s.var, s.width, mask, s.value, call(s.combine, dtype(s.value), "a", "b")));
  }

  void barrier() override { line("__syncthreads();"); }

  std::string site_text(int site) const override { return fmt::format("site{}", site); }
  std::string random_source(const Random& s) const override {
    return kept_.count(s.var) ? fmt::format("r{}", s.var) : "sn_fresh()";
  }
  // In a loop of one thread, consecutive elements share a call of the generator: its words are
  // kept.
  void keep_words(const Block& body, bool in_loop) {
    for (const Stmt& stmt : body) {
      if (auto* s = std::get_if<Random>(&stmt.what)) {
        if (!in_loop) continue;
        kept_.insert(s->var);
        line(fmt::format("sn_kept r{};", s->var));
      } else if (auto* branch = std::get_if<If>(&stmt.what)) {
        keep_words(branch->body, in_loop);
        keep_words(branch->otherwise, in_loop);
      } else if (auto* loop = std::get_if<For>(&stmt.what)) {
        keep_words(loop->body,
                   in_loop || loop->level == Level::Vector || loop->level == Level::Serial);
      }
    }
  }

  bool dynamic() const { return p_.shared_bytes > kStaticSharedBytes; }
  int64_t shared_ = 0;  // dynamic bytes given out
  std::set<Var> kept_;  // random numbers with words of their own
};

}  // namespace

std::string print_cuda(std::span<const LoopProgram* const> programs) {
  std::string out(template_text("prelude.cuh"));
  out += template_text("prelude_common.h");
  for (const LoopProgram* program : programs) {
    out += '\n';
    CudaPrinter(*program, out).print();
  }
  return out;
}

std::string print_cuda(const LoopProgram& program) {
  const LoopProgram* one[] = {&program};
  return print_cuda(one);
}

}  // namespace sinter
