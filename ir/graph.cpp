#include <sinter/ir/graph.h>
#include <sinter/ir/op_def.h>

#include <algorithm>
#include <unordered_set>

namespace sinter {

namespace detail {
struct ValueImpl {
  TensorType type;
  Op* op = nullptr;
  Graph* graph = nullptr;
  int index = 0;
  std::string name;
  std::vector<Use> uses;
};
}  // namespace detail

// ---- Value

const TensorType& Value::type() const {
  return impl_->type;
}

int64_t Value::dim(int64_t axis) const {
  auto at = normalize_axis(axis, rank());
  SINTER_CHECK(at.has_value(), "axis {} of a value of type {}", axis, type().str());
  return shape()[static_cast<size_t>(*at)];
}

Op* Value::op() const {
  return impl_->op;
}
int Value::index() const {
  return impl_->index;
}
Graph& Value::graph() const {
  return *impl_->graph;
}
const std::string& Value::name() const {
  return impl_->name;
}
void Value::set_name(std::string name) const {
  impl_->name = std::move(name);
}
const std::vector<Use>& Value::uses() const {
  return impl_->uses;
}

void Value::replace_all_uses_with(Value other) const {
  if (other == *this) return;
  std::vector<Use> uses = std::move(impl_->uses);
  impl_->uses.clear();
  for (const Use& use : uses) {
    use.op->operands_[static_cast<size_t>(use.operand)] = other;
    other.impl_->uses.push_back(use);
  }
  for (GraphOutput& out : impl_->graph->outputs_)
    if (out.value == *this) out.value = other;
}

// ---- Op

std::string_view Op::name() const {
  return def_->name;
}

Value Op::result(size_t i) const {
  SINTER_CHECK(i < results_.size(), "result {} of {}, which has {}", i, name(), results_.size());
  return Value(results_[i]);
}

void Op::set_operand(size_t i, Value v) {
  Value old = operands_[i];
  if (old == v) return;
  if (old) {
    auto& uses = old.impl_->uses;
    auto at = std::find_if(uses.begin(), uses.end(), [&](const Use& u) {
      return u.op == this && u.operand == static_cast<int>(i);
    });
    *at = uses.back();
    uses.pop_back();
  }
  operands_[i] = v;
  if (v) v.impl_->uses.push_back({this, static_cast<int>(i)});
}

void Op::check_attrs_type(const std::type_info& type) const {
  SINTER_CHECK(*def_->schema.type == type, "attributes of {} read as another struct", name());
}

AttrValue Op::attr(std::string_view attr_name) const {
  const auto& items = def_->schema.items;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].name == attr_name) return def_->schema.get(attrs_.get(), i);
  SINTER_CHECK(false, "{} has no attribute {}", name(), attr_name);
}

int64_t Op::position() const {
  if (!graph_->positions_valid_) graph_->reindex();
  return position_;
}

// ---- Graph

Graph::Graph(Module& module, std::string name) : module_(&module), name_(std::move(name)) {}
Graph::~Graph() = default;

detail::ValueImpl* Graph::new_value(TensorType type, Op* op, int index) {
  values_.push_back(std::make_unique<detail::ValueImpl>());
  detail::ValueImpl* v = values_.back().get();
  v->type = std::move(type);
  v->op = op;
  v->graph = this;
  v->index = index;
  return v;
}

Value Graph::add_input(std::string name, TensorType type) {
  Value v(new_value(std::move(type), nullptr, static_cast<int>(inputs_.size())));
  v.set_name(std::move(name));
  inputs_.push_back(v);
  return v;
}

void Graph::erase_input(size_t i) {
  SINTER_CHECK(inputs_[i].uses().empty() && !is_output(inputs_[i]), "input {} is still used",
               inputs_[i].name());
  inputs_.erase(inputs_.begin() + static_cast<int64_t>(i));
  for (size_t k = i; k < inputs_.size(); ++k) inputs_[k].impl_->index = static_cast<int>(k);
}

Value Graph::find_input(std::string_view name) const {
  for (Value v : inputs_)
    if (v.name() == name) return v;
  return {};
}

void Graph::add_output(std::string name, Value value) {
  if (name.empty()) name = value.name().empty() ? "out" : value.name();
  auto taken = [&](const std::string& n) {
    return std::any_of(outputs_.begin(), outputs_.end(),
                       [&](const GraphOutput& o) { return o.name == n; });
  };
  if (taken(name)) {
    int n = 1;
    while (taken(fmt::format("{}_{}", name, n))) ++n;
    name = fmt::format("{}_{}", name, n);
  }
  outputs_.push_back({std::move(name), value});
}

bool Graph::is_output(Value v) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const GraphOutput& o) { return o.value == v; });
}

Op& Graph::create(const OpDef& def, OpInit init) {
  if (override_.active) {
    init.loc = override_.loc;
    if (!init.from.known()) init.from = override_.from;
  }
  if (init.segment.empty()) init.segment = override_.active ? override_.segment : segment_;
  if (!init.attrs) init.attrs = def.schema.make();
  Graph* callee = init.callee.empty() ? nullptr : module_->find(init.callee);
  InferContext context(def, init.attrs.get(), init.operands, init.loc, callee);

  size_t fixed = def.operands.size();
  bool variadic = fixed > 0 && def.operands.back().kind == OperandSpec::Variadic;
  size_t needed = 0;
  for (const OperandSpec& spec : def.operands)
    needed += spec.kind == OperandSpec::Required ||
              (spec.kind == OperandSpec::Variadic && !def.has_callee);
  if (init.operands.size() < needed || (!variadic && init.operands.size() > fixed))
    throw Error(context.error("takes {}{} operand{}, got {}", variadic ? "at least " : "", needed,
                              needed == 1 ? "" : "s", init.operands.size()));
  for (size_t i = 0; i < init.operands.size(); ++i) {
    if (init.operands[i]) {
      SINTER_CHECK(&init.operands[i].graph() == this, "{}: operand {} is of another graph",
                   def.name, i);
      continue;
    }
    if (i >= fixed || def.operands[i].kind != OperandSpec::Optional)
      throw Error(context.error("operand {} is missing", i < fixed ? def.operands[i].name : "?"));
  }
  if (def.has_callee && callee == nullptr)
    throw Error(context.error("there is no graph @{}", init.callee));

  std::vector<TensorType> types = def.infer(context).take();
  auto owned = std::make_unique<Op>();
  Op& op = *owned;
  op.def_ = &def;
  op.attrs_ = std::move(init.attrs);
  op.operands_ = std::move(init.operands);
  op.loc_ = std::move(init.loc);
  op.from_ = std::move(init.from);
  op.segment_ = std::move(init.segment);
  op.native_ = std::move(init.native);
  op.callee_ = std::move(init.callee);
  op.graph_ = this;
  for (size_t i = 0; i < op.operands_.size(); ++i)
    if (op.operands_[i]) op.operands_[i].impl_->uses.push_back({&op, static_cast<int>(i)});
  for (size_t i = 0; i < types.size(); ++i)
    op.results_.push_back(new_value(std::move(types[i]), &op, static_cast<int>(i)));
  ops_.push_back(std::move(owned));
  link(op, insert_before_);
  return op;
}

void Graph::link(Op& op, Op* before) {
  op.next_ = before;
  op.prev_ = before ? before->prev_ : last_;
  (op.prev_ ? op.prev_->next_ : first_) = &op;
  (before ? before->prev_ : last_) = &op;
  ++count_;
  // Appending keeps the numbering.
  if (before == nullptr && positions_valid_)
    op.position_ = op.prev_ ? op.prev_->position_ + 1 : 0;
  else
    positions_valid_ = false;
}

void Graph::unlink(Op& op) {
  (op.prev_ ? op.prev_->next_ : first_) = op.next_;
  (op.next_ ? op.next_->prev_ : last_) = op.prev_;
  op.prev_ = op.next_ = nullptr;
  --count_;
}

void Graph::erase(Op& op) {
  for (size_t i = 0; i < op.num_results(); ++i) {
    Value v = op.result(i);
    SINTER_CHECK(v.uses().empty() && !is_output(v), "erasing {} whose result {} is used", op.name(),
                 i);
  }
  for (size_t i = 0; i < op.operands_.size(); ++i) op.set_operand(i, Value());
  SINTER_CHECK(insert_before_ != &op, "erasing the op at the insertion point");
  unlink(op);
}

void Graph::move_before(Op& op, Op* before) {
  if (before == &op || op.next_ == before) return;
  unlink(op);
  link(op, before);
}

void Graph::reindex() const {
  int64_t n = 0;
  for (Op* op = first_; op; op = op->next_) op->position_ = n++;
  positions_valid_ = true;
}

InsertionScope::InsertionScope(Graph& graph, Op* before)
    : graph_(graph), saved_before_(graph.insert_before_), saved_override_(graph.override_) {
  graph_.insert_before_ = before;
}

InsertionScope::InsertionScope(Graph& graph, Op* before, const Op& origin, SourceLocation from)
    : InsertionScope(graph, before) {
  graph_.override_ = {origin.loc(), std::move(from), origin.segment(), true};
}

InsertionScope::InsertionScope(Graph& graph, Op* before, const Op& origin, SourceLocation from,
                               std::string segment)
    : InsertionScope(graph, before) {
  graph_.override_ = {origin.loc(), std::move(from), std::move(segment), true};
}

InsertionScope::~InsertionScope() {
  graph_.insert_before_ = saved_before_;
  graph_.override_ = saved_override_;
}

// ---- Module

Graph& Module::add_graph(std::string name) {
  SINTER_CHECK(find(name) == nullptr, "there is a graph @{} already", name);
  graphs_.push_back(std::make_unique<Graph>(*this, std::move(name)));
  return *graphs_.back();
}

Graph* Module::find(std::string_view name) const {
  for (const auto& g : graphs_)
    if (g->name() == name) return g.get();
  return nullptr;
}

void Module::erase_graph(Graph& graph) {
  std::erase_if(graphs_, [&](const auto& g) { return g.get() == &graph; });
}

const State* Module::find_state(std::string_view name) const {
  for (const State& s : states)
    if (s.name == name) return &s;
  return nullptr;
}

std::string Module::unique_graph_name(const std::string& stem) const {
  if (!find(stem)) return stem;
  for (int n = 1;; ++n)
    if (std::string name = fmt::format("{}_{}", stem, n); !find(name)) return name;
}

std::unique_ptr<Module> Module::clone() const {
  auto out = std::make_unique<Module>();
  out->target = target;
  out->states = states;
  out->next_random_site = next_random_site;
  for (const auto& g : graphs_) out->add_graph(g->name());
  // A callee must have its outputs before a caller infers its type, so callees go first.
  std::vector<const Graph*> order, stack;
  std::unordered_set<const Graph*> done;
  for (const auto& g : graphs_) {
    stack.push_back(g.get());
    while (!stack.empty()) {
      const Graph* top = stack.back();
      size_t before = stack.size();
      for (Op& op : *top)
        for (const std::string& name : callees_of(op))
          if (const Graph* callee = find(name); callee && !done.contains(callee))
            stack.push_back(callee);
      if (stack.size() != before) continue;
      stack.pop_back();
      if (done.insert(top).second) order.push_back(top);
    }
  }
  for (const Graph* g : order) {
    Graph& copy = *out->find(g->name());
    copy.attributes = g->attributes;
    ValueMap<Value> map;
    for (Value v : g->inputs()) map[v] = copy.add_input(v.name(), v.type());
    clone_ops(*g, copy, map);
    for (const GraphOutput& o : g->outputs()) copy.add_output(o.name, map.at(o.value));
  }
  return out;
}

Op& clone_op(const Op& op, Graph& to, std::vector<Value> operands) {
  OpInit init;
  init.attrs = op.raw_attrs();
  init.operands = std::move(operands);
  init.loc = op.loc();
  init.from = op.from();
  init.segment = op.segment();
  init.native = op.native();
  init.callee = op.callee();
  Op& copy = to.create(op.def(), std::move(init));
  copy.set_with(op.with());
  for (size_t i = 0; i < op.num_results(); ++i) copy.result(i).set_name(op.result(i).name());
  return copy;
}

void clone_ops(const Graph& from, Graph& to, ValueMap<Value>& map) {
  for (Op& op : from) {
    std::vector<Value> operands;
    for (Value v : op.operands()) operands.push_back(v ? map.at(v) : Value());
    Op& copy = clone_op(op, to, std::move(operands));
    for (size_t i = 0; i < op.num_results(); ++i) map[op.result(i)] = copy.result(i);
  }
}

}  // namespace sinter
