// optimizer: appends the update of the parameters that minimize() names.
//
// What it reads and what it adds stands in optimizer.h. It runs after autodiff, whose outputs
// `grad_NAME` it turns into next values of the parameters and of the optimizer's own state. What a
// step computes and which states it has is said by the optimizer's op and its rule; no rule is
// named here.

#include <sinter/passes/accumulate.h>
#include <sinter/passes/optimizer.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <limits>
#include <map>

namespace sinter {

namespace {

constexpr double kSmallestLossScale = 1, kLargestLossScale = 1 << 30;

// One rule as this graph uses it.
struct Applied {
  const OptimizerRule* rule = nullptr;
  const OpDef* def = nullptr;
  std::shared_ptr<void> attrs, undecayed;  // the same but for weight_decay = 0
  Value lr;
  Value count, next_count;  // null until a parameter asks
  size_t parameters = 0;
};

// A parameter on its way through the pass.
struct Parameter {
  std::string name;
  Value p, g;
  Applied* by = nullptr;
};

// A state and what becomes of it.
struct Next {
  std::string name;
  Value before, after;
};

class Update {
 public:
  Update(Module& module, Graph& graph) : module_(module), graph_(graph) {}

  void run(PassContext& context) {
    read_rules();
    std::vector<Parameter> parameters = take_parameters();
    scale(parameters);
    for (Parameter& p : parameters) update(p);
    finish();
    for (const auto& entry : rules_)
      context.remark({}, fmt::format("@{}: {} updates {} parameters", graph_.name(), entry.first,
                                     entry.second.parameters));
    for (const std::string& name : read_) graph_.attributes.erase(name);
    refuse_unread();
  }

  // States that the update declared and the graph `init` does not set.
  void initialise(Graph& init) const {
    InsertionScope scope(init, nullptr);
    for (const State& s : added_) {
      auto same = [&](const GraphOutput& o) { return o.name == s.name; };
      if (std::any_of(init.outputs().begin(), init.outputs().end(), same)) continue;
      init.add_output(s.name,
                      full(init, s.type, s.name == loss_scale_ ? kInitialLossScale : 0, {}));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("optimizer: graph @{}: {}", graph_.name(), message));
  }

  // Null when it is missing. The attribute is taken away at the end.
  const AttrValue* attribute(const std::string& name) {
    auto it = graph_.attributes.find(name);
    if (it == graph_.attributes.end()) return nullptr;
    read_.push_back(name);
    return &it->second;
  }
  // `otherwise` when it is missing.
  template <typename T>
  T attribute(const std::string& name, T otherwise) {
    const AttrValue* value = attribute(name);
    if (value != nullptr && !detail::from_attr(otherwise, *value)) refuse(name, *value);
    return otherwise;
  }
  [[noreturn]] void refuse(const std::string& name, const AttrValue& value) const {
    fail(fmt::format("{} cannot be {}", name, to_string(value)));
  }

  // --- The rules

  void read_rules() {
    auto main = attribute<std::string>("optimizer", "");
    if (find_optimizer(main) == nullptr)
      fail(fmt::format("there is no optimizer \"{}\"; there are {}", main,
                       fmt::join(optimizer_names(), ", ")));
    if (graph_.attributes.contains("loss")) fail("the gradients are missing; run autodiff first");
    main_ = add_rule(main, "");
    main_->lr = learning_rate("lr", {});
    for (std::string_view name : optimizer_names()) {
      std::string key(name);
      auto claimed = attribute<std::vector<std::string>>(key, {});
      if (claimed.empty()) continue;
      if (name == main) fail(fmt::format("{} is the rule of all others already", name));
      Applied* rule = add_rule(key, key + ".");
      rule->lr = learning_rate(key + ".lr", main_->lr);
      for (const std::string& parameter : claimed) claims_[parameter] = rule;
    }
  }

  Applied* add_rule(const std::string& name, const std::string& prefix) {
    Applied& rule = rules_[name];
    rule.rule = find_optimizer(name);
    rule.def = &OpRegistry::get().at(name);
    const AttrSchema& schema = rule.def->schema;
    rule.attrs = schema.make();
    for (size_t i = 0; i < schema.items.size(); ++i) {
      std::string key = prefix + std::string(schema.items[i].name);
      const AttrValue* value = attribute(key);
      if (value != nullptr && !schema.items[i].set(rule.attrs.get(), i, *value))
        refuse(key, *value);
    }
    rule.undecayed = schema.copy(rule.attrs.get());
    for (size_t i = 0; i < schema.items.size(); ++i)
      if (schema.items[i].name == "weight_decay") schema.items[i].set(rule.undecayed.get(), i, 0.0);
    return &rule;
  }

  // The value that the attribute names, else `otherwise`, else an input `lr`.
  Value learning_rate(const std::string& key, Value otherwise) {
    bool given = graph_.attributes.contains(key);
    if (!given && otherwise) return otherwise;
    auto name = attribute<std::string>(key, "lr");
    Value lr = detail::find_value(graph_, name);
    if (!lr && name != "lr") fail(fmt::format("there is no value {}", name));
    return lr ? lr : graph_.add_input("lr", {DType::F32, {}});
  }

  // What only another rule would have read.
  void refuse_unread() const {
    for (const auto& entry : graph_.attributes)
      for (std::string_view name : optimizer_names()) {
        const auto& items = OpRegistry::get().at(name).schema.items;
        bool known = entry.first.starts_with(std::string(name) + ".") ||
                     std::any_of(items.begin(), items.end(),
                                 [&](const auto& item) { return item.name == entry.first; });
        if (known)
          fail(fmt::format("{} has no use for the attribute {}", main_->rule->name, entry.first));
      }
  }

  // --- Gradients

  std::vector<Parameter> take_parameters() {
    auto names = attribute<std::vector<std::string>>("wrt", {});
    if (names.empty()) fail("wrt names no parameters");
    bool keep = attribute("keep_gradients", false);
    auto from = attribute<std::string>("gradients", "");
    if (!from.empty() && from != "accumulated") refuse("gradients", AttrValue(from));
    accumulated_ = !from.empty();
    std::vector<Parameter> parameters;
    for (const std::string& name : names) {
      Parameter p{name, graph_.find_input(name), {}, main_};
      if (!p.p) fail(fmt::format("there is no input {}", name));
      p.g = take_gradient(name, keep);
      if (auto claimed = claims_.find(name); claimed != claims_.end()) {
        p.by = claimed->second;
        claims_.erase(claimed);
      }
      parameters.push_back(std::move(p));
    }
    if (!claims_.empty())
      fail(fmt::format("wrt does not name {}, a parameter of {}", claims_.begin()->first,
                       claims_.begin()->second->rule->name));
    return parameters;
  }

  Value take_gradient(const std::string& parameter, bool keep) {
    std::string name = "grad_" + parameter;
    if (accumulated_) {
      std::string state = accumulated_state(name);
      const State* s = module_.find_state(state);
      if (s == nullptr) fail(fmt::format("there is no state {}; run accumulate first", state));
      Value v = graph_.find_input(state);
      return v ? v : graph_.add_input(state, s->type);
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (graph_.outputs()[i].name != name) continue;
      Value g = graph_.outputs()[i].value;
      if (!keep) graph_.erase_output(i);
      return g;
    }
    fail(fmt::format("there is no output {}; run autodiff first", name));
  }

  // New ops carry the place of the gradient's.
  InsertionScope at(Value g) {
    if (g.op() == nullptr) return InsertionScope(graph_, nullptr);
    return InsertionScope(graph_, nullptr, *g.op(), g.op()->loc(), "");
  }

  // Divides the gradients, and scales them down to the largest norm that is allowed; gives their
  // norm out, and notes whether it is finite.
  void scale(std::vector<Parameter>& parameters) {
    Value factor;
    if (Value divisor = find_divisor()) {
      InsertionScope scope = at(parameters.back().g);
      factor = 1.0 / cast(divisor, DType::F32);
    }
    Value loss_scale = find_loss_scale();
    if (loss_scale) {
      InsertionScope scope = at(parameters.back().g);
      factor = factor ? factor / loss_scale : 1.0 / loss_scale;
    }
    auto norm_name = attribute<std::string>("grad_norm", "");
    auto skipped = attribute<std::string>("skipped", "");
    const AttrValue* limit = attribute("clip");
    if (!norm_name.empty() || !skipped.empty() || limit != nullptr) {
      Value norm = norm_of(parameters, factor);
      const Op& last = *norm.op();
      InsertionScope scope(graph_, nullptr, last, last.from(), "");
      if (!norm_name.empty()) set_output(norm_name, norm.named(norm_name));
      if (limit != nullptr) {
        double largest = attribute("clip", 0.0);
        if (!(largest > 0)) refuse("clip", *limit);
        Value larger = gt(norm, largest), share = largest / norm;
        share = where(larger, share, 1.0);
        factor = factor ? factor * share : share;
      }
      if (!skipped.empty()) {
        finite_ = lt(norm, std::numeric_limits<double>::infinity());  // false for NaN too
        Value before = state_input("skipped", {DType::I32, {}});
        Value now = where(finite_, before, before + 1);
        set_output("skipped", now);
        set_output(skipped, now);
        if (loss_scale) adapt(loss_scale);
      }
    }
    if (loss_scale && !finite_) fail("a loss scale needs skipped");
    if (!factor) return;
    for (Parameter& p : parameters) {
      InsertionScope scope = at(p.g);
      p.g = cast(p.g, DType::F32) * factor;
    }
  }

  Value find_loss_scale() {
    loss_scale_ = attribute<std::string>("loss_scale", "");
    if (loss_scale_.empty()) return {};
    Value scale = graph_.find_input(loss_scale_);
    const State* state = module_.find_state(loss_scale_);
    TensorType type{DType::F32, {}};
    if (!scale || state == nullptr || state->type != type)
      fail(fmt::format("there is no input {} that reads a state {}", loss_scale_, type.str()));
    added_.push_back(*state);
    return scale;
  }

  // As in Micikevicius et al., Mixed Precision Training (2018).
  void adapt(Value scale) {
    auto interval = attribute<int64_t>("growth_interval", 2000);
    if (interval <= 0) fail(fmt::format("growth_interval cannot be {}", interval));
    Value good = state_input(loss_scale_ + ".good", {DType::I32, {}});
    Value grows = eq(good + 1, static_cast<double>(interval));
    Value larger = minimum(scale * 2.0, kLargestLossScale);
    set_output(loss_scale_, where(finite_, where(grows, larger, scale),
                                  maximum(scale * 0.5, kSmallestLossScale)));
    set_output(loss_scale_ + ".good", where(logical_and(finite_, logical_not(grows)), good + 1, 0));
  }

  Value find_divisor() {
    auto name = attribute<std::string>("divisor", "");
    if (name.empty()) return {};
    Value divisor = detail::find_value(graph_, name);
    if (!divisor) fail(fmt::format("there is no value {}", name));
    if (divisor.rank() != 0 || !is_float(divisor.dtype()))
      fail(fmt::format("the divisor {} must be a float scalar", detail::describe(divisor)));
    return divisor;
  }

  // The 2-norm of all gradients, multiplied by the factor if there is one.
  Value norm_of(const std::vector<Parameter>& parameters, Value factor) {
    std::vector<Value> squares;
    for (const Parameter& p : parameters) {
      InsertionScope scope = at(p.g);
      squares.push_back(sum(square(cast(p.g, DType::F32))));
    }
    const Op& last = *squares.back().op();
    InsertionScope scope(graph_, nullptr, last, last.from(), "");
    Value norm = sqrt(add_n(squares));
    return factor ? norm * factor : norm;
  }

  // --- The update

  void update(const Parameter& p) {
    InsertionScope scope = at(p.g);
    Applied& by = *p.by;
    ++by.parameters;
    bool undecayed = std::find(no_decay_.begin(), no_decay_.end(), p.name) != no_decay_.end();
    const std::shared_ptr<void>& attrs = undecayed ? by.undecayed : by.attrs;
    const std::vector<OptimizerState> states = by.rule->states(p.p.type(), attrs.get());
    OpInit init;
    std::vector<Next> next{{p.name, p.p, {}}};
    declare(p.name, p.p.type(), false);
    for (const OperandSpec& spec : by.def->operands)
      if (spec.name == "t") next_count(by);  // declared before the states of the first parameter
    for (const OperandSpec& spec : by.def->operands) {
      auto state = std::find_if(states.begin(), states.end(),
                                [&](const OptimizerState& s) { return s.name == spec.name; });
      Value operand;
      if (spec.name == "p")
        operand = p.p;
      else if (spec.name == "g")
        operand = p.g;
      else if (spec.name == "lr")
        operand = by.lr;
      else if (spec.name == "t")
        operand = by.next_count;
      else if (state != states.end()) {
        std::string name = optimizer_state(by.rule->name, state->name, p.name);
        operand = state_input(name, state->type);
        next.push_back({name, operand, {}});
      }
      init.operands.push_back(operand);
    }
    init.attrs = attrs;
    Op& op = graph_.create(*by.def, std::move(init));
    for (size_t i = 0; i < next.size(); ++i) {
      next[i].after = op.result(i);
      next_.push_back(std::move(next[i]));
    }
  }

  void next_count(Applied& by) {
    if (by.next_count) return;
    by.count = state_input(optimizer_count(by.rule->name), {DType::I32, {}});
    by.next_count = add(by.count, 1);
  }

  // The next values become outputs.
  void finish() {
    for (const auto& entry : rules_)
      if (entry.second.count)
        next_.push_back(
            {optimizer_count(entry.first), entry.second.count, entry.second.next_count});
    for (const Next& n : next_) {
      Value after = n.after;
      if (finite_) {
        InsertionScope scope = at(after);
        after = where(finite_, after, n.before);
      }
      set_output(n.name, after);
    }
  }

  void declare(const std::string& name, const TensorType& type, bool own) {
    if (const State* s = module_.find_state(name)) {
      if (s->type != type)
        fail(fmt::format("state {} is {}, expected {}", name, s->type.str(), type.str()));
      return;
    }
    module_.states.push_back({name, type});
    if (own) added_.push_back({name, type});
  }

  // The input that reads the optimizer's state.
  Value state_input(const std::string& name, const TensorType& type) {
    declare(name, type, true);
    Value v = graph_.find_input(name);
    return v ? v : graph_.add_input(name, type);
  }

  void set_output(const std::string& name, Value v) {
    for (const GraphOutput& o : graph_.outputs())
      if (o.name == name) fail(fmt::format("output {} is set already", name));
    if (v.name().empty()) v.set_name(name + ".next");
    graph_.add_output(name, v);
  }

  Module& module_;
  Graph& graph_;
  std::vector<std::string> read_;  // the attributes
  std::map<std::string, Applied, std::less<>> rules_;
  std::map<std::string, Applied*, std::less<>> claims_;
  Applied* main_ = nullptr;
  bool accumulated_ = false;
  std::string loss_scale_;
  Value finite_;  // null: every step is applied
  std::vector<std::string> no_decay_ = attribute<std::vector<std::string>>("no_decay", {});
  std::vector<Next> next_;
  std::vector<State> added_;
};

}  // namespace

void run_optimizer(Module& module, PassContext& context) {
  Graph* init = module.find("init");
  for (Graph* graph : detail::entry_graphs(module)) {
    if (!graph->attributes.contains("optimizer")) continue;
    Update update(module, *graph);
    update.run(context);
    if (init != nullptr && init != graph) update.initialise(*init);
  }
}

}  // namespace sinter
