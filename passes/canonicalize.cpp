// canonicalize: rewrites ops to one simpler form, until nothing changes.
//
// Only identities that hold for every float, NaN, infinities, signed zeros and rounding included
// (x * 0, x - x and x + 0 are not among them). The one exception is grad_mul, which becomes a plain
// mul where the slope is finite whatever its operands are: the sign of a zero may change then. Ops
// that lose their uses stay for dce.

#include <sinter/ir/numeric.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <unordered_set>

namespace sinter {

namespace {

// The op that makes `v`, if it is of this name.
const Op* made_by(Value v, std::string_view name) {
  return v && v.op() != nullptr && v.op()->is(name) ? v.op() : nullptr;
}

// The element of a `full`; nullopt for other values.
std::optional<Cell> literal(Value v) {
  const Op* op = made_by(v, "full");
  if (op == nullptr) return std::nullopt;
  return full_cell(op->attrs<FullAttrs>(), v.dtype());
}

bool is_literal(Value v, double number) {
  std::optional<Cell> cell = literal(v);
  if (!cell) return false;
  if (!is_float(v.dtype())) return static_cast<double>(cell->i) == number;
  return std::bit_cast<uint64_t>(cell->f) == std::bit_cast<uint64_t>(number);
}

bool is_iota(const std::vector<int64_t>& axes) {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != static_cast<int64_t>(i)) return false;
  return true;
}

Value full_of(const Op& like, Value literal_value) {
  const Op& source = *literal_value.op();
  return full(like.graph(), like.result().type(), source.attrs<FullAttrs>().value);
}

// ---- Patterns: the value that replaces the op's result, or null.

// Whether a bounded slope is finite for NaN and infinities too: relu's is, that of sin is not.
bool is_finite_everywhere(const Op& op) {
  const OpDef& def = op.def();
  if (!def.bounded || !def.scalar || op.operands().size() > 4) return false;
  constexpr double kOdd[] = {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(), 1.0};
  // Every combination: two bits an operand.
  size_t n = op.operands().size(), trials = size_t{1} << (2 * n);
  std::vector<DType> types;
  std::vector<std::vector<Cell>> columns(n, std::vector<Cell>(trials));
  std::vector<const Cell*> args;
  for (size_t i = 0; i < n; ++i) {
    types.push_back(op.operand(i).dtype());
    for (size_t t = 0; t < trials; ++t) {
      size_t which = (t >> (2 * i)) & 3;
      if (is_float(types[i]))
        columns[i][t].f = kOdd[which];
      else
        columns[i][t].i = static_cast<int64_t>(which & 1);
    }
    args.push_back(columns[i].data());
  }
  std::vector<Cell> results(trials);
  Cell* out = results.data();
  evaluate(def.scalar(types, op.raw_attrs().get()), static_cast<int64_t>(trials), args, {&out, 1});
  return std::all_of(results.begin(), results.end(), [](Cell c) { return std::isfinite(c.f); });
}

// A second factor that is finite cannot turn a zero cotangent into NaN. It has to be so whatever it
// is made from: behind a `where`, the side that is not chosen may be NaN.
Value bounded_grad_mul(Op& op) {
  Value p = op.operand(1);
  std::optional<Cell> cell = literal(p);
  bool finite = cell && std::isfinite(canonical(p.dtype(), *cell).f);
  return finite || (p.op() != nullptr && is_finite_everywhere(*p.op())) ? mul(op.operand(0), p)
                                                                        : Value();
}

Value mul_by_one(Op& op) {
  for (size_t i : {0, 1})
    if (is_literal(op.operand(i), 1.0)) return op.operand(1 - i);
  return {};
}

Value div_by_one(Op& op) {
  return is_literal(op.operand(1), 1.0) ? op.operand(0) : Value();
}

// x - 0 keeps a negative zero; x + 0 does not, x + -0 does.
Value sub_zero(Op& op) {
  return is_literal(op.operand(1), 0.0) ? op.operand(0) : Value();
}
Value add_negative_zero(Op& op) {
  double zero = is_float(op.result().dtype()) ? -0.0 : 0.0;
  for (size_t i : {0, 1})
    if (is_literal(op.operand(i), zero)) return op.operand(1 - i);
  return {};
}

Value neg_neg(Op& op) {
  const Op* inner = made_by(op.operand(0), "neg");
  return inner != nullptr ? inner->operand(0) : Value();
}
Value not_not(Op& op) {
  const Op* inner = made_by(op.operand(0), "logical_not");
  return inner != nullptr ? inner->operand(0) : Value();
}

Value only_operand(Op& op) {
  return op.operands().size() == 1 ? op.operand(0) : Value();
}

Value decided_where(Op& op) {
  if (op.operand(1) == op.operand(2)) return op.operand(1);
  if (std::optional<Cell> c = literal(op.operand(0))) return op.operand(c->i != 0 ? 1 : 2);
  return {};
}

// Whether every value of `from` is a value of `to`.
bool represents(DType to, DType from) {
  if (to == from || from == DType::Bool) return true;
  switch (to) {
    case DType::F64:
      return from != DType::I64;
    case DType::F32:
      return from == DType::BF16 || from == DType::F16;
    case DType::I64:
      return from == DType::I32 || from == DType::U32;
    default:
      return false;
  }
}

Value exact_casts(Op& op) {
  Value x = op.operand(0);
  DType to = op.result().dtype();
  if (x.dtype() == to) return x;
  const Op* inner = made_by(x, "cast");
  if (inner == nullptr) return {};
  Value y = inner->operand(0);
  if (!represents(x.dtype(), y.dtype())) return {};
  if (y.dtype() == to) return y;
  // Integers that do not fit wrap; from the float in between they would saturate.
  bool saturates = is_integer(y.dtype()) && is_float(x.dtype()) && is_integer(to);
  return saturates ? Value() : cast(y, to);
}

Value cast_of_full(Op& op) {
  Value x = op.operand(0);
  DType to = op.result().dtype();
  std::optional<Cell> cell = literal(x);
  if (!cell || !is_float(x.dtype()) || !is_float(to)) return {};
  // Constants are held unrounded: the first rounding must change nothing.
  double rounded = canonical(x.dtype(), *cell).f;
  if (std::bit_cast<uint64_t>(rounded) != std::bit_cast<uint64_t>(cell->f)) return {};
  return full_of(op, x);
}

Value move_of_full(Op& op) {
  return literal(op.operand(0)) ? full_of(op, op.operand(0)) : Value();
}

Value same_type(Op& op) {
  return op.operand(0).type() == op.result().type() ? op.operand(0) : Value();
}

Value reshape_of_reshape(Op& op) {
  const Op* inner = made_by(op.operand(0), "reshape");
  return inner != nullptr ? reshape(inner->operand(0), op.result().shape()) : Value();
}

Value broadcast_of_broadcast(Op& op) {
  const Op* inner = made_by(op.operand(0), "broadcast");
  return inner != nullptr ? broadcast_to(inner->operand(0), op.result().shape()) : Value();
}

// Only unit axes are added: no element is repeated.
Value broadcast_to_reshape(Op& op) {
  Value x = op.operand(0);
  bool repeats = x.type().elements() != op.result().type().elements();
  return repeats || x.type() == op.result().type() ? Value() : reshape(x, op.result().shape());
}

std::vector<int64_t> permuted_axes(const Op& op) {
  std::vector<int64_t> axes = op.attrs<PermuteAttrs>().axes.value;
  for (int64_t& a : axes) a = *normalize_axis(a, op.operand(0).rank());
  return axes;
}

Value identity_permute(Op& op) {
  return is_iota(permuted_axes(op)) ? op.operand(0) : Value();
}

Value permute_of_permute(Op& op) {
  const Op* inner = made_by(op.operand(0), "permute");
  if (inner == nullptr) return {};
  std::vector<int64_t> axes;
  std::vector<int64_t> first = permuted_axes(*inner);
  for (int64_t a : permuted_axes(op)) axes.push_back(first[static_cast<size_t>(a)]);
  return permute(inner->operand(0), std::move(axes));
}

// Only unit axes move: the elements stay in order.
Value permute_to_reshape(Op& op) {
  Value x = op.operand(0);
  int64_t last = -1;
  std::vector<int64_t> axes = permuted_axes(op);
  for (int64_t a : axes) {
    if (x.dim(a) == 1) continue;
    if (a < last) return {};
    last = a;
  }
  return is_iota(axes) ? Value() : reshape(x, op.result().shape());
}

Value slice_of_everything(Op& op) {
  const auto& a = op.attrs<SliceAttrs>();
  bool whole = op.operand(0).type() == op.result().type() &&
               std::all_of(a.stride.begin(), a.stride.end(), [](int64_t s) { return s == 1; });
  return whole ? op.operand(0) : Value();
}

// A part that lies within one of the operands is a part of that one.
Value slice_of_concat(Op& op) {
  const Op* joined = made_by(op.operand(0), "concat");
  if (joined == nullptr || op.result().type().elements() == 0) return {};
  SliceAttrs part = op.attrs<SliceAttrs>();
  auto axis = static_cast<size_t>(
      *normalize_axis(joined->attrs<ConcatAttrs>().axis.value, joined->result().rank()));
  int64_t stride = part.stride.empty() ? 1 : part.stride[axis];
  int64_t last = part.start[axis] + (op.result().shape()[axis] - 1) * stride, begin = 0;
  for (Value v : joined->operands()) {
    int64_t end = begin + v.shape()[axis];
    if (part.start[axis] < end) {
      if (last >= end) return {};
      part.start[axis] -= begin;
      part.limit[axis] = last + 1 - begin;
      return slice(v, std::move(part.start), std::move(part.limit), std::move(part.stride));
    }
    begin = end;
  }
  return {};
}

// matmul reads an operand whose last two axes are exchanged by its flag.
Value matmul_of_transposed(Op& op) {
  MatmulAttrs attrs = op.attrs<MatmulAttrs>();
  Value operands[2] = {op.operand(0), op.operand(1)};
  bool* flags[2] = {&attrs.transpose_a, &attrs.transpose_b};
  bool changed = false;
  for (size_t i : {0, 1}) {
    const Op* inner = made_by(operands[i], "permute");
    if (inner == nullptr) continue;
    std::vector<int64_t> axes = permuted_axes(*inner);
    if (axes.size() < 2) continue;
    std::swap(axes[axes.size() - 2], axes[axes.size() - 1]);
    if (!is_iota(axes)) continue;
    operands[i] = inner->operand(0);
    *flags[i] = !*flags[i];
    changed = true;
  }
  if (!changed) return {};
  if (Value c = op.operand(2)) return matmul_add(operands[0], operands[1], c, std::move(attrs));
  return matmul(operands[0], operands[1], std::move(attrs));
}

struct Pattern {
  std::string_view op;
  Value (*rewrite)(Op&);
};

// All patterns of an op are tried in this order.
constexpr Pattern kPatterns[] = {
    {"grad_mul", bounded_grad_mul},
    {"mul", mul_by_one},
    {"div", div_by_one},
    {"sub", sub_zero},
    {"add", add_negative_zero},
    {"neg", neg_neg},
    {"logical_not", not_not},
    {"add_n", only_operand},
    {"concat", only_operand},
    {"where", decided_where},
    {"cast", exact_casts},
    {"cast", cast_of_full},
    {"reshape", same_type},
    {"reshape", reshape_of_reshape},
    {"reshape", move_of_full},
    {"broadcast", same_type},
    {"broadcast", broadcast_of_broadcast},
    {"broadcast", move_of_full},
    {"broadcast", broadcast_to_reshape},
    {"permute", identity_permute},
    {"permute", permute_of_permute},
    {"permute", move_of_full},
    {"permute", permute_to_reshape},
    {"slice", slice_of_everything},
    {"slice", move_of_full},
    {"slice", slice_of_concat},
    {"pad", same_type},
    {"matmul", matmul_of_transposed},
};

Value rewrite(Op& op) {
  for (const Pattern& pattern : kPatterns) {
    if (!op.is(pattern.op)) continue;
    InsertionScope scope(op.graph(), &op, op, op.from());
    if (Value v = pattern.rewrite(op)) return v;
  }
  return {};
}

// Names of values that the graph's attributes speak of, such as `loss` and `lr`.
std::unordered_set<std::string> names_in_attributes(const Graph& graph) {
  std::unordered_set<std::string> names;
  for (const auto& [key, value] : graph.attributes)
    if (const auto* name = std::get_if<std::string>(&value)) names.insert(*name);
  return names;
}

// A worklist in the graph's order; an op whose operand changed is looked at again.
void simplify(Graph& graph) {
  std::unordered_set<std::string> spoken_of = names_in_attributes(graph);
  std::deque<Op*> work;
  std::unordered_set<Op*> queued;
  auto push = [&](Op* op) {
    if (op != nullptr && queued.insert(op).second) work.push_back(op);
  };
  for (Op& op : graph) push(&op);
  while (!work.empty()) {
    Op* op = work.front();
    work.pop_front();
    queued.erase(op);
    if (op->num_results() != 1 || spoken_of.contains(op->result().name())) continue;
    Value with = rewrite(*op);
    if (!with) continue;
    Value old = op->result();
    // The user's name goes on, unless it would rename an input or another named value.
    if (with.name().empty()) with.set_name(old.name());
    for (const Use& use : old.uses()) push(use.op);
    push(with.op());
    old.replace_all_uses_with(with);
    graph.erase(*op);
  }
}

}  // namespace

void run_canonicalize(Module& module, PassContext&) {
  for (const auto& graph : module.graphs()) simplify(*graph);
}

}  // namespace sinter
