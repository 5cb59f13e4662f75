#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/passes/accumulate.h>
#include <sinter/passes/autocast.h>

#include <map>

namespace sinter {

Sgd::operator Optimizer() const {
  return {"sgd",
          {{"momentum", momentum}, {"nesterov", nesterov}, {"weight_decay", weight_decay}},
          lr,
          decays};
}
Adam::operator Optimizer() const {
  return {"adam",
          {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}},
          lr,
          decays};
}
AdamW::operator Optimizer() const {
  return {"adamw",
          {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}},
          lr,
          decays};
}
Lion::operator Optimizer() const {
  return {"lion", {{"beta1", beta1}, {"beta2", beta2}, {"weight_decay", weight_decay}}, lr, decays};
}
Adafactor::operator Optimizer() const {
  return {"adafactor",
          {{"beta2_decay", beta2_decay},
           {"eps1", eps1},
           {"eps2", eps2},
           {"clip_step", clip_step},
           {"weight_decay", weight_decay}},
          lr,
          decays};
}
Muon::operator Optimizer() const {
  Optimizer muon{"muon",
                 {{"momentum", momentum},
                  {"nesterov", nesterov},
                  {"weight_decay", weight_decay},
                  {"eps", eps},
                  {"iterations", iterations},
                  {"adjust", adjust}},
                 lr,
                 decays};
  return muon.otherwise(takes, others);
}

namespace {

// The settings of a graph's step, written to the graph when nothing can be refused any more.
class Request {
 public:
  Request(std::string_view what, Graph& graph, SourceLocation loc)
      : what_(what), graph_(graph), loc_(std::move(loc)) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(Diagnostic{loc_, fmt::format("{}: {}", what_, message)});
  }

  void loss(Value loss) {
    if (loss.rank() != 0 || !is_float(loss.dtype()))
      fail(fmt::format("the loss must be a float scalar, not {}", loss.type().str()));
    if (graph_.attributes.contains("loss"))
      fail(fmt::format("graph @{} has a loss already", graph_.name()));
    loss_ = loss;
  }

  std::vector<std::string> names_of(const std::vector<Value>& parameters) const {
    if (parameters.empty()) fail("no parameters");
    std::vector<std::string> names;
    for (Value p : parameters) {
      const State* state = p ? graph_.module().find_state(p.name()) : nullptr;
      if (state == nullptr || p.op() != nullptr || &p.graph() != &graph_)
        fail(fmt::format("'{}' is no parameter of graph @{}", p ? p.name() : "", graph_.name()));
      names.push_back(p.name());
    }
    return names;
  }

  void update(const std::vector<Value>& parameters, const Optimizer& optimizer,
              const MinimizeOptions& options) {
    settings_["wrt"] = names_of(parameters);
    if (!(options.clip >= 0)) fail(fmt::format("the largest norm must not be {}", options.clip));
    // By rule: the parameters that are not the first one's.
    std::map<std::string, std::vector<std::string>> claims;
    std::vector<std::string> undecayed;
    for (Value p : parameters) {
      const Optimizer& rule = optimizer.of(p.name(), p.type());
      if (!rule.decays(p.name(), p.type())) undecayed.push_back(p.name());
      if (&rule != &optimizer) claims[rule.rule()].push_back(p.name());
    }
    settings_["optimizer"] = optimizer.rule();
    write(optimizer, "");
    for (const Optimizer* o = optimizer.other(); o != nullptr; o = o->other()) {
      auto claimed = claims.find(o->rule());
      if (claimed == claims.end()) continue;
      settings_[o->rule()] = claimed->second;
      write(*o, o->rule() + ".");
    }
    if (!undecayed.empty()) settings_["no_decay"] = undecayed;
    if (options.clip > 0) settings_["clip"] = options.clip;
    if (!options.grad_norm.empty()) settings_["grad_norm"] = options.grad_norm;
    if (!options.skipped.empty()) settings_["skipped"] = options.skipped;
    if (Value d = options.divisor) {
      if (&d.graph() != &graph_ || d.rank() != 0 || !is_float(d.dtype()))
        fail(fmt::format("the divisor must be a float scalar of graph @{}", graph_.name()));
      divisor_ = d;
    }
    if (Value s = options.loss_scale) {
      if (&s.graph() != &graph_ || s.op() != nullptr ||
          graph_.module().find_state(s.name()) == nullptr)
        fail(fmt::format("the loss scale must be a state that graph @{} reads", graph_.name()));
      if (options.skipped.empty()) fail("a loss scale needs a name for `skipped`");
      settings_["loss_scale"] = s.name();
    }
  }

  void set(const std::string& name, AttrValue value) { settings_[name] = std::move(value); }

  // Nothing is refused any more.
  void grant() {
    auto name = [&](Value v, const std::string& key) {
      if (!v) return;
      std::string stem = v.name().empty() ? key : v.name();
      if (v.name().empty() || means_another(stem, v)) {
        std::string unique = stem;
        for (int i = 1; means_another(unique, v); ++i) unique = fmt::format("{}_{}", stem, i);
        v.set_name(unique);
      }
      settings_[key] = v.name();
    };
    name(loss_, "loss");
    name(divisor_, "divisor");
    for (auto& [key, value] : settings_) graph_.attributes[key] = std::move(value);
  }

 private:
  // Whether a pass that looks for the name would find another value: outputs come first.
  bool means_another(const std::string& name, Value v) const {
    for (const GraphOutput& o : graph_.outputs())
      if (o.name == name) return o.value != v;
    if (Value input = graph_.find_input(name)) return input != v;
    for (Op& op : graph_)
      for (size_t i = 0; i < op.num_results(); ++i)
        if (op.result(i).name() == name && op.result(i) != v) return true;
    return false;
  }

  // Writes the settings of a rule under `prefix`; its learning rate, if it has one of its own.
  void write(const Optimizer& rule, const std::string& prefix) {
    for (const auto& [name, value] : rule.attrs()) settings_[prefix + name] = value;
    Value lr = rule.lr();
    if (!lr && !prefix.empty()) return;
    if (!lr) lr = graph_.find_input("lr");
    if (!lr) lr = graph_.add_input("lr", f32({}));
    if (&lr.graph() != &graph_ || lr.rank() != 0 || !is_float(lr.dtype()))
      fail(fmt::format("the learning rate must be a float scalar of graph @{}", graph_.name()));
    if (lr.name().empty()) lr.set_name(prefix + "lr");
    settings_[prefix + "lr"] = lr.name();
  }

  std::string_view what_;
  Graph& graph_;
  SourceLocation loc_;
  AttrMap settings_;
  Value loss_, divisor_;
};

}  // namespace

void autocast(const Scope& scope, std::string_view type) {
  scope.graph().attributes[kAutocastAttribute] = std::string(type);
}

Value loss_scale(const Scope& scope) {
  Module& module = scope.graph().module();
  if (module.find_state("loss_scale") == nullptr) module.states.push_back({"loss_scale", f32({})});
  Value read = scope.graph().find_input("loss_scale");
  return read ? read : scope.input("loss_scale", f32({}));
}

void minimize(Value loss, const std::vector<Value>& parameters, const Optimizer& optimizer,
              const MinimizeOptions& options, SourceLocation loc) {
  if (!loss) throw Error(Diagnostic{loc, "minimize: no loss"});
  Request request("minimize", loss.graph(), loc);
  request.loss(loss);
  request.update(parameters, optimizer, options);
  request.grant();
}

void minimize(Value loss, const std::vector<Value>& parameters, const AdamW& optimizer,
              const MinimizeOptions& options, SourceLocation loc) {
  minimize(loss, parameters, static_cast<Optimizer>(optimizer), options, std::move(loc));
}

void accumulate(Value loss, const std::vector<Value>& parameters,
                const std::vector<std::pair<std::string, Value>>& sums, SourceLocation loc) {
  if (!loss) throw Error(Diagnostic{loc, "accumulate: no loss"});
  Graph& graph = loss.graph();
  Request request("accumulate", graph, loc);
  request.loss(loss);
  request.set("wrt", request.names_of(parameters));
  std::vector<std::string> names;
  for (const auto& [name, value] : sums) {
    if (!value || &value.graph() != &graph)
      request.fail(fmt::format("'{}' is no value of graph @{}", name, graph.name()));
    names.push_back(name);
  }
  request.set("accumulate", names);
  for (const auto& [name, value] : sums) graph.add_output(name, value);
  request.grant();
}

Value accumulated(const Scope& scope, std::string_view name, const TensorType& type) {
  Module& module = scope.graph().module();
  std::string state = accumulated_state(name);
  if (module.find_state(state) == nullptr) module.states.push_back({state, type});
  return scope.input(state, type);
}

void minimize_accumulated(const Scope& update, const Scope& part, const Optimizer& optimizer,
                          const MinimizeOptions& options, SourceLocation loc) {
  Request request("minimize_accumulated", update.graph(), loc);
  const AttrMap& asked = part.graph().attributes;
  auto names = asked.find("wrt");
  if (!asked.contains("accumulate") || names == asked.end())
    request.fail(fmt::format("graph @{} does not accumulate", part.graph().name()));
  Graph& graph = update.graph();
  std::vector<Value> parameters;
  for (const std::string& name : std::get<std::vector<std::string>>(names->second)) {
    Value p = graph.find_input(name);
    parameters.push_back(p ? p : graph.add_input(name, part.graph().find_input(name).type()));
  }
  request.update(parameters, optimizer, options);
  request.set("gradients", std::string("accumulated"));
  request.grant();
}

}  // namespace sinter
