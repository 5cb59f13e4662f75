#include <sinter/runtime/cuda/nvrtc.h>

#include <charconv>

// Reading of ptxas messages: plain text, the same with and without CUDA.

namespace sinter::cuda {
namespace {

// Calls use(line) for each line of `text`, without its end; stops when `use` returns true.
template <typename Use>
void for_each_line(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (use(text.substr(0, end))) return;
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// The number that stands just before `unit` in `line`: 12 for number_before("12 bytes smem",
// " bytes smem"); 0 when it is not there.
int64_t number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t start = end;
  while (start > 0 && line[start - 1] >= '0' && line[start - 1] <= '9') --start;
  int64_t value = 0;
  std::from_chars(line.data() + start, line.data() + end, value);
  return value;
}

std::string_view quoted(std::string_view line) {
  const std::size_t start = line.find('\'');
  const std::size_t end = line.find('\'', start + 1);
  if (start == std::string_view::npos || end == std::string_view::npos) return {};
  return line.substr(start + 1, end - start - 1);
}

}  // namespace

std::vector<KernelResources> parse_resources(std::string_view log) {
  std::vector<KernelResources> kernels;
  // Properties follow their entry; those of device functions that were not inlined name another
  // function and are passed over.
  bool properties_of_entry = false;
  for_each_line(log, [&](std::string_view line) {
    constexpr std::string_view kEntry = "Compiling entry function";
    constexpr std::string_view kProperties = "Function properties for ";
    if (line.find(kEntry) != std::string_view::npos) {
      kernels.emplace_back().name = quoted(line);
      properties_of_entry = false;
    } else if (kernels.empty()) {
      return false;
    } else if (const std::size_t at = line.find(kProperties); at != std::string_view::npos) {
      properties_of_entry = line.substr(at + kProperties.size()) == kernels.back().name;
    } else if (properties_of_entry && line.find("bytes stack frame") != std::string_view::npos) {
      KernelResources& kernel = kernels.back();
      kernel.stack_bytes = number_before(line, " bytes stack frame");
      kernel.spill_store_bytes = number_before(line, " bytes spill stores");
      kernel.spill_load_bytes = number_before(line, " bytes spill loads");
    } else if (line.find("Used ") != std::string_view::npos) {
      KernelResources& kernel = kernels.back();
      kernel.registers = static_cast<int>(number_before(line, " registers"));
      kernel.shared_bytes = number_before(line, " bytes smem");
    }
    return false;
  });
  return kernels;
}

std::string fatal_warning(std::string_view log) {
  std::string found;
  for_each_line(log, [&](std::string_view line) {
    for (std::string_view code : {"C7504", "C7508", "C7510", "C7511", "C7520"}) {
      if (line.find(code) != std::string_view::npos) found = line;
    }
    return !found.empty();
  });
  return found;
}

const KernelResources* CompiledUnit::find(std::string_view name) const {
  for (const KernelResources& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace sinter::cuda
