#include <sinter/frontends/dsl/optimizer.h>

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
  Request(Graph& graph, SourceLocation loc) : graph_(graph), loc_(std::move(loc)) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(Diagnostic{loc_, fmt::format("minimize: {}", message)});
  }

  // Writes the settings of a rule under `prefix`; its learning rate, if it has one of its own.
  void write(const Optimizer& rule, const std::string& prefix) {
    for (const auto& [name, value] : rule.attrs()) settings[prefix + name] = value;
    Value lr = rule.lr();
    if (!lr && !prefix.empty()) return;
    if (!lr) lr = graph_.find_input("lr");
    if (!lr) lr = graph_.add_input("lr", f32({}));
    if (&lr.graph() != &graph_ || lr.rank() != 0 || !is_float(lr.dtype()))
      fail(fmt::format("the learning rate must be a float scalar of graph @{}", graph_.name()));
    if (lr.name().empty()) lr.set_name(prefix + "lr");
    settings[prefix + "lr"] = lr.name();
  }

  AttrMap settings;

 private:
  Graph& graph_;
  SourceLocation loc_;
};

}  // namespace

void minimize(Value loss, const std::vector<Value>& parameters, const Optimizer& optimizer,
              const MinimizeOptions& options, SourceLocation loc) {
  if (!loss) throw Error(Diagnostic{loc, "minimize: no loss"});
  Graph& graph = loss.graph();
  Module& module = graph.module();
  Request request(graph, loc);
  if (loss.rank() != 0 || !is_float(loss.dtype()))
    request.fail(fmt::format("the loss must be a float scalar, not {}", loss.type().str()));
  if (graph.attributes.contains("loss"))
    request.fail(fmt::format("graph @{} has a loss already", graph.name()));
  if (parameters.empty()) request.fail("no parameters");
  if (!(options.clip >= 0))
    request.fail(fmt::format("the largest norm must not be {}", options.clip));

  // By rule: the parameters that are not the first one's.
  std::map<std::string, std::vector<std::string>> claims;
  std::vector<std::string> names, undecayed;
  for (Value p : parameters) {
    const State* state = p ? module.find_state(p.name()) : nullptr;
    if (state == nullptr || p.op() != nullptr || &p.graph() != &graph)
      request.fail(
          fmt::format("'{}' is no parameter of graph @{}", p ? p.name() : "", graph.name()));
    names.push_back(p.name());
    const Optimizer& rule = optimizer.of(p.name(), p.type());
    if (!rule.decays(p.name(), p.type())) undecayed.push_back(p.name());
    if (&rule != &optimizer) claims[rule.rule()].push_back(p.name());
  }

  request.settings["wrt"] = names;
  request.settings["optimizer"] = optimizer.rule();
  request.write(optimizer, "");
  for (const Optimizer* o = optimizer.other(); o != nullptr; o = o->other()) {
    auto claimed = claims.find(o->rule());
    if (claimed == claims.end()) continue;
    request.settings[o->rule()] = claimed->second;
    request.write(*o, o->rule() + ".");
  }
  if (!undecayed.empty()) request.settings["no_decay"] = undecayed;
  if (options.clip > 0) request.settings["clip"] = options.clip;
  if (!options.grad_norm.empty()) request.settings["grad_norm"] = options.grad_norm;
  if (loss.name().empty()) loss.set_name("loss");
  request.settings["loss"] = loss.name();
  for (auto& [name, value] : request.settings) graph.attributes[name] = std::move(value);
}

void minimize(Value loss, const std::vector<Value>& parameters, const AdamW& optimizer,
              const MinimizeOptions& options, SourceLocation loc) {
  minimize(loss, parameters, static_cast<Optimizer>(optimizer), options, std::move(loc));
}

}  // namespace sinter
