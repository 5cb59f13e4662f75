#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/util.h>

#include <algorithm>

namespace sinter::detail {

SourceLocation place_of(Value v) {
  if (v.op() != nullptr) return v.op()->loc();
  return {};
}

void ActivePath::require_floats() const {
  std::string_view what = pass == "jvp" ? "tangent" : "gradient";
  for (const std::vector<Value>* values : {&wrt, &of})
    for (Value v : *values)
      if (!is_float(v.dtype()))
        throw Error(Diagnostic{
            place_of(v), fmt::format("{}: {} has no {}: not a float", pass, describe(v), what)});
}

// Forward: what depends on wrt. Backward: what `of` depends on. The path is both.
void ActivePath::walk() {
  active.clear();
  ops.clear();
  active.insert(wrt.begin(), wrt.end());
  std::vector<Op*> dependent;
  for (Op* op = first != nullptr ? first : graph.front(); op != end; op = op->next()) {
    bool depends = false;
    for (Value v : op->operands()) depends = depends || (v && active.contains(v));
    if (!depends) continue;
    dependent.push_back(op);
    for (size_t i = 0; i < op->num_results(); ++i)
      if (is_float(op->result(i).dtype())) active.insert(op->result(i));
  }
  ValueSet needed(of.begin(), of.end());
  for (size_t i = dependent.size(); i-- > 0;) {
    Op& op = *dependent[i];
    bool on_path = false;
    for (size_t k = 0; k < op.num_results(); ++k)
      on_path = on_path || (needed.contains(op.result(k)) && active.contains(op.result(k)));
    if (!on_path) continue;
    ops.push_back(&op);
    for (Value v : op.operands())
      if (v && active.contains(v)) needed.insert(v);
  }
  std::reverse(ops.begin(), ops.end());
}

void ActivePath::find(const std::function<bool(const OpDef&)>& expands,
                      std::vector<Value>& watched) {
  for (bool again = true; again;) {
    walk();
    again = false;
    for (Op* op : ops) {
      if (!expands(op->def())) continue;
      if (context != nullptr)
        context->remark(op->loc(), fmt::format("expanded: {} has no derivative of its own, and is "
                                               "differentiated through its expansion",
                                               op->name()));
      std::vector<Value> old;
      for (size_t i = 0; i < op->num_results(); ++i) old.push_back(op->result(i));
      std::vector<Value> now = expand_in_place(*op, context == nullptr);
      for (size_t i = 0; i < old.size(); ++i)
        for (std::vector<Value>* values : {&of, &wrt, &watched})
          std::replace(values->begin(), values->end(), old[i], now[i]);
      again = true;
    }
  }
}

void ActivePath::refuse(const std::function<const std::string*(const OpDef&)>& refusal) const {
  std::string list;
  SourceLocation place;
  for (const Op* op : ops) {
    const std::string* why = refusal(op->def());
    if (why == nullptr) continue;
    if (list.empty()) place = op->loc();
    list += fmt::format("\n  {} at {}: {}", op->name(), op->loc().str(), *why);
  }
  if (list.empty()) return;
  std::string to;
  for (Value v : of)
    if (!v.name().empty()) to += fmt::format("{}%{}", to.empty() ? "" : ", ", v.name());
  throw Error(Diagnostic{place, fmt::format("{}: no derivative on the path to {}:{}", pass,
                                            to.empty() ? "the loss" : to, list)});
}

}  // namespace sinter::detail
