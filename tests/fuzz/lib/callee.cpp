#include <fmt/format.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/fuzz/lib/callee.h>
#include <sinter/tests/fuzz/lib/rng.h>

namespace sinter::test {
namespace {

// An axis with neighbours; -1 where there is none.
int64_t long_axis(const Shape& shape, Rng& rng) {
  std::vector<int64_t> axes;
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] > 1) axes.push_back(static_cast<int64_t>(i));
  return axes.empty() || num_elements(shape) == 0 ? -1 : rng.pick(axes);
}

Value squared(Value x) {
  return x.dtype() == DType::Bool ? logical_not(x) : mul(x, x);
}

// The elements in another order, or some of them in place of others.
Value moved(Value x, Rng& rng) {
  int64_t axis = long_axis(x.shape(), rng);
  if (axis < 0) return squared(x);
  int64_t extent = x.shape()[static_cast<size_t>(axis)], by = rng.between(1, extent - 1);
  Value rest = slice_axis(x, axis, by, extent);
  switch (rng.below(5)) {
    case 0:
    case 1:
      return concat({rest, slice_axis(x, axis, 0, by)}, axis);
    case 2: {
      std::vector<int64_t> low(x.shape().size(), 0), high = low;
      high[static_cast<size_t>(axis)] = by;
      return pad(rest, low, high, 0);
    }
    case 3: {
      std::vector<int64_t> axes;
      for (int64_t i = x.rank(); i-- > 0;) axes.push_back(i);
      return reshape(permute(x, axes), x.shape());
    }
    default:
      return broadcast_to(slice_axis(x, axis, by, by + 1), x.shape());
  }
}

Value next_of(Value x, const std::vector<Value>& inputs, Rng& rng) {
  if (rng.chance(0.3)) return squared(x);
  Value y = moved(x, rng);
  if (!is_float(x.dtype()) || rng.chance(0.5)) return y;
  // With a neighbour, or another value: a stencil.
  std::vector<Value> alike;
  for (Value v : inputs)
    if (v.type() == x.type()) alike.push_back(v);
  Value sum = add(y, rng.pick(alike));
  return mul(sum, full_like(sum, 0.5));
}

}  // namespace

Graph& add_moving_callee(Module& module, std::span<const TensorType> inputs,
                         const std::string& name, uint64_t variant) {
  Rng rng(variant);
  Graph& callee = module.add_graph(name);
  std::vector<Value> values;
  for (const TensorType& type : inputs)
    values.push_back(callee.add_input(fmt::format("a{}", values.size()), type));
  bool plain = rng.chance(0.25);
  for (Value x : values) callee.add_output("", plain ? squared(x) : next_of(x, values, rng));
  return callee;
}

Graph& add_gradient_of(const Graph& callee) {
  Graph& graph = callee.module().add_graph(callee.name() + "_vjp");
  ValueMap<Value> map;
  std::vector<Value> wrt, of, cotangents;
  for (Value v : callee.inputs()) {
    Value x = graph.add_input(v.name(), v.type());
    map[v] = x;
    if (is_float(v.dtype())) wrt.push_back(x);
  }
  size_t n = 0;
  for (const GraphOutput& o : callee.outputs())
    graph.add_input(fmt::format("y{}", n++), o.value.type());
  clone_ops(callee, graph, map);
  for (const GraphOutput& o : callee.outputs()) {
    if (!is_float(o.value.dtype())) continue;
    of.push_back(map.at(o.value));
    cotangents.push_back(graph.add_input(fmt::format("dy{}", n++), o.value.type()));
  }
  for (Value g : vjp(graph, of, cotangents, wrt)) graph.add_output("", g);
  return graph;
}

}  // namespace sinter::test
