// optimizer: appends the update of the parameters that minimize() names.
//
// What it reads and what it adds stands in optimizer.h. It runs after autodiff, whose outputs
// `grad_NAME` it turns into next values of the parameters and of the optimizer's own state.

#include <sinter/passes/optimizer.h>

#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>

namespace sinter {

namespace {

class Update {
 public:
  Update(Module& module, Graph& graph) : module_(module), graph_(graph) {}

  void run(PassContext& context) {
    const auto* rule = attribute<std::string>("optimizer");
    if (rule == nullptr || *rule != "adamw") fail("there is one optimizer, \"adamw\"");
    if (graph_.attributes.contains("loss")) fail("the gradients are missing; run autodiff first");
    const auto* names = attribute<std::vector<std::string>>("wrt");
    if (names == nullptr || names->empty()) fail("wrt names no parameters");

    AdamWAttrs attrs;
    read(attrs.beta1, "beta1");
    read(attrs.beta2, "beta2");
    read(attrs.eps, "eps");
    read(attrs.weight_decay, "weight_decay");
    const auto* undecayed = attribute<std::vector<std::string>>("no_decay");
    const bool* keep = attribute<bool>("keep_gradients");
    const auto* norm = attribute<std::string>("grad_norm");
    std::vector<Value> squares;

    Value lr = learning_rate();
    Value count;
    for (const std::string& name : *names) {
      Value p = graph_.find_input(name);
      if (!p) fail(fmt::format("there is no input {}", name));
      Value g = take_gradient(name, keep != nullptr && *keep);
      InsertionScope scope = g.op() != nullptr
                                 ? InsertionScope(graph_, nullptr, *g.op(), g.op()->loc(), "")
                                 : InsertionScope(graph_, nullptr);
      if (!count) count = next_count();
      if (norm != nullptr) squares.push_back(sum(square(cast(g, DType::F32))));
      declare(name, p.type());
      Value m = state_input(adamw_mean_state(name), p.type());
      Value v = state_input(adamw_square_state(name), p.type());
      AdamWAttrs own = attrs;
      if (undecayed != nullptr &&
          std::find(undecayed->begin(), undecayed->end(), name) != undecayed->end())
        own.weight_decay = 0;
      AdamWResult next = adamw(p, g, m, v, count, lr, own);
      set_output(name, next.p);
      set_output(adamw_mean_state(name), next.m);
      set_output(adamw_square_state(name), next.v);
    }
    set_output(std::string(kAdamWCountState), count);
    if (norm != nullptr) {
      const Op& last = *squares.back().op();
      InsertionScope scope(graph_, nullptr, last, last.from(), "");
      set_output(*norm, sqrt(add_n(squares)).named(*norm));
    }
    context.remark({},
                   fmt::format("@{}: adamw updates {} parameters", graph_.name(), names->size()));
    for (std::string_view name : {"optimizer", "wrt", "lr", "beta1", "beta2", "eps", "weight_decay",
                                  "no_decay", "keep_gradients", "grad_norm"})
      if (auto it = graph_.attributes.find(name); it != graph_.attributes.end())
        graph_.attributes.erase(it);
  }

  // States that the update declared and the graph `init` does not set.
  void initialise(Graph& init) const {
    InsertionScope scope(init, nullptr);
    for (const State& s : added_) {
      auto same = [&](const GraphOutput& o) { return o.name == s.name; };
      if (std::any_of(init.outputs().begin(), init.outputs().end(), same)) continue;
      init.add_output(s.name, full(init, s.type, 0, {}));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("optimizer: graph @{}: {}", graph_.name(), message));
  }

  // Null when it is missing or of another type.
  template <typename T>
  const T* attribute(std::string_view name) const {
    auto it = graph_.attributes.find(name);
    return it == graph_.attributes.end() ? nullptr : std::get_if<T>(&it->second);
  }

  void read(double& number, std::string_view name) const {
    auto it = graph_.attributes.find(name);
    if (it == graph_.attributes.end()) return;
    if (!detail::from_attr(number, it->second))
      fail(fmt::format("{} cannot be {}", name, to_string(it->second)));
  }

  Value learning_rate() {
    const auto* named = attribute<std::string>("lr");
    std::string name = named != nullptr ? *named : "lr";
    Value lr = detail::find_value(graph_, name);
    if (!lr && named != nullptr && name != "lr") fail(fmt::format("there is no value {}", name));
    return lr ? lr : graph_.add_input("lr", {DType::F32, {}});
  }

  Value take_gradient(const std::string& parameter, bool keep) {
    std::string name = "grad_" + parameter;
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (graph_.outputs()[i].name != name) continue;
      Value g = graph_.outputs()[i].value;
      if (!keep) graph_.erase_output(i);
      return g;
    }
    fail(fmt::format("there is no output {}; run autodiff first", name));
  }

  void declare(const std::string& name, const TensorType& type) {
    if (const State* s = module_.find_state(name)) {
      if (s->type != type)
        fail(fmt::format("state {} is {}, expected {}", name, s->type.str(), type.str()));
      return;
    }
    module_.states.push_back({name, type});
    if (name.starts_with("adamw.")) added_.push_back({name, type});
  }

  // The input that reads the state.
  Value state_input(const std::string& name, const TensorType& type) {
    declare(name, type);
    Value v = graph_.find_input(name);
    return v ? v : graph_.add_input(name, type);
  }

  Value next_count() {
    Value t = state_input(std::string(kAdamWCountState), {DType::I32, {}});
    return add(t, 1);
  }

  void set_output(const std::string& name, Value v) {
    for (const GraphOutput& o : graph_.outputs())
      if (o.name == name) fail(fmt::format("output {} is set already", name));
    if (v.name().empty()) v.set_name(name + ".next");
    graph_.add_output(name, v);
  }

  Module& module_;
  Graph& graph_;
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
