#include <sinter/codegen/detail/print_c.h>
#include <sinter/codegen/loops.h>
#include <sinter/codegen/templates.h>
#include <sinter/ir/diagnostic.h>

namespace sinter {
namespace {

class HostPrinter final : public detail::CPrinter {
 public:
  using CPrinter::CPrinter;

 private:
  void head() override {
    open(
        fmt::format("extern \"C\" void {}(void** buffers, FaultSlot* faults, const uint32_t* "
                    "sites, int64_t begin, int64_t end) {{",
                    p_.symbol));
    for (size_t i = 0; i < p_.buffers.size(); ++i) {
      const KernelBuffer& b = p_.buffers[i];
      const std::string_view type = storage_type(b.type.dtype);
      const std::string_view constant = b.output ? "" : "const ";
      line(fmt::format("{}{}* {} = static_cast<{}{}*>(buffers[{}]);", constant, type, b.name,
                       constant, type, i));
    }
    if (p_.faults.empty()) line("(void)faults;");
    if (p_.sites.empty()) line("(void)sites;");
  }

  void loop(const For& s) override {
    switch (s.level) {
      case Level::Cores:
        SINTER_CHECK(outermost(s), "{}: cores run the outermost loop", p_.symbol);
        counted_loop(s, fmt::format("{}(begin)", counter_type(s.extent)),
                     fmt::format("{}(end)", counter_type(s.extent)));
        return;
      case Level::Simd:
        line("SN_SIMD");
        break;
      case Level::Vector:
      case Level::Serial:
        break;
      case Level::Grid:
      case Level::Lane:
        SINTER_CHECK(false, "{}: a loop over {}s on the host", p_.symbol, to_string(s.level));
    }
    counted_loop(s, "0", fmt::format("{}", s.extent));
  }

  void alloc(const Alloc& s) override {
    SINTER_CHECK(s.space == Space::Registers, "{}: shared memory on the host", p_.symbol);
    stack_ += s.size * size_of(s.type);
    SINTER_CHECK(stack_ <= kStackBytes, "{}: arrays of {} bytes on the stack", p_.symbol, stack_);
    line(fmt::format("alignas(64) {};", array_text(s)));
  }

  void lane_reduce(const LaneReduce&) override {
    SINTER_CHECK(false, "{}: a lane reduction on the host", p_.symbol);
  }
  std::string site_text(int site) const override { return fmt::format("sites[{}]", site); }
  std::string random_source(const Random&) const override { return "sn_fresh()"; }
  void barrier() override { SINTER_CHECK(false, "{}: a barrier on the host", p_.symbol); }

  static constexpr int64_t kStackBytes = 4 << 20;  // of the 8 MiB that threads commonly have
  int64_t stack_ = 0;
};

}  // namespace

std::string print_host(std::span<const LoopProgram* const> programs) {
  std::string out(template_text("prelude_host.h"));
  out += template_text("prelude_common.h");
  for (const LoopProgram* program : programs) {
    out += '\n';
    HostPrinter(*program, out).print();
  }
  return out;
}

std::string print_host(const LoopProgram& program) {
  const LoopProgram* one[] = {&program};
  return print_host(one);
}

}  // namespace sinter
