#include <sinter/passes/transforms.h>

#include <sinter/ir/ops/operand.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/vmap.h>

namespace sinter {

namespace {

std::vector<Value> pull_back(Graph& graph, std::span<const Value> of,
                             std::span<const Value> cotangents, std::span<const Value> wrt) {
  return vjp(graph, of, cotangents, wrt, Unused::Null);
}

std::vector<Value> push_forward(Graph& graph, std::span<const Value> of, std::span<const Value> wrt,
                                std::span<const Value> along) {
  // Integers among the values do not move.
  std::vector<Value> floats, out;
  for (Value v : of)
    if (is_float(v.dtype())) floats.push_back(v);
  std::vector<Value> moved = tangents(graph, floats, wrt, along);
  size_t next = 0;
  for (Value v : of) out.push_back(is_float(v.dtype()) ? moved[next++] : Value());
  return out;
}

std::vector<Value> batch(const Graph& body, Graph& graph, std::span<const Value> inputs,
                         const std::vector<bool>& carried, int64_t size) {
  std::vector<MaybeBatched> operands;
  for (size_t i = 0; i < inputs.size(); ++i) operands.push_back({inputs[i], carried[i]});
  std::vector<Value> out;
  for (const MaybeBatched& r : vmap(body, graph, operands, size)) {
    Shape shape = r.value.shape();
    shape.insert(shape.begin(), size);
    SourceLocation loc = r.value.op() != nullptr ? r.value.op()->loc() : SourceLocation{};
    out.push_back(r.batched ? r.value : broadcast_to(r.value, shape, loc));
  }
  return out;
}

}  // namespace

const GraphTransforms& graph_transforms() {
  static const GraphTransforms transforms{pull_back, push_forward, batch};
  return transforms;
}

}  // namespace sinter
