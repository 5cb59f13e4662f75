#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/call.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/subgraph.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>

#include <fmt/ranges.h>

namespace sinter {
namespace {

Inferred infer_call(const InferContext& c) {
  const Graph& callee = *c.callee();
  if (auto wrong = detail::miscount(c, callee)) return *wrong;
  for (size_t i = 0; i < c.num_operands(); ++i)
    if (auto wrong = detail::misfit(c, callee, i)) return *wrong;
  std::vector<TensorType> types;
  for (const GraphOutput& output : callee.outputs()) types.push_back(output.value.type());
  return types;
}

std::vector<Sample> call_samples() {
  Sample one, two;
  one.operands = {{DType::F32, {3, 4}}};
  two.operands = {{DType::F32, {5}}, {DType::I32, {5}}};
  return {one, two};
}

// The sum over the body counts values that stay in registers, but a call has no better one.
Cost cost_of_body(const Op& op) {
  Cost total;
  for (Op& inner : detail::callee_of(op)) {
    Cost cost = inner.def().cost(inner);
    total.flops += cost.flops;
    total.bytes += cost.bytes;
  }
  return total;
}

struct Fusion {
  static constexpr std::string_view name = "fusion";
  static constexpr std::string_view doc = "runs a graph of the module as one kernel";
  static constexpr std::array operands{variadic("operands")};
  static constexpr OpKind kind = OpKind::Opaque;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp{"made by fuse, after differentiation"};
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) { return infer_call(c); }
  // The sum over the body would count what stays in registers; operands and results do not.
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr Unbatchable batch{"made by fuse, after vmap"};
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static void evaluate(EvaluateContext& c) {
    SINTER_CHECK(false, "fusion @{} has no meaning of its own: executors run its graph",
                 c.op.callee());
  }
  static std::vector<Sample> samples() { return call_samples(); }
};

struct Call {
  static constexpr std::string_view name = "call";
  static constexpr std::string_view doc =
      "The outputs of a graph of the module, whose inputs have the operands' types; its ops take "
      "the place of the call.";
  static constexpr std::array operands{variadic("operands")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) { return infer_call(c); }
  static std::vector<Value> expand(const Op& op) {
    return detail::inline_graph(detail::callee_of(op), op.operands(), op);
  }
  static Cost cost(const Op& op) { return cost_of_body(op); }
  static std::vector<Sample> samples() { return call_samples(); }
};

// "[4,3]"
std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

struct CustomVjp {
  static constexpr std::string_view name = "custom_vjp";
  static constexpr std::string_view doc =
      "The outputs of a graph of the module, with the gradients that another one computes from "
      "operands, results and cotangents.";
  static constexpr std::array operands{variadic("operands")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = CustomVjpAttrs;

  static Inferred infer(const InferContext& c) {
    Inferred results = infer_call(c);
    if (!results.ok()) return results;
    const Graph& forward = *c.callee();
    const std::string& named = c.attrs<Attrs>().backward;
    const Graph* backward = forward.module().find(named);
    if (backward == nullptr) return c.error("there is no graph @{}", named);
    if (auto wrong = check_inputs(c, *backward, results.value())) return *wrong;
    if (auto wrong = check_gradients(c, *backward)) return *wrong;
    return results;
  }

  // Operands, results, and cotangents of the float results.
  static std::optional<Diagnostic> check_inputs(const InferContext& c, const Graph& backward,
                                                const std::vector<TensorType>& results) {
    struct Expected {
      std::string what;
      TensorType type;
    };
    std::vector<Expected> expected;
    for (size_t i = 0; i < c.num_operands(); ++i)
      expected.push_back({"operand " + c.callee()->inputs()[i].name(), c.type(i)});
    for (size_t i = 0; i < results.size(); ++i)
      expected.push_back({"result " + c.callee()->outputs()[i].name, results[i]});
    for (size_t i = 0; i < results.size(); ++i)
      if (is_float(results[i].dtype))
        expected.push_back({"the cotangent of " + c.callee()->outputs()[i].name, results[i]});
    const auto& inputs = backward.inputs();
    if (inputs.size() != expected.size())
      return c.error(
          "@{}, the gradient of @{}, takes {} values, expected {}: operands, results and "
          "cotangents of the float results",
          backward.name(), c.callee()->name(), inputs.size(), expected.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].type() != expected[i].type)
        return c.error("@{}, the gradient of @{}: input {} is {}: expected {}, got {}",
                       backward.name(), c.callee()->name(), inputs[i].name(), expected[i].what,
                       expected[i].type.str(), inputs[i].type().str());
    return std::nullopt;
  }

  static std::optional<Diagnostic> check_gradients(const InferContext& c, const Graph& backward) {
    std::vector<size_t> floats;
    for (size_t i = 0; i < c.num_operands(); ++i)
      if (is_float(c.type(i).dtype)) floats.push_back(i);
    const auto& outputs = backward.outputs();
    if (outputs.size() != floats.size())
      return c.error(
          "@{}, the gradient of @{}, gives {} gradient{}, expected {}: one for each "
          "float operand",
          backward.name(), c.callee()->name(), outputs.size(), outputs.size() == 1 ? "" : "s",
          floats.size());
    for (size_t k = 0; k < floats.size(); ++k) {
      const TensorType& want = c.type(floats[k]);
      const TensorType& got = outputs[k].value.type();
      if (want == got) continue;
      bool shapes = want.dtype == got.dtype;
      return c.error("@{}, the gradient of @{} by operand {}: expected {}, got {}", backward.name(),
                     c.callee()->name(), c.callee()->inputs()[floats[k]].name(),
                     shapes ? shape_text(want.shape) : want.str(),
                     shapes ? shape_text(got.shape) : got.str());
    }
    return std::nullopt;
  }

  static Grads vjp(const VjpContext& c) {
    const Op& op = c.op();
    std::vector<Value> inputs(op.operands().begin(), op.operands().end());
    for (size_t i = 0; i < op.num_results(); ++i) inputs.push_back(op.result(i));
    for (size_t i = 0; i < op.num_results(); ++i)
      if (is_float(op.result(i).dtype()))
        inputs.push_back(c.grad(i) ? c.grad(i) : full_like(op.result(i), 0.0, op.loc()));
    std::vector<Value> gradients = detail::inline_graph(
        detail::callee_of(op, c.attrs<Attrs>().backward), op.graph(), inputs, op, op.loc(), "");
    Grads by_operand(op.operands().size());
    size_t next = 0;
    for (size_t i = 0; i < by_operand.size(); ++i)
      if (is_float(op.operand(i).dtype())) by_operand[i] = gradients[next++];
    return by_operand;
  }
  static constexpr auto jvp = Jvp::through_vjp;
  // Both graphs for all examples, which keeps the gradients the user's own.
  static Batched batch(const BatchContext& c) {
    auto batched = [&](const Graph& body) -> const Graph& {
      return detail::add_batched(body, std::vector<bool>(body.inputs().size(), true), c);
    };
    const Op& op = c.op();
    OpInit init;
    init.callee = batched(detail::callee_of(op)).name();
    const std::string& backward = op.attrs<Attrs>().backward;
    init.attrs = std::make_shared<Attrs>(Attrs{batched(detail::callee_of(op, backward)).name()});
    init.operands = c.all_carried();
    init.loc = op.loc();
    Op& now = c.graph().create(op.def(), std::move(init));
    std::vector<Value> results;
    for (size_t i = 0; i < now.num_results(); ++i) results.push_back(now.result(i));
    return Batched::all(std::move(results));
  }
  static std::vector<Value> expand(const Op& op) {
    return detail::inline_graph(detail::callee_of(op), op.operands(), op);
  }
  static Cost cost(const Op& op) { return cost_of_body(op); }
  static std::vector<Sample> samples() { return call_samples(); }
};

OpDef with_callee(OpDef def) {
  def.has_callee = true;
  return def;
}

// A graph that is called is not run by name, not even once its call has been inlined.
Graph& body(Graph& graph, std::string_view op, const std::vector<Value>& operands,
            const SourceLocation& loc) {
  for (Value v : operands)
    if (&detail::graph_of(op, "operand", v, loc).module() != &graph.module())
      throw Error(Diagnostic{
          loc, fmt::format("{}: @{} is of another module than the operands", op, graph.name())});
  graph.attributes["private"] = true;
  return graph;
}

std::vector<Value> results_of(const Op& op) {
  std::vector<Value> results;
  for (size_t i = 0; i < op.num_results(); ++i) results.push_back(op.result(i));
  return results;
}

}  // namespace

Op& fusion(Graph& graph, const Graph& callee, std::vector<Value> operands, SourceLocation loc) {
  OpInit init;
  init.operands = std::move(operands);
  init.loc = std::move(loc);
  init.callee = callee.name();
  return graph.create(OpRegistry::get().at("fusion"), std::move(init));
}

std::vector<Value> call(Graph& callee, std::vector<Value> operands, SourceLocation loc) {
  if (operands.empty())
    throw Error(Diagnostic{loc, fmt::format("call: @{} without operands", callee.name())});
  Graph& graph = detail::graph_of("call", "operand", operands[0], loc);
  OpInit init;
  init.callee = body(callee, "call", operands, loc).name();
  init.operands = std::move(operands);
  init.loc = std::move(loc);
  return results_of(graph.create(OpRegistry::get().at("call"), std::move(init)));
}

std::vector<Value> custom_vjp(Graph& forward, Graph& backward, std::vector<Value> operands,
                              SourceLocation loc) {
  if (operands.empty())
    throw Error(Diagnostic{loc, fmt::format("custom_vjp: @{} without operands", forward.name())});
  Graph& graph = detail::graph_of("custom_vjp", "operand", operands[0], loc);
  OpInit init;
  init.callee = body(forward, "custom_vjp", operands, loc).name();
  init.attrs = std::make_shared<CustomVjpAttrs>(
      CustomVjpAttrs{body(backward, "custom_vjp", operands, loc).name()});
  init.operands = std::move(operands);
  init.loc = std::move(loc);
  return results_of(graph.create(OpRegistry::get().at("custom_vjp"), std::move(init)));
}

void register_call(OpRegistry& r) {
  r.add(with_callee(make_def<Fusion>()));
  r.add(with_callee(make_def<Call>()));
  OpDef custom = with_callee(make_def<CustomVjp>());
  custom.callee_attrs = {"backward"};
  r.add(std::move(custom));
}

}  // namespace sinter
