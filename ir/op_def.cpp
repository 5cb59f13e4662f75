#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/registry.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace sinter {

std::string_view to_string(OpKind kind) {
  static constexpr std::string_view kNames[] = {"pointwise", "view",      "source",  "reduce",
                                                "prefix",    "gather",    "scatter", "random",
                                                "contract",  "composite", "opaque"};
  return kNames[static_cast<size_t>(kind)];
}

std::string InferContext::describe(size_t i) const {
  std::string name = operands_[i].name();
  if (name.empty()) {
    const auto& specs = def_.operands;
    if (i < specs.size() && specs[i].kind != OperandSpec::Variadic)
      name = specs[i].name;
    else
      name = fmt::format("operand {}", i);
  }
  return fmt::format("{} ({})", name, type(i).str());
}

Diagnostic InferContext::error_text(const std::string& message) const {
  return {loc_, fmt::format("{}: {}", def_.name, message)};
}

std::optional<int64_t> normalize_axis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) return std::nullopt;
  return axis < 0 ? axis + rank : axis;
}

std::optional<std::vector<int64_t>> normalize_axes(const std::vector<int64_t>& axes, int64_t rank) {
  std::vector<int64_t> out;
  for (int64_t axis : axes) {
    auto at = normalize_axis(axis, rank);
    if (!at || std::find(out.begin(), out.end(), *at) != out.end()) return std::nullopt;
    out.push_back(*at);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Cost Cost::bytes_moved(const Op& op, double flops_per_element) {
  Cost cost;
  for (Value v : op.operands())
    if (v) cost.bytes += static_cast<double>(v.type().bytes());
  for (size_t i = 0; i < op.num_results(); ++i) {
    cost.bytes += static_cast<double>(op.result(i).type().bytes());
    cost.flops += flops_per_element * static_cast<double>(op.result(i).type().elements());
  }
  return cost;
}

void set_jvp(OpDef& def, Jvp answer) {
  def.jvp_answer = answer;
  if (answer == Jvp::linear) def.jvp = &detail::linear_jvp;
  if (answer == Jvp::none) def.jvp = &detail::zero_jvp;
}

void set_batch(OpDef& def, Batch answer) {
  def.batch_answer = answer;
  if (answer == Batch::shift_axes) def.batch = &detail::shift_axes;
  if (answer == Batch::shift_reduced_axes) def.batch = &detail::shift_reduced_axes;
  if (answer == Batch::unroll) def.batch = &detail::unroll;
}

std::vector<std::string> callees_of(const Op& op) {
  std::vector<std::string> names;
  if (!op.callee().empty()) names.push_back(op.callee());
  for (const std::string& attr : op.def().callee_attrs)
    names.push_back(std::get<std::string>(op.attr(attr)));
  return names;
}

// ---- Registry

struct OpRegistry::Impl {
  mutable std::mutex mutex;
  std::deque<OpDef> defs;  // stable addresses
  std::deque<OpDef> derived;
  std::unordered_map<std::string, const OpDef*> by_name;
};

OpRegistry::OpRegistry() : impl_(std::make_unique<Impl>()) {}
OpRegistry::~OpRegistry() = default;

OpRegistry& OpRegistry::get() {
  static OpRegistry* registry = [] {
    auto* r = new OpRegistry;
    register_source(*r);
    register_arithmetic(*r);
    register_elementary(*r);
    register_bitwise(*r);
    register_activation(*r);
    register_view(*r);
    register_shape(*r);
    register_reduce(*r);
    register_prefix(*r);
    register_statistics(*r);
    register_contract(*r);
    register_contraction(*r);
    register_conv(*r);
    register_pool(*r);
    register_index(*r);
    register_sort(*r);
    register_embedding(*r);
    register_normalization(*r);
    register_channel_norm(*r);
    register_attention(*r);
    register_loss(*r);
    register_random(*r);
    register_optimizer(*r);
    register_call(*r);
    register_scan(*r);
    return r;
  }();
  return *registry;
}

void OpRegistry::add(OpDef def) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->by_name.contains(def.name))
    throw Error(fmt::format("there is an op '{}' already", def.name));
  impl_->defs.push_back(std::move(def));
  impl_->by_name[impl_->defs.back().name] = &impl_->defs.back();
}

const OpDef* OpRegistry::find(std::string_view name) const {
  std::string key(name);
  {
    std::lock_guard lock(impl_->mutex);
    if (auto it = impl_->by_name.find(key); it != impl_->by_name.end()) return it->second;
  }
  // NAME_dI: the derivative of a pointwise op, made on first use.
  size_t at = key.rfind("_d");
  if (at == std::string::npos || at + 3 != key.size()) return nullptr;
  char digit = key[at + 2];
  if (digit < '0' || digit > '9') return nullptr;
  const OpDef* base = find(key.substr(0, at));
  if (base == nullptr || !base->derivative) return nullptr;
  std::optional<OpDef> def = base->derivative(static_cast<size_t>(digit - '0'));
  if (!def) return nullptr;
  std::lock_guard lock(impl_->mutex);
  if (auto it = impl_->by_name.find(key); it != impl_->by_name.end()) return it->second;
  impl_->derived.push_back(std::move(*def));
  return impl_->by_name[key] = &impl_->derived.back();
}

const OpDef& OpRegistry::at(std::string_view name) const {
  const OpDef* def = find(name);
  SINTER_CHECK(def != nullptr, "there is no op {}", name);
  return *def;
}

std::vector<const OpDef*> OpRegistry::all() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<const OpDef*> out;
  for (const OpDef& def : impl_->defs) out.push_back(&def);
  return out;
}

}  // namespace sinter
