#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/contraction.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

std::optional<Diagnostic> require_one_float_type(const InferContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.has(i)) continue;
    if (auto refused = detail::require_float(c, i)) return refused;
    if (c.type(i).dtype != c.type(0).dtype)
      return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(i));
  }
  return std::nullopt;
}

// ---- dot_general

// The axes of one operand by what becomes of them, counted from the front.
struct Roles {
  List batch, free, contract;
};
std::optional<Roles> roles_of(const List& batch, const List& contract, int64_t rank) {
  List both = batch;
  both.insert(both.end(), contract.begin(), contract.end());
  auto named = normalize_axes(both, rank);
  if (!named) return std::nullopt;
  Roles r;
  for (int64_t axis : batch) r.batch.push_back(*normalize_axis(axis, rank));
  for (int64_t axis : contract) r.contract.push_back(*normalize_axis(axis, rank));
  for (int64_t i = 0; i < rank; ++i)
    if (!std::binary_search(named->begin(), named->end(), i)) r.free.push_back(i);
  return r;
}

Shape extents(const Shape& shape, const List& axes) {
  Shape out;
  for (int64_t axis : axes) out.push_back(shape[static_cast<size_t>(axis)]);
  return out;
}

List joined(const List& a, const List& b, const List& c) {
  List out = a;
  out.insert(out.end(), b.begin(), b.end());
  out.insert(out.end(), c.begin(), c.end());
  return out;
}

// An operand as the matrices of matmul: [batch, rows, columns], without batch where there is none.
struct Side {
  Value value;
  bool transposed = false;
};
Side matrices(Value v, const Roles& r, const List& rows, const List& columns) {
  Side side;
  List straight = joined(r.batch, rows, columns), turned = joined(r.batch, columns, rows);
  side.transposed = !std::is_sorted(straight.begin(), straight.end()) &&
                    std::is_sorted(turned.begin(), turned.end());
  const List& order = side.transposed ? turned : straight;
  int64_t first = num_elements(extents(v.shape(), side.transposed ? columns : rows));
  int64_t second = num_elements(extents(v.shape(), side.transposed ? rows : columns));
  Shape shape{first, second};
  if (!r.batch.empty()) shape.insert(shape.begin(), num_elements(extents(v.shape(), r.batch)));
  if (!std::is_sorted(order.begin(), order.end())) v = permute(v, order);
  side.value = reshape(v, shape);
  return side;
}

struct DotGeneral {
  static constexpr std::string_view name = "dot_general";
  static constexpr std::string_view doc =
      "The sum of products of a and b (one float type) over the contracted axes: the batch axes, "
      "then the others of a, then those of b; added up as matmul does.";
  static constexpr OperandSpec operands[] = {required("a"), required("b")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = DotGeneralAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static constexpr Autocast autocast = Autocast::Inside;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = require_one_float_type(c)) return *refused;
    auto left = roles_of(a.a_batch, a.a_contract, c.rank(0));
    auto right = roles_of(a.b_batch, a.b_contract, c.rank(1));
    if (!left)
      return c.error("a_batch and a_contract do not name distinct axes of {}", c.describe(0));
    if (!right)
      return c.error("b_batch and b_contract do not name distinct axes of {}", c.describe(1));
    for (bool of_batch : {true, false}) {
      const List& p = of_batch ? left->batch : left->contract;
      const List& q = of_batch ? right->batch : right->contract;
      const char* what = of_batch ? "batch" : "contracted";
      if (p.size() != q.size())
        return c.error("{} has {} {} axes, {} has {}", c.describe(0), p.size(), what, c.describe(1),
                       q.size());
      Shape x = extents(c.shape(0), p), y = extents(c.shape(1), q);
      for (size_t i = 0; i < x.size(); ++i)
        if (x[i] != y[i])
          return c.error("axis {} of {} has extent {}, axis {} of {} has {}", p[i], c.describe(0),
                         x[i], q[i], c.describe(1), y[i]);
    }
    Shape shape = joined(extents(c.shape(0), left->batch), extents(c.shape(0), left->free),
                         extents(c.shape(1), right->free));
    return std::vector{TensorType{c.type(0).dtype, shape}};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    double terms = 1;
    for (int64_t axis : op.attrs<Attrs>().a_contract)
      terms *= static_cast<double>(op.operand(0).dim(axis));
    cost.flops = 2.0 * terms * static_cast<double>(op.result().type().elements());
    return cost;
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0), y = op.operand(1);
    Roles left = *roles_of(a.a_batch, a.a_contract, x.rank());
    Roles right = *roles_of(a.b_batch, a.b_contract, y.rank());
    Side p = matrices(x, left, left.free, left.contract);
    Side q = matrices(y, right, right.contract, right.free);
    return {reshape(matmul(p.value, q.value, p.transposed, q.transposed), op.result().shape())};
  }
  static std::vector<Sample> samples() {
    auto attrs = [](List ab, List bb, List ac, List bc) {
      return AttrMap{{"a_batch", ab}, {"b_batch", bb}, {"a_contract", ac}, {"b_contract", bc}};
    };
    return {sample({"f32[2,3]", "f32[3,4]"}, attrs({}, {}, {1}, {0})),
            sample({"f32[3]", "f32[3]"}, attrs({}, {}, {0}, {0})),
            sample({"f32[2,3,4]", "f32[4,2,5]"}, attrs({0}, {1}, {-1}, {0})),
            sample({"bf16[2,3,4,2]", "bf16[2,4,3]"}, attrs({0}, {0}, {2, 1}, {1, 2})),
            sample({"f32[2,3]", "f32[4]"}),
            sample({"f32[]", "f32[2]"}),
            sample({"f32[2,3]", "f32[3,2]"}, attrs({0, 1}, {1, 0}, {}, {})),
            sample({"f32[0,3]", "f32[3,1]"}, attrs({}, {}, {1}, {0})),
            sample({"f32[2,0]", "f32[0,3]"}, attrs({}, {}, {1}, {0}))};
  }
};

// ---- outer

struct Outer {
  static constexpr std::string_view name = "outer";
  static constexpr std::string_view doc = "a [m] times b [n] (one float type): [m, n].";
  static constexpr OperandSpec operands[] = {required("a"), required("b")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = NoAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_one_float_type(c)) return *refused;
    for (size_t i = 0; i < 2; ++i)
      if (c.rank(i) != 1) return c.error("{} is not of rank 1", c.describe(i));
    return std::vector{TensorType{c.type(0).dtype, {c.shape(0)[0], c.shape(1)[0]}}};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Value> expand(const Op& op) {
    Value a = op.operand(0), b = op.operand(1);
    return {mul(reshape(a, {a.dim(0), 1}), reshape(b, {1, b.dim(0)}))};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3]", "f32[2]"}), sample({"bf16[1]", "bf16[4]"}),
            sample({"f32[0]", "f32[2]"})};
  }
};

// ---- linear

struct Linear {
  static constexpr std::string_view name = "linear";
  static constexpr std::string_view doc =
      "x [..., inputs] times w [inputs, outputs], plus bias [outputs] (one float type); bf16 and "
      "f16 add up in f32 and round once.";
  static constexpr OperandSpec operands[] = {required("x"), required("w"), optional("bias")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = NoAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static constexpr Autocast autocast = Autocast::Inside;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_one_float_type(c)) return *refused;
    if (c.rank(0) < 1) return c.error("{} has no axis", c.describe(0));
    if (c.rank(1) != 2) return c.error("{} is not of rank 2", c.describe(1));
    if (c.shape(0).back() != c.shape(1)[0])
      return c.error("the last axis of {} has extent {}, {} takes {} inputs", c.describe(0),
                     c.shape(0).back(), c.describe(1), c.shape(1)[0]);
    int64_t outputs = c.shape(1)[1];
    if (c.has(2) && c.shape(2) != Shape{outputs})
      return c.error("{} is not one value for each of the {} outputs of {}", c.describe(2), outputs,
                     c.describe(1));
    TensorType type = c.type(0);
    type.shape.back() = outputs;
    return std::vector{type};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    cost.flops = 2.0 * static_cast<double>(op.result().type().elements()) *
                 static_cast<double>(op.operand(1).dim(0));
    return cost;
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0), w = op.operand(1), bias = op.operand(2);
    Shape lead(x.shape().begin(), x.shape().end() - 1);
    Value rows = reshape(x, {num_elements(lead), x.dim(-1)});
    const Shape& shape = op.result().shape();
    if (!bias) return {reshape(matmul(rows, w), shape)};
    // The bias is part of the sum that is rounded once.
    if (detail::is_narrow(x)) {
      Value each = broadcast_to(bias, {num_elements(lead), w.dim(1)});
      return {reshape(matmul_add(rows, w, each, MatmulAttrs{}), shape)};
    }
    return {reshape(matmul(rows, w), shape) + bias};
  }
  static std::vector<Sample> samples() {
    return {
        sample({"f32[2,3]", "f32[3,4]"}),         sample({"f32[2,3]", "f32[3,4]", "f32[4]"}),
        sample({"f32[3]", "f32[3,2]", "f32[2]"}), sample({"bf16[2,1,5]", "bf16[5,3]", "bf16[3]"}),
        sample({"f32[2,2,1,3]", "f32[3,2]"}),     sample({"f32[0,3]", "f32[3,2]", "f32[2]"})};
  }
};

}  // namespace

Value dot_general(Value a, Value b, DotGeneralAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("dot_general", "a", a, loc);
  detail::graph_of("dot_general", "b", b, loc);
  return build_op(graph, "dot_general", {a, b}, std::move(attrs), std::move(loc)).result();
}

Value outer(Value a, Value b, SourceLocation loc) {
  Graph& graph = detail::graph_of("outer", "a", a, loc);
  detail::graph_of("outer", "b", b, loc);
  return build_op(graph, "outer", {a, b}, NoAttrs{}, std::move(loc)).result();
}

Value linear(Value x, Value w, Value bias, SourceLocation loc) {
  Graph& graph = detail::graph_of("linear", "x", x, loc);
  detail::graph_of("linear", "w", w, loc);
  std::vector<Value> operands{x, w};
  if (bias) operands.push_back(bias);
  return build_op(graph, "linear", std::move(operands), NoAttrs{}, std::move(loc)).result();
}

void register_contraction(OpRegistry& r) {
  r.add<DotGeneral>();
  r.add<Outer>();
  r.add<Linear>();
  register_einsum(r);
}

}  // namespace sinter
