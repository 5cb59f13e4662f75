#include <sinter/frontends/dsl/detail/trace.h>
#include <sinter/ir/ops/source.h>

#include <algorithm>
#include <unordered_set>

namespace sinter::detail {

Trace::Trace(Graph& graph, std::string what, std::vector<Parameter> parameters, const Body& body,
             SourceLocation loc)
    : graph_(graph), what_(std::move(what)), names_(std::move(parameters)), loc_(std::move(loc)) {
  SINTER_CHECK(graph_.insertion_point() == nullptr, "{}: ops must go to the end", what_);
  mark_ = full(graph_, {DType::F32, {}}, 0.0, loc_).op();
  // An apostrophe is in no name that a user may give, so that no input is taken for a stand-in.
  for (const Parameter& p : names_)
    stand_ins_.push_back(
        graph_.add_input(fmt::format("{}'{}", p.name, graph_.inputs().size()), p.type));
  try {
    outputs_ = body(stand_ins_);
    collect();
  } catch (...) {
    remove();
    throw;
  }
}

Trace::~Trace() {
  remove();
}

void Trace::collect() {
  ValueMap<bool> known;
  for (Value v : stand_ins_) known[v] = true;
  auto use = [&](Value v) {
    if (v && known.emplace(v, true).second) captures_.push_back(v);
  };
  for (Op* op = mark_->next(); op != nullptr; op = op->next()) {
    for (Value v : op->operands()) use(v);
    for (size_t i = 0; i < op->num_results(); ++i) known[op->result(i)] = true;
    ops_.push_back(op);
  }
  for (const GraphOutput& o : graph_.outputs())
    if (is_inside(o.value))
      throw Error(
          Diagnostic{loc_, fmt::format("{}: output {} of @{} is a value made inside: return "
                                       "it from the function",
                                       what_, o.name, graph_.name())});
  for (Value v : outputs_) {
    if (!v) throw Error(Diagnostic{loc_, fmt::format("{}: the function returns no value", what_)});
    if (&v.graph() != &graph_)
      throw Error(Diagnostic{
          loc_, fmt::format("{}: the function returns a value of another graph", what_)});
    use(v);
  }
}

bool Trace::is_inside(Value v) const {
  if (v.op() != nullptr) return v.op()->position() > mark_->position();
  return std::find(stand_ins_.begin(), stand_ins_.end(), v) != stand_ins_.end();
}

void Trace::remove() noexcept {
  for (size_t i = graph_.outputs().size(); i-- > 0;)
    if (is_inside(graph_.outputs()[i].value)) graph_.erase_output(i);
  for (bool more = true; more;) {
    Op* last = graph_.back();
    more = last != mark_;
    graph_.erase(*last);
  }
  for (size_t k = stand_ins_.size(); k-- > 0;)
    graph_.erase_input(static_cast<size_t>(stand_ins_[k].index()));
}

std::string Trace::name_of(Value v) const {
  for (size_t k = 0; k < stand_ins_.size(); ++k)
    if (stand_ins_[k] == v) return names_[k].name;
  return v.name();
}

Graph& Trace::build(const std::string& stem, std::span<const Value> inputs) const {
  Module& module = graph_.module();
  Graph& body = module.add_graph(module.unique_graph_name(stem));
  body.attributes["private"] = true;
  std::unordered_set<std::string> taken;
  ValueMap<Value> map;
  for (Value v : inputs) {
    std::string wanted = name_of(v);
    if (wanted.empty()) wanted = fmt::format("in{}", body.inputs().size());
    std::string name = wanted;
    for (int n = 1; !taken.insert(name).second; ++n) name = fmt::format("{}_{}", wanted, n);
    map[v] = body.add_input(name, v.type());
  }
  for (Op* op : ops_) {
    std::vector<Value> operands;
    for (Value v : op->operands()) operands.push_back(v ? map.at(v) : Value());
    Op& copy = clone_op(*op, body, std::move(operands));
    for (size_t i = 0; i < op->num_results(); ++i) map[op->result(i)] = copy.result(i);
  }
  for (Value v : outputs_) body.add_output("", map.at(v));
  return body;
}

Graph& Trace::build(const std::string& stem) const {
  std::vector<Value> inputs = stand_ins_;
  inputs.insert(inputs.end(), captures_.begin(), captures_.end());
  return build(stem, inputs);
}

}  // namespace sinter::detail
