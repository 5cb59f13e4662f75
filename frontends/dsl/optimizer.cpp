#include <sinter/frontends/dsl/optimizer.h>

namespace sinter {

void minimize(Value loss, const std::vector<Value>& parameters, const AdamW& o,
              SourceLocation loc) {
  auto fail = [&](std::string message) {
    throw Error(Diagnostic{loc, fmt::format("minimize: {}", message)});
  };
  if (!loss) fail("no loss");
  Graph& graph = loss.graph();
  Module& module = graph.module();
  if (loss.rank() != 0 || !is_float(loss.dtype()))
    fail(fmt::format("the loss must be a float scalar, not {}", loss.type().str()));
  if (graph.attributes.contains("loss"))
    fail(fmt::format("graph @{} has a loss already", graph.name()));
  if (parameters.empty()) fail("no parameters");

  std::vector<std::string> names, undecayed;
  for (Value p : parameters) {
    const State* state = p ? module.find_state(p.name()) : nullptr;
    if (state == nullptr || p.op() != nullptr || &p.graph() != &graph)
      fail(fmt::format("'{}' is no parameter of graph @{}", p ? p.name() : "", graph.name()));
    names.push_back(p.name());
    if (!o.decays(p.name(), p.type())) undecayed.push_back(p.name());
  }
  Value lr = o.lr;
  if (!lr) lr = graph.find_input("lr");
  if (!lr) lr = graph.add_input("lr", f32({}));
  if (&lr.graph() != &graph || lr.rank() != 0 || !is_float(lr.dtype()))
    fail(fmt::format("the learning rate must be a float scalar of graph @{}", graph.name()));

  if (loss.name().empty()) loss.set_name("loss");
  if (lr.name().empty()) lr.set_name("lr");
  graph.attributes["loss"] = loss.name();
  graph.attributes["wrt"] = names;
  graph.attributes["optimizer"] = std::string("adamw");
  graph.attributes["lr"] = lr.name();
  graph.attributes["beta1"] = o.beta1;
  graph.attributes["beta2"] = o.beta2;
  graph.attributes["eps"] = o.eps;
  graph.attributes["weight_decay"] = o.weight_decay;
  if (!undecayed.empty()) graph.attributes["no_decay"] = undecayed;
  if (!o.grad_norm.empty()) graph.attributes["grad_norm"] = o.grad_norm;
}

}  // namespace sinter
