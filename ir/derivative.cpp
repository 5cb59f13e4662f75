#include <sinter/ir/derivative.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <numeric>

namespace sinter {

Value JvpContext::tangent_or_zero(size_t i) const {
  if (Value t = tangent(i)) return t;
  return full_like(operand(i), 0.0);
}

bool BatchContext::only(size_t i) const {
  return batched(i) && std::count(batched_.begin(), batched_.end(), true) == 1;
}

TensorType BatchContext::carried_type(TensorType type) const {
  type.shape.insert(type.shape.begin(), size_);
  return type;
}

Value BatchContext::carried(size_t i) const {
  Value v = operand(i);
  if (!v || batched(i)) return v;
  return broadcast_to(v, carried_type(v.type()).shape, op_.loc());
}

std::vector<Value> BatchContext::all_carried() const {
  std::vector<Value> values;
  for (size_t i = 0; i < operands_.size(); ++i) values.push_back(carried(i));
  return values;
}

Op& rebuild(const Op& op, Graph& graph, std::vector<Value> operands,
            std::shared_ptr<const void> attrs) {
  OpInit init;
  init.attrs = attrs != nullptr ? std::move(attrs) : op.raw_attrs();
  init.operands = std::move(operands);
  init.loc = op.loc();
  init.segment = op.segment();
  init.callee = op.callee();
  return graph.create(op.def(), std::move(init));
}

namespace detail {

const GraphTransforms& required(const GraphTransforms* transforms, const Op& op) {
  SINTER_CHECK(transforms != nullptr,
               "the rule of {} transforms its sub-graphs, and was not told how", op.name());
  return *transforms;
}

std::vector<Value> linear_jvp(const JvpContext& c) {
  const Op& op = c.op();
  std::vector<Value> operands;
  for (size_t i = 0; i < op.operands().size(); ++i) {
    Value v = op.operand(i);
    operands.push_back(v && is_float(v.dtype()) ? c.tangent_or_zero(i) : v);
  }
  Op& now = rebuild(op, op.graph(), std::move(operands));
  std::vector<Value> tangents;
  for (size_t i = 0; i < now.num_results(); ++i)
    tangents.push_back(is_float(now.result(i).dtype()) ? now.result(i) : Value());
  return tangents;
}

std::vector<Value> zero_jvp(const JvpContext& c) {
  return std::vector<Value>(c.op().num_results());
}

namespace {

// The op's attributes for operands with the leading axis.
std::shared_ptr<const void> shifted_attrs(const BatchContext& c, std::vector<Value>& operands,
                                          bool empty_is_all) {
  const Op& op = c.op();
  const AttrSchema& schema = op.def().schema;
  std::shared_ptr<void> attrs = schema.copy(op.raw_attrs().get());
  auto shift = [](int64_t axis) { return axis < 0 ? axis : axis + 1; };
  for (size_t k = 0; k < schema.items.size(); ++k) {
    const AttrSchema::Item& item = schema.items[k];
    AttrValue value = schema.get(attrs.get(), k);
    if (item.is_result_type) {
      auto& type = std::get<TensorType>(value);
      type = c.carried_type(type);
    } else if (!item.is_axis) {
      continue;
    } else if (auto* axis = std::get_if<int64_t>(&value)) {
      *axis = shift(*axis);
    } else {
      auto& axes = std::get<std::vector<int64_t>>(value);
      int64_t rank = op.operand(0) ? op.operand(0).rank() : 0;
      if (axes.empty() && !empty_is_all) continue;
      if (axes.empty() && rank == 0) {
        // All axes of a scalar: the leading axis must not count as one of them.
        operands[0] = reshape(operands[0], {c.size(), 1}, op.loc());
        axes = {1};
      } else if (axes.empty()) {
        axes.resize(static_cast<size_t>(rank));
        std::iota(axes.begin(), axes.end(), int64_t{1});
      } else {
        std::transform(axes.begin(), axes.end(), axes.begin(), shift);
      }
    }
    SINTER_CHECK(item.set(attrs.get(), k, value), "{}: attribute {} cannot be shifted", op.name(),
                 item.name);
  }
  return attrs;
}

Batched shift(const BatchContext& c, bool empty_is_all) {
  const Op& op = c.op();
  std::vector<Value> operands = c.all_carried();
  std::shared_ptr<const void> attrs = shifted_attrs(c, operands, empty_is_all);
  Op& now = rebuild(op, c.graph(), std::move(operands), std::move(attrs));
  std::vector<Value> results;
  for (size_t i = 0; i < now.num_results(); ++i) {
    TensorType wanted = c.carried_type(op.result(i).type());
    Value y = now.result(i);
    SINTER_CHECK(y.type().elements() == wanted.elements(),
                 "{} has axes that do not shift: {} in place of {}", op.name(), y.type().str(),
                 wanted.str());
    results.push_back(reshape(y, wanted.shape, op.loc()));
  }
  return Batched::all(std::move(results));
}

}  // namespace

Batched shift_axes(const BatchContext& c) {
  return shift(c, false);
}
Batched shift_reduced_axes(const BatchContext& c) {
  return shift(c, true);
}

Batched unroll(const BatchContext& c) {
  const Op& op = c.op();
  std::vector<std::vector<Value>> rows(op.num_results());
  for (int64_t n = 0; n < c.size(); ++n) {
    std::vector<Value> operands;
    for (size_t i = 0; i < c.num_operands(); ++i) {
      Value v = c.operand(i);
      if (c.batched(i))
        v = reshape(slice_axis(v, 0, n, n + 1, 1, op.loc()), op.operand(i).shape(), op.loc());
      operands.push_back(v);
    }
    Op& now = rebuild(op, c.graph(), std::move(operands));
    for (size_t i = 0; i < rows.size(); ++i) {
      Shape row = now.result(i).shape();
      row.insert(row.begin(), 1);
      rows[i].push_back(reshape(now.result(i), row, op.loc()));
    }
  }
  std::vector<Value> results;
  for (size_t i = 0; i < rows.size(); ++i)
    results.push_back(concat(std::move(rows[i]), 0, op.loc()));
  return Batched::all(std::move(results));
}

}  // namespace detail

}  // namespace sinter
