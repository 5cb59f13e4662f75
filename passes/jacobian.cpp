#include <sinter/passes/jacobian.h>

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/vmap.h>

#include <functional>
#include <numeric>

namespace sinter {

namespace {

// The value of a clone of its graph that stands where `v` stands.
Value counterpart(Value v, const Graph& clone) {
  if (v.op() == nullptr) return clone.inputs()[static_cast<size_t>(v.index())];
  Op* there = clone.front();
  for (Op* op = v.graph().front(); op != v.op(); op = op->next()) there = there->next();
  return there->result(static_cast<size_t>(v.index()));
}

void drop_unused(Graph& graph) {
  for (Op* op = graph.back(); op != nullptr;) {
    Op* before = op->prev();
    bool used = false;
    for (size_t i = 0; i < op->num_results(); ++i)
      used = used || !op->result(i).uses().empty() || graph.is_output(op->result(i));
    if (!used) graph.erase(*op);
    op = before;
  }
}

// One of `type` for each of its elements: 1 there, 0 elsewhere.
Value unit_directions(Graph& graph, const TensorType& type) {
  int64_t n = type.elements();
  TensorType counter{DType::I64, {n, n}};
  Value one = cast(eq(iota(graph, counter, 0), iota(graph, counter, 1)), type.dtype);
  Shape shape = type.shape;
  shape.insert(shape.begin(), n);
  return reshape(one, shape);
}

// The values of `derivative(body, direction)` for every unit direction of `along`, with the axis of
// directions in front; `body` is a copy of the graph.
Value for_all_directions(Graph& graph, Value along,
                         const std::function<Value(Graph& body, Value direction)>& derivative) {
  std::unique_ptr<Module> copy = graph.module().clone();
  Graph& body = *copy->find(graph.name());
  std::string name = "direction";
  while (body.find_input(name)) name += "_";
  Value result = derivative(body, body.add_input(name, along.type()));
  while (!body.outputs().empty()) body.erase_output(0);
  body.add_output("", result);
  drop_unused(body);
  InsertionScope scope(graph, nullptr);
  std::vector<MaybeBatched> operands;
  for (Value v : graph.inputs()) operands.push_back({v, false});
  operands.push_back({unit_directions(graph, along.type()), true});
  MaybeBatched all = vmap(body, graph, operands, along.type().elements())[0];
  if (all.batched) return all.value;
  Shape shape = all.value.shape();
  shape.insert(shape.begin(), along.type().elements());
  return broadcast_to(all.value, shape);
}

Shape joined(const Shape& a, const Shape& b) {
  Shape shape = a;
  shape.insert(shape.end(), b.begin(), b.end());
  return shape;
}

}  // namespace

JacobianMode chosen_mode(JacobianMode mode, Value of, Value wrt) {
  if (mode != JacobianMode::Auto) return mode;
  return wrt.type().elements() <= of.type().elements() ? JacobianMode::Forward
                                                       : JacobianMode::Reverse;
}

Value jacobian(Graph& graph, Value of, Value wrt, JacobianMode mode) {
  bool forward = chosen_mode(mode, of, wrt) == JacobianMode::Forward;
  Value rows = for_all_directions(graph, forward ? wrt : of, [&](Graph& body, Value direction) {
    Value y = counterpart(of, body), x = counterpart(wrt, body);
    return forward ? tangents(body, {&y, 1}, {&x, 1}, {&direction, 1})[0]
                   : vjp(body, {&y, 1}, {&direction, 1}, {&x, 1})[0];
  });
  InsertionScope scope(graph, nullptr);
  if (forward) {
    std::vector<int64_t> axes(static_cast<size_t>(rows.rank()));
    std::iota(axes.begin(), axes.end(), int64_t{1});
    axes.back() = 0;
    rows = permute(rows, std::move(axes));
  }
  return reshape(rows, joined(of.shape(), wrt.shape()));
}

Value hessian(Graph& graph, Value of, Value wrt) {
  Value rows = for_all_directions(graph, wrt, [&](Graph& body, Value direction) {
    Value y = counterpart(of, body), x = counterpart(wrt, body);
    Value g = gradients(body, y, {&x, 1})[0];
    return tangents(body, {&g, 1}, {&x, 1}, {&direction, 1})[0];
  });
  InsertionScope scope(graph, nullptr);
  return reshape(rows, joined(wrt.shape(), wrt.shape()));
}

}  // namespace sinter
