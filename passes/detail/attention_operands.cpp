#include <sinter/passes/detail/attention_operands.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/attention_mask.h>

#include <algorithm>
#include <cmath>

namespace sinter::detail {

namespace {

Value again(const Op& view, Value x) {
  return clone_op(view, x.graph(), {x}).result();
}

Value peeled(Value v) {
  while (v.op() != nullptr && is_reshape(*v.op())) v = v.op()->operand(0);
  return v;
}

std::vector<int64_t> axes_of(const Op& permuted) {
  std::vector<int64_t> axes = permuted.attrs<PermuteAttrs>().axes.value;
  for (int64_t& a : axes) a = *normalize_axis(a, permuted.operand(0).rank());
  return axes;
}

// permute(v, axes), one permute where v is one.
Value permuted(Value v, std::vector<int64_t> axes) {
  if (const Op* inner = made_by(v, "permute")) {
    std::vector<int64_t> first = axes_of(*inner);
    for (int64_t& a : axes) a = first[static_cast<size_t>(a)];
    v = inner->operand(0);
  }
  return std::is_sorted(axes.begin(), axes.end()) ? v : permute(v, std::move(axes));
}

// v without the repetition of neighbours along `axis`; null where there is none.
Value unrepeated(Value v, int64_t axis) {
  const Op* op = v.op();
  if (op == nullptr) return {};
  if (op->is("repeat")) {
    int64_t along = *normalize_axis(op->attrs<RepeatAttrs>().axis.value, v.rank());
    return along == axis ? op->operand(0) : Value();
  }
  if (op->is("tile")) {
    std::vector<int64_t> counts = op->attrs<TileAttrs>().counts;
    counts[static_cast<size_t>(axis)] = 1;
    bool others = std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n != 1; });
    return others || op->operand(0).dim(axis) != 1 ? Value() : op->operand(0);
  }
  if (op->is("permute")) {
    Value inner = unrepeated(op->operand(0), axes_of(*op)[static_cast<size_t>(axis)]);
    return inner ? permute(inner, axes_of(*op)) : Value();
  }
  if (op->is("cast")) {
    Value inner = unrepeated(op->operand(0), axis);
    return inner ? cast(inner, v.dtype()) : Value();
  }
  const Op* wide = op->is("broadcast") ? op : made_by(peeled(v), "broadcast");
  if (wide == nullptr) {
    return {};
  }
  Value x = wide->operand(0);
  Shape from = x.shape(), to = wide->result().shape();
  from.insert(from.begin(), to.size() - from.size(), 1);
  // Exactly one axis repeats, and its neighbours are what `axis` counts slowest.
  int64_t inner = 1, times = 0, behind = 0;
  for (size_t i = to.size(); i-- > 0;) {
    if (from[i] != to[i]) {
      if (times != 0) return {};
      times = to[i];
      behind = inner;
    }
    inner *= to[i];
  }
  Shape shape = v.shape();
  int64_t rest = num_elements(Shape(shape.begin() + axis + 1, shape.end()));
  if (times == 0 || behind != rest || shape[static_cast<size_t>(axis)] % times != 0) return {};
  shape[static_cast<size_t>(axis)] /= times;
  return reshape(peeled(x), std::move(shape));
}

}  // namespace

Value without_scale(Value v, double& f) {
  const Op* op = v.op();
  if (op == nullptr) return v;
  if (op->is("mul") || op->is("div")) {
    std::optional<double> right = constant_of(op->operand(1));
    if (right && std::isfinite(*right) && *right > 0) {
      f = op->is("mul") ? f * *right : f / *right;
      return without_scale(op->operand(0), f);
    }
    std::optional<double> left = constant_of(op->operand(0));
    if (op->is("mul") && left && std::isfinite(*left) && *left > 0) {
      f *= *left;
      return without_scale(op->operand(1), f);
    }
    return v;
  }
  if (!is_view(*op) && !op->is("repeat") && !(op->is("cast") && is_float(op->operand(0).dtype())))
    return v;
  Value inner = without_scale(op->operand(0), f);
  return inner == op->operand(0) ? v : again(*op, inner);
}

Value as_rank_4(Value v, Shape shape, bool turned) {
  if (turned) std::swap(shape[2], shape[3]);
  if (v.shape() != shape) {
    // A reshape away from that shape is not needed.
    Value x = v;
    while (x.op() != nullptr && is_reshape(*x.op()) && x.shape() != shape) x = x.op()->operand(0);
    v = x.shape() == shape ? x : reshape(peeled(v), shape);
  }
  return turned ? permuted(v, {0, 1, 3, 2}) : v;
}

Value without_repeat(Value v) {
  Value x = unrepeated(v, 1);
  return x ? x : v;
}

Value exactly_in(Value v, DType type) {
  if (v.dtype() == type) return v;
  if (const Op* op = v.op(); op != nullptr) {
    if (op->is("cast") && op->operand(0).dtype() == type) return op->operand(0);
    if (is_view(*op))
      if (Value x = exactly_in(op->operand(0), type); x && size_of(v.dtype()) > size_of(type)) {
        if (op->is("permute")) return permute(x, axes_of(*op));
        if (op->is("broadcast")) return broadcast_to(x, v.shape());
        return reshape(x, v.shape());
      }
  }
  return size_of(v.dtype()) < size_of(type) ? cast(v, type) : Value();
}

}  // namespace sinter::detail
