// The texts that people read: plan.txt, and the comment above a dumped kernel.

#include <fmt/ranges.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/runtime/detail/program.h>

#include <algorithm>

namespace sinter::detail {
namespace {

constexpr size_t kMaxNames = 16;

void add_once(std::vector<std::string>& list, std::string item) {
  if (item.empty() || std::find(list.begin(), list.end(), item) != list.end()) return;
  list.push_back(std::move(item));
}

std::string joined(std::vector<std::string> items, std::string_view separator) {
  size_t more = items.size() > kMaxNames ? items.size() - kMaxNames : 0;
  if (more > 0) {
    items.resize(kMaxNames);
    items.push_back(fmt::format("and {} more", more));
  }
  return fmt::format("{}", fmt::join(items, separator));
}

// The ops of a body, or the op itself.
std::string op_names(const Op& op) {
  const Graph* body = op.callee().empty() ? nullptr : op.graph().module().find(op.callee());
  if (body == nullptr) return std::string(op.name());
  std::vector<std::string> names;
  for (Op& inner : *body) names.emplace_back(inner.name());
  return joined(std::move(names), " ");
}

std::string value_names(const Op& op, bool results) {
  std::vector<std::string> names;
  auto add = [&](Value v) {
    if (v && !v.name().empty()) add_once(names, "%" + v.name());
  };
  if (results)
    for (size_t i = 0; i < op.num_results(); ++i) add(op.result(i));
  else
    for (Value v : op.operands()) add(v);
  return joined(std::move(names), " ");
}

std::string line_of(const Op& op) {
  std::string text = op.loc().known() ? op.loc().str() : "";
  if (op.from().known() && !(op.from() == op.loc()))
    text += fmt::format("{}from {}", text.empty() ? "" : ", ", op.from().str());
  return text;
}

// "%x %w -> %h, model.cpp:12"
std::string origin(const Op& op) {
  std::string from = value_names(op, false), to = value_names(op, true), line = line_of(op);
  std::string text = from;
  if (!to.empty()) text += fmt::format("{}-> {}", from.empty() ? "" : " ", to);
  if (!line.empty()) text += fmt::format("{}{}", text.empty() ? "" : ", ", line);
  return text;
}

std::string place_text(const Place& place) {
  static constexpr std::string_view kNames[] = {"arena", "state", "input", "output"};
  return fmt::format("{}+{}", kNames[static_cast<size_t>(place.space)], place.offset);
}

struct StepText {
  const CompiledModule& compiled;

  std::string operator()(const KernelStep& step) const {
    const LoopProgram& kernel = compiled.kernels[static_cast<size_t>(step.kernel)];
    std::string shape = kernel.target.is_cuda()
                            ? fmt::format("<<<{}, {}>>>", kernel.grid, kernel.block)
                            : fmt::format("({} iterations)", kernel.grid);
    std::string sites =
        step.sites.empty() ? "" : fmt::format(" at site {}", fmt::join(step.sites, " "));
    return fmt::format("{} {}: {}{}{}{}", kernel.symbol, shape, op_names(*step.op), sites,
                       step.writes_state ? " into state" : "", suffix(*step.op));
  }
  std::string operator()(const MatmulStep& step) const {
    MatmulSizes s = matmul_sizes(*step.op);
    const auto& attrs = step.op->attrs<MatmulAttrs>();
    return fmt::format(
        "matmul {}{}x{}x{} {}{}{}{}{}{}", s.batch > 1 ? fmt::format("{} of ", s.batch) : "", s.m,
        s.n, s.k, attrs.compute == "tf32" ? "tf32" : to_string(step.op->operand(0).dtype()),
        step.op->result().dtype() == step.op->operand(0).dtype()
            ? ""
            : fmt::format(" -> {}", to_string(step.op->result().dtype())),
        attrs.transpose_a ? " transpose_a" : "", attrs.transpose_b ? " transpose_b" : "",
        !step.c                           ? ""
        : step.op->operand(2).rank() == 1 ? " plus a row"
                                          : " accumulating",
        suffix(*step.op));
  }
  std::string operator()(const TemplateStep& step) const {
    std::string parts;
    for (const auto& action : step.actions) {
      if (!parts.empty()) parts += ", ";
      if (auto* launch = std::get_if<TemplateStep::Launch>(&action)) {
        const TemplateKernel& kernel = compiled.templates[static_cast<size_t>(launch->kernel)];
        parts += fmt::format("{} <<<{}, {}, {}>>>", kernel.symbol, launch->grid, kernel.block,
                             kernel.shared_bytes);
      } else {
        parts += fmt::format("fill {} words", std::get<TemplateFill>(action).words);
      }
    }
    return fmt::format("{} by kernel {}: {}{}", step.op->name(), step.op->native(), parts,
                       suffix(*step.op));
  }
  std::string operator()(const CopyStep& step) const {
    return fmt::format("copy {} bytes {} -> {}", step.bytes, place_text(step.from),
                       place_text(step.to));
  }
  std::string operator()(const GateStep&) const {
    return "gate: behind it a fault keeps all state";
  }
  static std::string suffix(const Op& op) {
    std::string text = origin(op);
    return text.empty() ? "" : "  [" + text + "]";
  }
};

void add_lines(std::string& out, const std::string& text, std::string_view indent) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    out += fmt::format("{}{}\n", end > at ? indent : "", text.substr(at, end - at));
    at = end + 1;
  }
}

}  // namespace

std::string plan_text(const CompiledModule& compiled, const CompileOptions& options) {
  const Module& module = *compiled.module;
  std::string out =
      fmt::format("device {}, target {}, {} multiprocessors{}\n", to_string(options.device),
                  module.target.arch, module.target.multiprocessors,
                  module.target.is_cuda()
                      ? fmt::format(", {} bytes of shared memory", module.target.shared_memory)
                      : "");
  if (!options.disabled.empty())
    out += fmt::format("switched off: {}\n", fmt::join(options.disabled, " "));
  out += fmt::format("{} kernels, {} of them templates, state {} bytes, arena {} bytes\n",
                     compiled.kernels.size() + compiled.templates.size(), compiled.templates.size(),
                     compiled.state_bytes, compiled.arena_bytes);
  for (const auto& [name, program] : compiled.programs) {
    out += fmt::format("\ngraph @{}\n", name);
    for (size_t i = 0; i < program.steps.size(); ++i)
      out += fmt::format("  {:3} {}\n", i, std::visit(StepText{compiled}, program.steps[i]));
    out += "\n";
    add_lines(out, compiled.plans.at(name).str(), "  ");
  }
  return out;
}

std::string kernel_header(const CompiledModule& compiled, int kernel) {
  const LoopProgram& program = compiled.kernels[static_cast<size_t>(kernel)];
  std::string out = fmt::format("// {}\n", program.symbol);
  std::string ops;
  for (const auto& [name, entry] : compiled.programs)
    for (size_t i = 0; i < entry.steps.size(); ++i) {
      const auto* step = std::get_if<KernelStep>(&entry.steps[i]);
      if (step == nullptr || step->kernel != kernel) continue;
      if (ops.empty()) {
        ops = op_names(*step->op);
        out += fmt::format("// IR ops: {}\n", ops);
      }
      out += fmt::format("// @{} launch {}: {}\n", name, i, origin(*step->op));
    }
  return out + "\n";
}

}  // namespace sinter::detail
