#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/call.h>
#include <sinter/ir/ops/registry.h>

namespace sinter {
namespace {

struct Fusion {
  static constexpr std::string_view name = "fusion";
  static constexpr std::string_view doc = "runs a graph of the module as one kernel";
  static constexpr std::array operands{variadic("operands")};
  static constexpr OpKind kind = OpKind::Opaque;
  static constexpr NonDifferentiable vjp{"made by fuse, after differentiation"};
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) {
    const Graph& callee = *c.callee();
    const auto& inputs = callee.inputs();
    if (inputs.size() != c.num_operands())
      return c.error("@{} takes {} operands, got {}", callee.name(), inputs.size(),
                     c.num_operands());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].type() != c.type(i))
        return c.error("input {} of @{} is {}, got {}", inputs[i].name(), callee.name(),
                       inputs[i].type().str(), c.describe(i));
    std::vector<TensorType> types;
    for (const GraphOutput& output : callee.outputs()) types.push_back(output.value.type());
    return types;
  }
  // The sum over the body would count what stays in registers; operands and results do not.
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr Unbatchable batch{"made by fuse, after vmap"};
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static void evaluate(EvaluateContext& c) {
    SINTER_CHECK(false, "fusion @{} has no meaning of its own: executors run its graph",
                 c.op.callee());
  }
  static std::vector<Sample> samples() {
    Sample one, two;
    one.operands = {{DType::F32, {3, 4}}};
    two.operands = {{DType::F32, {5}}, {DType::I32, {5}}};
    return {one, two};
  }
};

}  // namespace

Op& fusion(Graph& graph, const Graph& callee, std::vector<Value> operands, SourceLocation loc) {
  OpInit init;
  init.operands = std::move(operands);
  init.loc = std::move(loc);
  init.callee = callee.name();
  return graph.create(OpRegistry::get().at("fusion"), std::move(init));
}

void register_call(OpRegistry& r) {
  OpDef def = make_def<Fusion>();
  def.has_callee = true;
  r.add(std::move(def));
}

}  // namespace sinter
