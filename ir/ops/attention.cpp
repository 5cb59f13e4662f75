#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <cmath>
#include <limits>

namespace sinter {
namespace {

using detail::require_float, detail::require_index, detail::sample_of, detail::widen;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Rope {
  static constexpr std::string_view name = "rope";
  static constexpr std::string_view doc =
      "rotary embedding of rows [..., S, D]; position 0 is the identity in bits";
  static constexpr std::array operands{required("x"), required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = RopeAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_float(c, 0)) return *refused;
    if (auto refused = require_index(c, 1)) return *refused;
    if (c.rank(0) < 2) return c.error("{} must have axes S and D", c.describe(0));
    if (c.shape(0).back() % 2 != 0)
      return c.error("the last axis of {} must be even", c.describe(0));
    if (c.rank(1) != 0) return c.error("{} must be a scalar", c.describe(1));
    const auto& a = c.attrs<RopeAttrs>();
    if (a.form != "half" && a.form != "interleaved")
      return c.error("form must be \"half\" or \"interleaved\", not \"{}\"", a.form);
    if (!(a.base > 0)) return c.error("base must be positive");
    return std::vector{c.type(0)};
  }

  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<RopeAttrs>();
    Value x = op.operand(0), wide = widen(x), offset = op.operand(1);
    Graph& graph = x.graph();
    int64_t rows = x.dim(-2), width = x.dim(-1), pairs = width / 2;
    bool half = a.form == "half";
    DType type = wide.dtype();

    // Positions are integers until the angle is formed, and the angle is never narrow.
    Value position = iota(graph, {offset.dtype(), {rows, 1}}, 0) + offset;
    Value pair = half ? iota(graph, {type, {2, pairs}}, 1) : iota(graph, {type, {pairs, 2}}, 0);
    double step = width == 0 ? 0 : -2.0 * std::log(a.base) / static_cast<double>(width);
    Value frequency = exp(reshape(pair, {1, width}) * step);
    Value angle = cast(position, type) * frequency;

    // Each element's partner, negative for the first of a pair, so that sines are formed once.
    Value partner;
    if (half) {
      partner = concat({neg(slice_axis(wide, -1, pairs, width)), slice_axis(wide, -1, 0, pairs)},
                       x.rank() - 1);
    } else {
      Shape split = x.shape();
      split.back() = pairs;
      split.push_back(2);
      Value both = reshape(wide, split);
      partner =
          reshape(concat({neg(slice_axis(both, -1, 1, 2)), slice_axis(both, -1, 0, 1)}, x.rank()),
                  x.shape());
    }
    Value sine = a.inverse ? neg(sin(angle)) : sin(angle);
    Value turned = wide * cos(angle) + partner * sine;
    // -0 - 0 and inf * 0 would change what the identity must not.
    return {cast(where(eq(position, 0), wide, turned), x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    RopeAttrs a = c.attrs<RopeAttrs>();
    a.inverse = !a.inverse;
    return {rope(c.grad(), c.operand(1), a), {}};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 24); }
  static std::vector<Sample> samples() {
    const DType f = DType::F32;
    const TensorType offset{DType::I32, {}};
    AttrMap interleaved{{"form", std::string("interleaved")}};
    return {sample_of({{f, {3, 4}}, offset}),
            sample_of({{f, {2, 2, 5, 6}}, {DType::I64, {}}}, interleaved),
            sample_of({{f, {2, 4, 8}}, offset}, {{"base", 500.0}}),
            sample_of({{f, {2, 3, 4}}, offset}, {{"inverse", true}}),
            sample_of({{f, {0, 4}}, offset}),
            sample_of({{DType::BF16, {3, 4}}, offset}, interleaved)};
  }
};

// --- attention ---------------------------------------------------------------------------------

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  Shape scores() const { return {batch, heads, queries, keys}; }
  // Query heads that share a key head lie side by side: one matrix of their rows.
  Shape grouped(int64_t columns) const {
    return {batch, kv_heads, kv_heads == 0 ? 0 : heads / kv_heads * queries, columns};
  }
};
Sizes sizes_of(const Shape& q, const Shape& k, const Shape& v) {
  return {q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
}

std::optional<Diagnostic> check_attention(const InferContext& c, size_t mask) {
  for (size_t i : {0, 1, 2}) {
    if (auto refused = require_float(c, i)) return refused;
    if (c.type(i).dtype != c.type(0).dtype)
      return c.error("{} must have the dtype of {}", c.describe(i), c.describe(0));
    if (c.rank(i) != 4)
      return c.error("{} must have four axes: batch, heads, sequence, width", c.describe(i));
  }
  Sizes s = sizes_of(c.shape(0), c.shape(1), c.shape(2));
  for (size_t i : {1, 2})
    if (c.shape(i)[0] != s.batch)
      return c.error("{} and {} disagree on the batch, axis 0", c.describe(0), c.describe(i));
  if (c.shape(1)[3] != s.width)
    return c.error("{} and {} disagree on the width, axis 3", c.describe(0), c.describe(1));
  for (size_t axis : {1, 2})
    if (c.shape(2)[axis] != c.shape(1)[axis])
      return c.error("{} and {} disagree on axis {}", c.describe(1), c.describe(2), axis);
  if (s.kv_heads == 0 ? s.heads != 0 : s.heads % s.kv_heads != 0)
    return c.error("the {} heads of {} are no multiple of the {} of {}", s.heads, c.describe(0),
                   s.kv_heads, c.describe(1));
  if (c.has(mask)) {
    if (c.type(mask).dtype != DType::Bool) return c.error("{} must be bool", c.describe(mask));
    const Shape& m = c.shape(mask);
    Shape scores = s.scores();
    bool fits = m.size() <= 4;
    for (size_t i = 0; fits && i < m.size(); ++i) {
      int64_t full = scores[4 - m.size() + i];
      fits = m[i] == full || m[i] == 1;
    }
    if (!fits)
      return c.error("{} cannot be broadcast to the scores {}", c.describe(mask),
                     to_string(scores));
  }
  if (!(c.attrs<AttentionAttrs>().scale >= 0)) return c.error("scale must not be negative");
  return std::nullopt;
}

double scale_of(const AttentionAttrs& a, int64_t width) {
  return a.scale != 0 || width == 0 ? a.scale : 1.0 / std::sqrt(static_cast<double>(width));
}

// Which keys a query sees, as a bool that broadcasts to the scores; null: all of them.
Value visible_keys(Graph& graph, const Sizes& s, const AttentionAttrs& a, Value mask) {
  if (!a.causal) return mask;
  Value query = iota(graph, {DType::I32, {s.queries, 1}}, 0);
  Value key = iota(graph, {DType::I32, {1, s.keys}}, 1);
  Value seen = le(key, query + static_cast<double>(s.keys - s.queries));
  return mask ? logical_and(seen, mask) : seen;
}

// The probabilities [B,H,Sq,Sk], wide; all 0 in a row that sees no key.
Value probabilities(const Sizes& s, const AttentionAttrs& a, Value q, Value k, Value mask) {
  Value scores = matmul(reshape(widen(q), s.grouped(s.width)), widen(k), false, true);
  scores = reshape(scores, s.scores()) * scale_of(a, s.width);
  if (Value visible = visible_keys(q.graph(), s, a, mask)) scores = where(visible, scores, -kInf);
  Value largest = max(scores, {3}, true);
  Value e = exp(scores - where(eq(largest, -kInf), 0.0, largest));
  Value total = sum(e, {3}, true);
  return e / where(eq(total, 0.0), 1.0, total);
}

double score_flops(const Op& op) {
  Sizes s = sizes_of(op.operand(0).shape(), op.operand(1).shape(), op.operand(2).shape());
  return 2.0 * static_cast<double>(num_elements(s.scores()));
}

std::vector<Sample> attention_samples(bool backward) {
  std::vector<Sample> samples;
  auto add = [&](DType type, Sizes s, std::optional<Shape> mask, AttrMap attrs) {
    Sample one = sample_of({{type, {s.batch, s.heads, s.queries, s.width}},
                            {type, {s.batch, s.kv_heads, s.keys, s.width}},
                            {type, {s.batch, s.kv_heads, s.keys, s.value_width}}},
                           std::move(attrs));
    if (backward) one.operands.push_back({type, {s.batch, s.heads, s.queries, s.value_width}});
    if (!mask) one.absent.push_back(one.operands.size());
    one.operands.push_back({DType::Bool, mask.value_or(Shape{})});
    one.low = -1;
    one.high = 1;
    samples.push_back(std::move(one));
  };
  const DType f = DType::F32;
  AttrMap causal{{"causal", true}};
  add(f, {1, 1, 1, 3, 3, 4, 4}, {}, {});
  add(f, {2, 4, 2, 3, 5, 2, 3}, {}, {{"scale", 0.3}});
  add(f, {1, 2, 1, 3, 5, 2, 2}, {}, causal);
  add(f, {1, 2, 2, 5, 3, 2, 2}, {}, causal);
  add(f, {2, 2, 1, 3, 4, 2, 2}, Shape{2, 1, 3, 4}, {});
  add(f, {2, 2, 2, 4, 4, 2, 2}, Shape{4, 4}, causal);
  add(f, {1, 1, 1, 2, 0, 2, 2}, {}, {});
  add(f, {1, 2, 1, 0, 3, 2, 2}, {}, causal);
  add(DType::BF16, {1, 2, 1, 3, 4, 4, 2}, Shape{3, 4}, {});
  return samples;
}

struct Attention {
  static constexpr std::string_view name = "attention";
  static constexpr std::string_view doc =
      "softmax(scale q k^T) v on [B,H,S,D], causal aligned at the bottom right; grouped key heads";
  static constexpr std::array operands{required("q"), required("k"), required("v"),
                                       optional("mask")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = AttentionAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_attention(c, 3)) return *refused;
    Shape result = c.shape(0);
    result[3] = c.shape(2)[3];
    return std::vector{TensorType{c.type(0).dtype, std::move(result)}};
  }
  static std::vector<Value> expand(const Op& op) {
    Value q = op.operand(0), k = op.operand(1), v = op.operand(2);
    Sizes s = sizes_of(q.shape(), k.shape(), v.shape());
    Value p = probabilities(s, op.attrs<AttentionAttrs>(), q, k, op.operand(3));
    Value y = matmul(reshape(p, s.grouped(s.keys)), widen(v));
    return {cast(reshape(y, op.result().shape()), q.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    auto g = attention_backward(c.operand(0), c.operand(1), c.operand(2), c.grad(), c.operand(3),
                                c.attrs<AttentionAttrs>());
    Grads grads{g.dq, g.dk, g.dv};
    grads.resize(c.op().operands().size());  // none for a mask
    return grads;
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = score_flops(op) * static_cast<double>(op.operand(0).dim(3) + op.operand(2).dim(3));
    return cost;
  }
  static std::vector<Sample> samples() { return attention_samples(false); }
};

struct AttentionBackward {
  static constexpr std::string_view name = "attention_backward";
  static constexpr std::string_view doc =
      "cotangents of q, k and v of attention; the probabilities are recomputed";
  static constexpr std::array operands{required("q"), required("k"), required("v"), required("dy"),
                                       optional("mask")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = AttentionAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_attention(c, 4)) return *refused;
    Shape result = c.shape(0);
    result[3] = c.shape(2)[3];
    if (c.type(3) != TensorType{c.type(0).dtype, result})
      return c.error("{} must have shape {} and the dtype of {}", c.describe(3), to_string(result),
                     c.describe(0));
    return std::vector{c.type(0), c.type(1), c.type(2)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value q = op.operand(0), k = op.operand(1), v = op.operand(2);
    const auto& a = op.attrs<AttentionAttrs>();
    Sizes s = sizes_of(q.shape(), k.shape(), v.shape());
    Value p = probabilities(s, a, q, k, op.operand(4));
    Value dy = reshape(widen(op.operand(3)), s.grouped(s.value_width));
    Value dp = reshape(matmul(dy, widen(v), false, true), s.scores());
    // Sums over the query heads of a group are part of the products.
    Value dv = matmul(reshape(p, s.grouped(s.keys)), dy, true, false);
    // grad_mul: what no query sees counts nothing, whatever v holds there.
    Value inner = sum(grad_mul(p, dp), {3}, true);
    Value ds = grad_mul(p, dp - inner) * scale_of(a, s.width);
    ds = reshape(ds, s.grouped(s.keys));
    Value dq = reshape(matmul(ds, widen(k)), q.shape());
    Value dk = matmul(ds, reshape(widen(q), s.grouped(s.width)), true, false);
    return {cast(dq, q.dtype()), cast(dk, k.dtype()), cast(dv, v.dtype())};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops =
        score_flops(op) * static_cast<double>(3 * op.operand(0).dim(3) + 2 * op.operand(2).dim(3));
    return cost;
  }
  static std::vector<Sample> samples() { return attention_samples(true); }
};

}  // namespace

Value rope(Value x, Value offset, RopeAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("rope", "x", x, loc);
  return build_op(graph, "rope", {x, offset}, std::move(attrs), std::move(loc)).result();
}
Value attention(Value q, Value k, Value v, Value mask, AttentionAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("attention", "q", q, loc);
  return build_op(graph, "attention", {q, k, v, mask}, attrs, std::move(loc)).result();
}
AttentionGrads attention_backward(Value q, Value k, Value v, Value dy, Value mask,
                                  AttentionAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("attention_backward", "q", q, loc);
  Op& op = build_op(graph, "attention_backward", {q, k, v, dy, mask}, attrs, std::move(loc));
  return {op.result(0), op.result(1), op.result(2)};
}

void register_attention(OpRegistry& r) {
  r.add<Rope>();
  r.add<Attention>();
  r.add<AttentionBackward>();
}

}  // namespace sinter
