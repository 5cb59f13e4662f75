#include <sinter/ir/ops.h>
#include <sinter/tests/ops/samples.h>

namespace sinter::test {

std::vector<const OpDef*> all_ops() {
  std::vector<const OpDef*> ops;
  const OpRegistry& registry = OpRegistry::get();
  for (const OpDef* def : registry.all()) {
    ops.push_back(def);
    if (!def->derivative) continue;
    for (size_t i = 0; i < def->operands.size(); ++i)
      if (const OpDef* d = registry.find(fmt::format("{}_d{}", def->name, i))) ops.push_back(d);
  }
  return ops;
}

std::shared_ptr<void> trial_attrs(const OpDef& def, const Sample& sample) {
  std::shared_ptr<void> attrs = def.schema.make();
  size_t found = 0;
  for (size_t k = 0; k < def.schema.items.size(); ++k) {
    const auto& item = def.schema.items[k];
    if (item.is_result_type && sample.result)
      SINTER_CHECK(item.set(attrs.get(), k, *sample.result), "{}: result type", def.name);
    auto it = sample.attrs.find(item.name);
    if (it == sample.attrs.end()) continue;
    SINTER_CHECK(item.set(attrs.get(), k, it->second), "{}: attribute {}", def.name, item.name);
    ++found;
  }
  SINTER_CHECK(found == sample.attrs.size(), "a sample of {} has an unknown attribute", def.name);
  return attrs;
}

Graph& add_callee(Module& module, std::span<const TensorType> inputs, const std::string& name) {
  Graph& callee = module.add_graph(name);
  for (const TensorType& type : inputs) {
    Value x = callee.add_input(fmt::format("a{}", callee.inputs().size()), type);
    callee.add_output("", type.dtype == DType::Bool ? logical_not(x) : mul(x, x));
  }
  return callee;
}

double uniform(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace sinter::test
