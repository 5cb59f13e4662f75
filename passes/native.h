#pragma once
// Which ops a kernel template carries out, and on which targets.
//
// A template is a hand-written kernel of codegen/templates/. An op that one takes is marked with
// the kernel's name (`native = "portable"`), stays whole through `expand` and `fuse`, and runs as
// that kernel on CUDA; its meaning, and what the reference does, stay the same. Each family of
// kernels states its rules in a file of its own (native_*.cpp); how a kernel is launched is said
// in codegen/template_launch.h.

#include <sinter/ir/graph.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

struct NativeRule {
  std::string_view op;
  std::string_view kernel;  // as in `native = "…"`; unique for the op
  // Why the kernel does not take this op on this target ("softcap is not supported"); nullopt: it
  // does.
  std::optional<std::string> (*declines)(const Op& op, const Target& target);
  // Bytes of memory that the kernel works in besides operands and results.
  int64_t (*scratch)(const Op& op, const Target& target);
  // Whether operand `index` (or that result) may have any strides that say `strides`, in elements,
  // with its first element at `offset` of a buffer; null: all are dense.
  bool (*takes_strides)(const Op& op, bool is_result, size_t index, int64_t offset,
                        const std::vector<int64_t>& strides) = nullptr;
  // Why the op is better left to other kernels although this one takes it; looked at unless the
  // kernel is asked for by name.
  std::optional<std::string> (*slower)(const Op& op, const Target& target) = nullptr;
  // Its results may differ in their last bits from run to run: looked at only where the pass's
  // option `unordered` names the op.
  bool unordered = false;
};

// The rules of one op in order of preference.
std::span<const NativeRule> native_rules(std::string_view op);

// The rule of the kernel that the op is marked with; null for an op that is not. Throws Error for a
// kernel that the op does not have.
const NativeRule* native_rule(const Op& op);

// Of an op that is marked: what its kernel works in. 0 for all others.
int64_t native_scratch(const Op& op, const Target& target);

}  // namespace sinter
