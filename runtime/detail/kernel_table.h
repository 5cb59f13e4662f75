#pragma once
// The distinct kernels of a module; equal ones, whatever graph they come from, are one, and no two
// share a symbol.

#include <sinter/codegen/loops.h>
#include <sinter/codegen/template_launch.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sinter::detail {

// Whether a kernel has anything to do: without elements to write it is not launched, and not made.
bool writes_elements(const Op& op);

class KernelTable {
 public:
  // Kernels are made for the module's target and appended to `kernels`, in order of first use.
  KernelTable(const Module& module, std::vector<LoopProgram>& kernels)
      : module_(module), kernels_(kernels) {}

  struct Entry {
    int index;
    std::vector<KernelFault> faults;
    std::vector<uint32_t> sites;  // of its random numbers: the kernel takes them at launch
  };
  // The kernel of an op that calls a graph; see LoopProgram::gated.
  const Entry& of(const Op& op, bool gated = false);

  // The index of a program equal to this one; else it is added, with a number behind its symbol
  // where another has that.
  int intern(LoopProgram program);

 private:
  const Module& module_;
  std::vector<LoopProgram>& kernels_;
  std::unordered_map<std::string, Entry> by_callee_;
  std::unordered_map<std::string, int> by_text_;
  std::unordered_set<std::string> symbols_;
};

// The distinct kernel templates of a module.
class TemplateTable {
 public:
  explicit TemplateTable(std::vector<TemplateKernel>& kernels) : kernels_(kernels) {}
  // The index of a kernel with this symbol and source; else it is added.
  int intern(TemplateKernel kernel);

 private:
  std::vector<TemplateKernel>& kernels_;
  std::unordered_map<std::string, int> by_text_;
};

}  // namespace sinter::detail
