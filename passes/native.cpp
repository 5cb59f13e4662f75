// native: hands ops to kernel templates where the target has one.
//
// The kernels of an op are tried in order of preference; the first that takes the op is written
// on it, and `expand` and `fuse` leave it whole. Nothing else changes. Without CUDA no op has a
// kernel. With `use=KERNEL` other kernels are not looked at, with `skip=OP,…` these ops are left
// alone, with `require=OP,…` one of these that no kernel takes is an error. With `unordered=OP,…`
// these may have kernels whose results differ in their last bits from run to run.

#include <sinter/passes/native.h>

#include <fmt/ranges.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/derivative_names.h>
#include <sinter/passes/detail/native_rules.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <vector>

namespace sinter {

namespace {

// Rules of one op lie side by side.
const std::vector<NativeRule>& all_rules() {
  static const std::vector<NativeRule> all = [] {
    std::vector<NativeRule> rules;
    detail::add_attention_rules(rules);
    detail::add_embedding_rules(rules);
    return rules;
  }();
  return all;
}

// Names that mean nothing would choose nothing, in silence.
void check_options(const PassContext& context) {
  std::vector<std::string_view> kernels;
  for (const NativeRule& rule : all_rules())
    if (std::find(kernels.begin(), kernels.end(), rule.kernel) == kernels.end())
      kernels.push_back(rule.kernel);
  std::string_view use = context.option("use");
  if (!use.empty() && std::find(kernels.begin(), kernels.end(), use) == kernels.end())
    throw Error(fmt::format("native: use={}: there is no such kernel; there are {}", use,
                            fmt::join(kernels, ", ")));
  for (std::string_view option : {"skip", "require", "unordered"}) {
    if (!context.has_option(option)) continue;
    for (const std::string& op : detail::names_of("native", context.option(option)))
      if (OpRegistry::get().find(op) == nullptr)
        throw Error(fmt::format("native: {}={}: there is no such op", option, op));
  }
}

// The first rule that takes the op, or null; `why` receives what the others declined for.
const NativeRule* choose(const Op& op, const Target& target, std::string_view use, bool unordered,
                         std::string* why) {
  if (!target.is_cuda()) return nullptr;
  for (const NativeRule& rule : native_rules(op.name())) {
    if ((!use.empty() && rule.kernel != use) || (rule.unordered && !unordered)) continue;
    std::optional<std::string> reason = rule.declines(op, target);
    if (!reason && use.empty() && rule.slower != nullptr) reason = rule.slower(op, target);
    if (!reason) return &rule;
    if (why != nullptr)
      *why += fmt::format("{}{}: {}", why->empty() ? "" : "; ", rule.kernel, *reason);
  }
  return nullptr;
}

}  // namespace

std::span<const NativeRule> native_rules(std::string_view op) {
  const std::vector<NativeRule>& all = all_rules();
  auto of_op = [&](const NativeRule& rule) { return rule.op == op; };
  auto first = std::find_if(all.begin(), all.end(), of_op);
  return {first, std::find_if_not(first, all.end(), of_op)};
}

const NativeRule* native_rule(const Op& op) {
  if (op.native().empty()) return nullptr;
  for (const NativeRule& rule : native_rules(op.name()))
    if (rule.kernel == op.native()) return &rule;
  throw Error(Diagnostic{op.loc(), fmt::format("{} has no kernel '{}'", op.name(), op.native())});
}

int64_t native_scratch(const Op& op, const Target& target) {
  const NativeRule* rule = native_rule(op);
  return rule == nullptr ? 0 : rule->scratch(op, target);
}

void run_native(Module& module, PassContext& context) {
  check_options(context);
  std::string_view use = context.option("use");
  std::string skip = fmt::format(",{},", context.option("skip"));
  std::string require = fmt::format(",{},", context.option("require"));
  std::string unordered = fmt::format(",{},", context.option("unordered"));
  for (Graph* graph : detail::entry_graphs(module))
    for (Op& op : *graph) {
      if (!op.native().empty()) continue;  // chosen by whoever wrote the text
      const std::string name = fmt::format(",{},", op.name());
      if (skip.find(name) != std::string::npos) continue;
      std::string why;
      const NativeRule* rule =
          choose(op, module.target, use, unordered.find(name) != std::string::npos, &why);
      if (rule != nullptr)
        op.set_native(std::string(rule->kernel));
      else if (require.find(name) != std::string::npos)
        throw Error(Diagnostic{op.loc(), fmt::format("{} has no kernel for {}: {}",
                                                     module.target.arch, op.name(), why)});
      if (!why.empty())
        context.remark(op.loc(),
                       fmt::format("{} {}: {}", op.name(),
                                   rule != nullptr ? fmt::format("by kernel {}", rule->kernel)
                                                   : std::string("by no kernel template"),
                                   why));
      else if (rule != nullptr)
        context.remark(op.loc(), fmt::format("{} by kernel {}", op.name(), rule->kernel));
    }
}

}  // namespace sinter
