#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {
namespace {

// "x (f32[2,3])", or "operand 1 (f32[2,3])" without a name.
std::string describe(Value v, size_t i) {
  return fmt::format("{} ({})", v.name().empty() ? fmt::format("operand {}", i) : v.name(),
                     v.type().str());
}

// Right-aligned broadcasting; throws when an axis disagrees.
Shape common_shape(std::string_view op, std::span<const Operand> operands,
                   const SourceLocation& loc) {
  Shape shape;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].value) continue;
    const Shape& s = operands[i].value.shape();
    if (s.size() > shape.size()) shape.insert(shape.begin(), s.size() - shape.size(), 1);
    for (size_t k = 0; k < s.size(); ++k) {
      int64_t& d = shape[shape.size() - s.size() + k];
      if (d == s[k] || s[k] == 1) continue;
      if (d == 1) {
        d = s[k];
        continue;
      }
      std::vector<std::string> all;
      for (size_t m = 0; m < operands.size(); ++m)
        if (operands[m].value) all.push_back(describe(operands[m].value, m));
      std::string text = all[0];
      for (size_t m = 1; m < all.size(); ++m) text += " and " + all[m];
      throw Error(Diagnostic{
          loc,
          fmt::format("{}: shapes of {} do not broadcast: axis {} from the right has {} and {}", op,
                      text, s.size() - k, d, s[k])});
    }
  }
  return shape;
}

}  // namespace

Value broadcast_to(Value v, const Shape& shape, SourceLocation loc) {
  if (v.shape() == shape) return v;
  BroadcastAttrs attrs{{{v.dtype(), shape}}};
  return build_op(v.graph(), "broadcast", {v}, std::move(attrs), std::move(loc)).result();
}

Value build_pointwise_erased(std::string_view name, std::span<const Operand> operands,
                             std::shared_ptr<const void> attrs) {
  SourceLocation loc = operands.front().loc();
  const OpDef& def = OpRegistry::get().at(name);
  Value typed;  // sets the dtype of numbers
  for (const Operand& o : operands)
    if (o.value && (!typed || typed.dtype() == DType::Bool)) typed = o.value;
  if (!typed) throw Error(Diagnostic{loc, fmt::format("{}: all operands are numbers", name)});
  Graph& graph = typed.graph();
  Shape shape = common_shape(name, operands, loc);
  OpInit init;
  init.attrs = std::move(attrs);
  init.loc = loc;
  for (const Operand& o : operands) {
    if (o.value) {
      init.operands.push_back(broadcast_to(o.value, shape, loc));
      continue;
    }
    Number n = o.number;
    if (!is_float(typed.dtype())) {
      if (o.number != static_cast<double>(static_cast<int64_t>(o.number)))
        throw Error(Diagnostic{loc, fmt::format("{}: the number {} does not fit {}", name, o.number,
                                                describe(typed, 0))});
      n = static_cast<int64_t>(o.number);
    }
    init.operands.push_back(full(graph, {typed.dtype(), shape}, n, loc));
  }
  return graph.create(def, std::move(init)).result();
}

Value build_pointwise(std::string_view name, std::initializer_list<Operand> operands) {
  return build_pointwise_erased(name, {operands.begin(), operands.size()}, nullptr);
}

}  // namespace sinter
