#include <sinter/runtime/memory.h>

#include <fmt/ranges.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>
#include <sinter/runtime/cuda/cublaslt.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/detail/memory_check.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace sinter {

std::string byte_text(int64_t bytes) {
  auto b = static_cast<double>(bytes);
  if (b < 1 << 20) return fmt::format("{} bytes", bytes);
  if (b < 1 << 30) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

namespace detail {
namespace {

constexpr size_t kNamed = 5;

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::string line_of(const PlannedValue& p) {
  const Op* op = p.value.op();
  std::string name = name_of(p.value);
  std::string at = op != nullptr && op->loc().known() ? " at " + op->loc().str() : "";
  return fmt::format("{} bytes: {} {}{}", p.bytes, name, p.value.type().str(), at);
}

// What can be had of the device; total 0: nobody knows.
MemoryInfo device_memory(const CompileOptions& options) {
  if (options.memory_info) return *options.memory_info;
  if (options.device == DeviceKind::Cuda) {
    cuda::Device& device = cuda::Device::get(options.device_index);
    return {device.free_memory(), cuda::device_info(options.device_index).memory};
  }
  int64_t page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
  if (page <= 0 || pages <= 0) return {};
  // What other processes hold of a host's memory may be swapped or given back.
  return {page * pages, page * pages};
}

}  // namespace

MemoryNeed memory_need(const Module& module, const std::map<std::string, MemoryPlan>& plans) {
  MemoryNeed need;
  for (const State& s : module.states) need.state += aligned(s.type.bytes());
  std::vector<const PlannedValue*> values;
  bool products = false;
  for (const auto& [name, plan] : plans) {
    need.arena = std::max(need.arena, plan.arena_bytes);
    need.bindings += plan.input_bytes + plan.output_bytes;
    for (const PlannedValue& p : plan.values) {
      // What is written over a state counts as that.
      if (p.where != PlannedValue::Alias && p.where != PlannedValue::State) values.push_back(&p);
      products = products || (p.value.op() && p.value.op()->def().kind == OpKind::Contract);
    }
  }
  if (products && module.target.is_cuda())
    need.workspace = static_cast<int64_t>(cuda::kMatmulWorkspace);
  std::stable_sort(values.begin(), values.end(),
                   [](auto* a, auto* b) { return a->bytes > b->bytes; });
  // What several graphs have, as those that train and judge do, is named once.
  std::map<std::string, std::map<const Graph*, size_t>> seen;
  std::map<std::string, size_t> listed;
  for (const PlannedValue* p : values) {
    if (need.largest.size() == kNamed) break;
    std::string line = line_of(*p);
    if (++seen[line][&p->value.graph()] <= listed[line]) continue;
    ++listed[line];
    need.largest.push_back(std::move(line));
  }
  return need;
}

void check_memory(const Module& module, const std::map<std::string, MemoryPlan>& plans,
                  const CompileOptions& options) {
  MemoryNeed need = memory_need(module, plans);
  MemoryInfo info = device_memory(options);
  bool limited = options.memory > 0 && (info.total == 0 || options.memory < info.free);
  int64_t limit = limited ? options.memory : info.free;
  if ((!limited && info.total == 0) || need.total() <= limit) return;
  std::string there =
      info.total == 0 ? ""
                      : fmt::format("; the device has {} bytes free of {}", info.free, info.total);
  if (limited) there += fmt::format("; the limit asked for is {} bytes", options.memory);
  std::string message = fmt::format(
      "out of memory: the plan takes {} bytes (states {}, values {}, inputs and outputs {}, "
      "libraries "
      "{}){}. The largest values:\n  {}",
      need.total(), need.state, need.arena, need.bindings, need.workspace, there,
      fmt::join(need.largest, "\n  "));
  throw OutOfMemory(std::move(need), limit, std::move(message));
}

}  // namespace detail
}  // namespace sinter
