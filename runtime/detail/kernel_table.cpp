#include <sinter/runtime/detail/kernel_table.h>

namespace sinter::detail {

bool writes_elements(const Op& op) {
  for (size_t i = 0; i < op.num_results(); ++i)
    if (op.result(i).type().elements() > 0) return true;
  return false;
}

const KernelTable::Entry& KernelTable::of(const Op& op, bool gated) {
  std::string key = op.callee() + (gated ? " gated" : "");
  auto found = by_callee_.find(key);
  if (found != by_callee_.end()) return found->second;
  const Graph* body = module_.find(op.callee());
  SINTER_CHECK(body != nullptr, "{} calls @{}, which does not exist", op.name(), op.callee());
  Kernel kernel = build_kernel(*body, op.loc());
  LoopProgram program = lower(kernel, module_.target, gated);
  Entry entry{-1, std::move(kernel.faults), program.sites};
  entry.index = intern(std::move(program));
  return by_callee_.emplace(std::move(key), std::move(entry)).first->second;
}

int KernelTable::intern(LoopProgram program) {
  auto next = static_cast<int>(kernels_.size());
  auto [it, inserted] = by_text_.emplace(print(program), next);
  if (!inserted) return it->second;
  // Symbols carry a short hash: two kernels may share one.
  std::string stem = program.symbol;
  for (int n = 2; !symbols_.insert(program.symbol).second; ++n)
    program.symbol = fmt::format("{}_{}", stem, n);
  kernels_.push_back(std::move(program));
  return next;
}

int TemplateTable::intern(TemplateKernel kernel) {
  auto next = static_cast<int>(kernels_.size());
  auto [it, inserted] = by_text_.emplace(kernel.symbol + "\n" + kernel.source, next);
  if (inserted) kernels_.push_back(std::move(kernel));
  return it->second;
}

}  // namespace sinter::detail
