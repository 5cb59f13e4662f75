#include <sinter/ir/numeric.h>
#include <sinter/tests/fuzz/lib/specimen.h>

namespace sinter::test {

Tensor Filling::tensor(const std::string& name, const TensorType& type) const {
  if (!from_flags)
    return is_float(type.dtype) ? fill(type, s) : fill_mod(type, s, std::max<int64_t>(1, modulus));
  Tensor t(type);
  if (t.size() > 0 && name != "offset")
    store_from_int64(type.dtype, t.data(), 0, name == "seed" ? kSeedFlag : kStepFlag);
  return t;
}

std::string Filling::flag(const std::string& name) const {
  if (from_flags) return "";
  std::string text = fmt::format("--input {}=fill:{}", name, s);
  if (modulus > 0) text += fmt::format(":{}", modulus);
  return text;
}

std::vector<Tensor> Specimen::inputs() const {
  std::vector<Tensor> all;
  for (Value v : graph().inputs()) all.push_back(fillings.at(v.name()).tensor(v.name(), v.type()));
  return all;
}

Bindings Specimen::bindings() const {
  Bindings all;
  for (Value v : graph().inputs()) all[v.name()] = fillings.at(v.name()).tensor(v.name(), v.type());
  return all;
}

std::string Specimen::flags() const {
  std::string text;
  bool random = false;
  for (Value v : graph().inputs()) {
    const Filling& filling = fillings.at(v.name());
    random = random || filling.from_flags;
    if (std::string flag = filling.flag(v.name()); !flag.empty()) text += " " + flag;
  }
  if (random) text += fmt::format(" --seed={} --step={}", kSeedFlag, kStepFlag);
  return text;
}

Specimen Specimen::clone() const {
  return {seed, module->clone(), fillings};
}

}  // namespace sinter::test
