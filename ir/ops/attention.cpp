#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/random.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <cmath>
#include <limits>

namespace sinter {
namespace {

using detail::require_float, detail::sample_of;

constexpr double kInf = std::numeric_limits<double>::infinity();

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

// Where the optional operands begin: behind q, k and v, and dy in the backward op.
constexpr size_t kForwardOptions = 3, kBackwardOptions = 4;
enum Option : size_t {
  kMask,
  kBias,
  kKvLength,
  kSeed,
  kStep,
  kOffset,
  kBoundaries,
  kSlopes,
  kOptions
};
// Behind them, in the backward op alone.
constexpr size_t kDlse = kBackwardOptions + kOptions, kY = kDlse + 1, kLse = kDlse + 2;

// The operands of either op.
struct Operands {
  explicit Operands(const Op& op, size_t options)
      : q(op.operand(0)), k(op.operand(1)), v(op.operand(2)) {
    for (size_t i = 0; i < kOptions; ++i) option[i] = op.operand(options + i);
  }
  Value q, k, v;
  Value option[kOptions];
  Sizes sizes() const { return sizes_of(q.shape(), k.shape(), v.shape()); }
};

// Whether `shape`, aligned at the right, can be broadcast to the scores.
bool broadcasts(const Shape& shape, const Shape& scores) {
  if (shape.size() > scores.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t full = scores[scores.size() - shape.size() + i];
    if (shape[i] != full && shape[i] != 1) return false;
  }
  return true;
}

std::optional<Diagnostic> check_options(const InferContext& c, size_t first, const Sizes& s) {
  const auto& a = c.attrs<AttentionAttrs>();
  for (size_t i : {first + kMask, first + kBias}) {
    if (!c.has(i)) continue;
    if (i == first + kMask && c.type(i).dtype != DType::Bool)
      return c.error("{} must be bool", c.describe(i));
    if (i == first + kBias && !is_float(c.type(i).dtype))
      return c.error("{} is not of a float type", c.describe(i));
    if (!broadcasts(c.shape(i), s.scores()))
      return c.error("{} cannot be broadcast to the scores {}", c.describe(i),
                     to_string(s.scores()));
  }
  if (size_t i = first + kKvLength; c.has(i) && c.type(i) != TensorType{DType::I32, {s.batch}})
    return c.error("{} must be {}", c.describe(i), TensorType{DType::I32, {s.batch}}.str());
  if (size_t i = first + kBoundaries; c.has(i)) {
    const TensorType& t = c.type(i);
    if (t.dtype != DType::I32 || t.rank() != 2 || t.shape[0] != s.batch || t.shape[1] < 1)
      return c.error("{} must be i32[{}, documents + 1]", c.describe(i), s.batch);
    if (s.queries != s.keys)
      return c.error("{} needs as many queries as keys, not {} and {}", c.describe(i), s.queries,
                     s.keys);
    if (c.has(first + kKvLength))
      return c.error("{} and {} exclude each other", c.describe(i), c.describe(first + kKvLength));
  }
  if (size_t i = first + kSlopes; c.has(i)) {
    TensorType wanted{compute_type(c.type(0).dtype), {s.heads}};
    if (c.type(i) != wanted) return c.error("{} must be {}", c.describe(i), wanted.str());
  }
  const TensorType stream[] = {{DType::U32, {2}}, {DType::U32, {}}, {DType::I64, {}}};
  for (size_t i = 0; i < 3; ++i) {
    size_t at = first + kSeed + i;
    if (!c.has(at)) {
      if (a.p != 0)
        return c.error("p = {} needs the operand {}", to_string(AttrValue(a.p)),
                       c.def().operands[at].name);
    } else if (c.type(at) != stream[i]) {
      return c.error("{} must be {}", c.describe(at), stream[i].str());
    }
  }
  if (!(a.scale >= 0)) return c.error("scale must not be negative");
  if (!(a.softcap >= 0)) return c.error("softcap must not be negative");
  if (a.window < 0) return c.error("window must not be negative");
  if (!(a.p >= 0 && a.p <= 1)) return c.error("p = {} is not in [0, 1]", to_string(AttrValue(a.p)));
  if (a.site < 0 || a.site > std::numeric_limits<uint32_t>::max())
    return c.error("site {} has more than 32 bits", a.site);
  return std::nullopt;
}

std::optional<Diagnostic> check_attention(const InferContext& c, size_t options) {
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
  return check_options(c, options, s);
}

TensorType output_type(const InferContext& c) {
  Shape shape = c.shape(0);
  shape[3] = c.shape(2)[3];
  return {c.type(0).dtype, std::move(shape)};
}
// Of the log-sum-exp of each row of scores.
TensorType row_type(const InferContext& c) {
  return {compute_type(c.type(0).dtype), {c.shape(0)[0], c.shape(0)[1], c.shape(0)[2]}};
}

double scale_of(const AttentionAttrs& a, int64_t width) {
  return a.scale != 0 || width == 0 ? a.scale : 1.0 / std::sqrt(static_cast<double>(width));
}

Value to_rank_4(Value v) {
  Shape shape(static_cast<size_t>(4 - v.rank()), 1);
  shape.insert(shape.end(), v.shape().begin(), v.shape().end());
  return reshape(v, std::move(shape));
}

// Where keys stand, and the key at each query's own place, as i32 that broadcasts to the scores.
struct Places {
  Value key, own;
};
Places places_of(const Operands& in) {
  Sizes s = in.sizes();
  Graph& graph = in.q.graph();
  Value own = iota(graph, {DType::I32, {1, 1, s.queries, 1}}, 2);
  if (Value length = in.option[kKvLength])
    own = own + (reshape(length, {s.batch, 1, 1, 1}) - static_cast<double>(s.queries));
  else
    own = own + static_cast<double>(s.keys - s.queries);
  return {iota(graph, {DType::I32, {1, 1, 1, s.keys}}, 3), own};
}

// How many boundaries lie at or before each place, [B,S]: equal within one document, 0 in front of
// the first one.
Value document_of(Value boundaries, int64_t length) {
  Shape wide{boundaries.dim(0), length, boundaries.dim(1)};
  Value place = iota(boundaries.graph(), {DType::I32, wide}, 1);
  Value passed = le(broadcast_to(reshape(boundaries, {wide[0], 1, wide[2]}), wide), place);
  return sum(cast(passed, DType::I32), {2});
}

// Which keys a query sees, as a bool of rank 4 that broadcasts to the scores; null: all of them.
Value visible_keys(const Operands& in, const AttentionAttrs& a) {
  Sizes s = in.sizes();
  Graph& graph = in.q.graph();
  Value visible;
  auto both = [&](Value more) { visible = visible ? logical_and(visible, more) : more; };
  if (Value length = in.option[kKvLength])
    both(lt(iota(graph, {DType::I32, {1, 1, 1, s.keys}}, 3), reshape(length, {s.batch, 1, 1, 1})));
  if (a.causal || a.window > 0) {
    auto [key, own] = places_of(in);
    if (a.causal) both(le(key, own));
    if (a.window > 0) {
      auto reach = static_cast<double>(std::min<int64_t>(a.window, s.queries + s.keys));
      both(gt(key, own - reach));
      if (!a.causal) both(lt(key, own + reach));
    }
  }
  if (Value boundaries = in.option[kBoundaries]) {
    Value document = document_of(boundaries, s.keys);
    Value of_query = reshape(document, {s.batch, 1, s.queries, 1});
    both(eq(of_query, reshape(document, {s.batch, 1, 1, s.keys})));
    // What lies in front of the first boundary, or behind the last one, is of no document.
    both(logical_and(gt(of_query, 0), lt(of_query, static_cast<double>(boundaries.dim(1)))));
  }
  if (in.option[kMask]) both(to_rank_4(in.option[kMask]));
  return visible;
}

// How far each key is from each query's own place, as floats.
Value distances(const Operands& in, DType dtype) {
  auto [key, own] = places_of(in);
  return cast(abs(own - key), dtype);
}

// The bias that the slopes stand for.
Value slopes_bias(const Operands& in, DType dtype) {
  Value slopes = in.option[kSlopes];
  return neg(cast(reshape(slopes, {1, slopes.dim(0), 1, 1}), dtype)) * distances(in, dtype);
}

// Whether any element along `axis` holds; the axis stays.
Value any_along(Value v, int64_t axis) {
  return v.dim(axis) == 1 ? v : gt(max(cast(v, DType::F32), {axis}, true), 0.0);
}

// a b^T, wide: operands of a narrow type are added up in f32 and stay unrounded.
Value scores_of(Value a, Value b) {
  MatmulAttrs attrs;
  attrs.transpose_b = true;
  if (detail::is_narrow(a)) attrs.result = to_string(compute_type(a.dtype()));
  return matmul(a, b, std::move(attrs));
}

// q, k, v and dy, with zeros in the rows that take no part: the product of a weight of 0 and
// a NaN there would be NaN.
struct Rows {
  Value q, k, v, dy;
};
Rows clean_rows(const Operands& in, const AttentionAttrs& a, Value visible, Value dy) {
  Rows rows{in.q, in.k, in.v, dy};
  // With causal alone the last query sees every key, and each query its own.
  Sizes s = in.sizes();
  bool leaves_none = in.option[kMask] || in.option[kKvLength] || in.option[kBoundaries] ||
                     a.window > 0 || (a.causal && s.queries > s.keys);
  if (!visible || !leaves_none) return rows;
  Value query_sees = any_along(visible, 3);
  rows.q = where(query_sees, rows.q, 0.0);
  if (dy) rows.dy = where(query_sees, rows.dy, 0.0);
  Value key_seen = any_along(visible, 2);
  if (int64_t heads = key_seen.dim(1); heads != 1 && heads != s.kv_heads) {
    Shape split{key_seen.dim(0), s.kv_heads, heads / std::max<int64_t>(s.kv_heads, 1),
                key_seen.dim(3)};
    key_seen = any_along(reshape(key_seen, split), 2);
  }
  key_seen = reshape(key_seen, {key_seen.dim(0), key_seen.dim(1), key_seen.dim(3), 1});
  rows.k = where(key_seen, rows.k, 0.0);
  rows.v = where(key_seen, rows.v, 0.0);
  return rows;
}

// What both directions compute: the rows without garbage, and the softmax of the scores. Between
// products all is f32; what a product reads is of the operands' type.
struct Softmax {
  Rows rows;
  Value products;    // of queries and keys, as they come
  Value p;           // the probabilities [B,H,Sq,Sk], wide; all 0 in a row that sees no key
  Value saturation;  // tanh(score / softcap), where there is a softcap
  Value lse;         // [B,H,Sq]
};
Softmax softmax_of(const Operands& in, const AttentionAttrs& a, Value dy = {}) {
  Sizes s = in.sizes();
  Value visible = visible_keys(in, a);
  Softmax out;
  out.rows = clean_rows(in, a, visible, dy);
  Value scores = scores_of(reshape(out.rows.q, s.grouped(s.width)), out.rows.k);
  out.products = scores;
  scores = reshape(scores, s.scores()) * scale_of(a, s.width);
  if (a.softcap > 0) {
    out.saturation = tanh(scores / a.softcap);
    scores = out.saturation * a.softcap;
  }
  if (in.option[kBias]) scores = scores + cast(to_rank_4(in.option[kBias]), scores.dtype());
  if (in.option[kSlopes]) scores = scores + slopes_bias(in, scores.dtype());
  if (visible) scores = where(visible, scores, -kInf);
  Value largest = max(scores, {3}, true);
  Value e = exp(scores - where(eq(largest, -kInf), 0.0, largest));
  Value total = sum(e, {3}, true);
  out.p = e / where(eq(total, 0.0), 1.0, total);
  out.lse =
      reshape(where(eq(total, 0.0), -kInf, largest + log(total)), {s.batch, s.heads, s.queries});
  return out;
}

// The sum of `v`, of rank 4, over the axes along which a value of `type` is broadcast to it.
Value sum_to(Value v, const TensorType& type) {
  Shape wide(static_cast<size_t>(4 - type.rank()), 1);
  wide.insert(wide.end(), type.shape.begin(), type.shape.end());
  std::vector<int64_t> axes;
  for (size_t i = 0; i < 4; ++i)
    if (wide[i] != v.shape()[i]) axes.push_back(static_cast<int64_t>(i));
  return cast(reshape(axes.empty() ? v : sum(v, axes, true), type.shape), type.dtype);
}

// `p`, or a cotangent of it, with the dropped elements 0.
Value drop(Value p, const Operands& in, const AttentionAttrs& a) {
  if (a.p == 0) return p;
  DropoutAttrs attrs{a.p, a.site};
  return build_op(p.graph(), "dropout", {p, in.option[kSeed], in.option[kStep], in.option[kOffset]},
                  attrs, {})
      .result();
}

double score_flops(const Op& op) {
  Sizes s = sizes_of(op.operand(0).shape(), op.operand(1).shape(), op.operand(2).shape());
  return 2.0 * static_cast<double>(num_elements(s.scores()));
}

// One trial's optional operands; the empty ones are left out.
struct Extras {
  std::optional<Shape> mask, bias;
  bool kv_length = false;
  int64_t documents = 0;  // boundaries of so many
  bool slopes = false;
  bool saved = false;  // the backward op gets y and lse
};

std::vector<Sample> attention_samples(bool backward) {
  std::vector<Sample> samples;
  auto add = [&](DType type, Sizes s, Extras extras, AttrMap attrs) {
    bool drops = attrs.count("p") != 0, lse = attrs.count("lse") != 0;
    Sample one = sample_of({{type, {s.batch, s.heads, s.queries, s.width}},
                            {type, {s.batch, s.kv_heads, s.keys, s.width}},
                            {type, {s.batch, s.kv_heads, s.keys, s.value_width}}},
                           std::move(attrs));
    auto option = [&](bool present, TensorType of) {
      if (!present) one.absent.push_back(one.operands.size());
      one.operands.push_back(std::move(of));
    };
    if (backward) one.operands.push_back({type, {s.batch, s.heads, s.queries, s.value_width}});
    option(extras.mask.has_value(), {DType::Bool, extras.mask.value_or(Shape{})});
    option(extras.bias.has_value(), {DType::F32, extras.bias.value_or(Shape{})});
    option(extras.kv_length, {DType::I32, {s.batch}});
    option(drops, {DType::U32, {2}});
    option(drops, {DType::U32, {}});
    option(drops, {DType::I64, {}});
    option(extras.documents > 0, {DType::I32, {s.batch, extras.documents + 1}});
    option(extras.slopes, {compute_type(type), {s.heads}});
    if (backward) {
      TensorType row{compute_type(type), {s.batch, s.heads, s.queries}};
      option(lse, row);
      option(extras.saved, {type, {s.batch, s.heads, s.queries, s.value_width}});
      option(extras.saved, row);
    }
    one.low = -1;
    one.high = 1;
    samples.push_back(std::move(one));
  };
  const DType f = DType::F32;
  const int64_t window = 2;
  AttrMap causal{{"causal", true}};
  add(f, {1, 1, 1, 3, 3, 4, 4}, {}, {});
  add(f, {2, 4, 2, 3, 5, 2, 3}, {}, {{"scale", 0.3}});
  add(f, {1, 2, 1, 3, 5, 2, 2}, {}, causal);
  add(f, {1, 2, 2, 5, 3, 2, 2}, {}, causal);
  add(f, {2, 2, 1, 3, 4, 2, 2}, {Shape{2, 1, 3, 4}, {}, false}, {});
  add(f, {2, 2, 2, 4, 4, 2, 2}, {Shape{4, 4}, {}, false}, causal);
  add(f, {1, 1, 1, 2, 0, 2, 2}, {}, {});
  add(f, {1, 2, 1, 0, 3, 2, 2}, {}, causal);
  add(f, {1, 1, 1, 5, 5, 2, 2}, {}, {{"causal", true}, {"window", window}});
  add(f, {1, 2, 1, 4, 5, 2, 2}, {}, {{"window", window}, {"softcap", 1.5}});
  add(f, {2, 2, 1, 3, 4, 2, 2}, {{}, Shape{1, 2, 1, 4}, false}, {{"softcap", 2.0}});
  add(f, {2, 2, 2, 3, 3, 2, 2}, {Shape{2, 1, 1, 3}, Shape{3, 3}, false}, {{"lse", true}});
  add(f, {2, 2, 1, 2, 4, 2, 2}, {{}, {}, true}, {{"causal", true}, {"lse", true}});
  add(f, {1, 2, 1, 3, 4, 2, 2}, {}, {{"p", 0.3}, {"site", int64_t{5}}});
  add(DType::BF16, {1, 2, 1, 3, 4, 4, 2}, {Shape{3, 4}, {}, false}, {});
  // In f64 what follows: the boundaries drawn need not rise, nor y and lse be what they are called,
  // and a kernel may count on both.
  const DType wide = DType::F64;
  add(wide, {2, 2, 1, 4, 4, 2, 2}, {.documents = 2}, {});
  add(wide, {1, 1, 1, 4, 4, 2, 2}, {.documents = 1}, causal);
  add(wide, {1, 2, 1, 3, 3, 2, 2}, {.saved = true}, causal);
  add(f, {1, 2, 1, 3, 4, 2, 2}, {.slopes = true}, causal);
  add(f, {2, 2, 2, 3, 3, 2, 2}, {.bias = Shape{1, 3}, .kv_length = true, .slopes = true}, {});
  add(DType::BF16, {1, 2, 1, 3, 3, 4, 2}, {.slopes = true}, {{"lse", true}});
  return samples;
}

// The examples become part of the batch axis, in front of it. `options`: the place of the first
// optional operand.
Batched batch_attention(const BatchContext& c, size_t options) {
  const Op& op = c.op();
  bool backward = options == kBackwardOptions;
  // A mask of dropout depends on the place in the batch, the gradient of a bias is summed over it,
  // and slopes are the same in all of it: none of them may see the examples as one batch.
  if (c.attrs<AttentionAttrs>().p != 0 || (backward && c.operand(options + kBias)) ||
      c.batched(options + kSlopes))
    return Batched::through_expand();
  auto merge = [&](Value v) {
    if (!v) return v;
    Shape shape(v.shape().begin() + 1, v.shape().end());
    shape[0] *= c.size();
    return reshape(v, std::move(shape));
  };
  // What is broadcast to the scores may stay as it is where all examples and all their batches
  // share it.
  auto merge_scores = [&](size_t i) {
    Value v = c.operand(i);
    if (!v) return v;
    Shape shape = op.operand(i).shape();
    shape.insert(shape.begin(), 4 - shape.size(), 1);
    if (!c.batched(i) && shape[0] == 1) return v;
    Shape leading = shape;
    leading.insert(leading.begin(), c.batched(i) ? c.size() : 1);
    shape[0] = op.operand(0).dim(0);
    shape.insert(shape.begin(), c.size());
    return merge(broadcast_to(reshape(v, std::move(leading)), shape));
  };
  std::vector<Value> operands;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (i == options + kMask || i == options + kBias)
      operands.push_back(merge_scores(i));
    else if (i >= options + kSeed && i <= options + kOffset)
      operands.emplace_back();  // without dropout nothing is drawn
    else if (i == options + kSlopes)
      operands.push_back(c.operand(i));
    else
      operands.push_back(merge(c.carried(i)));
  }
  Op& now = rebuild(op, c.graph(), std::move(operands));
  std::vector<Value> results;
  for (size_t i = 0; i < now.num_results(); ++i)
    results.push_back(reshape(now.result(i), c.carried_type(op.result(i).type()).shape));
  return Batched::all(std::move(results));
}

struct Attention {
  static constexpr std::string_view name = "attention";
  static constexpr std::string_view doc =
      "softmax(scale q k^T) v on [B,H,S,D] (Vaswani et al., 2017), causal aligned at the bottom "
      "right; grouped key heads, window, softcap, mask, bias, lengths, dropout; with lse also the "
      "log-sum-exp of each row";
  static constexpr std::array operands{
      required("q"),      required("k"),          required("v"),     optional("mask"),
      optional("bias"),   optional("kv_length"),  optional("seed"),  optional("step"),
      optional("offset"), optional("boundaries"), optional("slopes")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Narrow;
  using Attrs = AttentionAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_attention(c, kForwardOptions)) return *refused;
    std::vector results{output_type(c)};
    if (c.attrs<Attrs>().lse) results.push_back(row_type(c));
    return results;
  }
  static std::vector<Value> expand(const Op& op) {
    Operands in(op, kForwardOptions);
    const auto& a = op.attrs<Attrs>();
    Sizes s = in.sizes();
    Softmax softmax = softmax_of(in, a);
    // The largest values of a model without a kernel for this op: known to the user by their owner.
    if (const std::string& own = op.result().name(); !own.empty()) {
      if (softmax.products.name().empty()) softmax.products.set_name(own + ".products");
      if (softmax.p.name().empty()) softmax.p.set_name(own + ".probabilities");
    }
    Value p = drop(softmax.p, in, a);
    p = cast(reshape(p, s.grouped(s.keys)), in.v.dtype());
    std::vector<Value> results{reshape(matmul(p, softmax.rows.v), op.result().shape())};
    if (a.lse) results.push_back(softmax.lse);
    return results;
  }
  static Grads vjp(const VjpContext& c) {
    const auto& a = c.attrs<Attrs>();
    AttentionOperands in;
    Value* slots[] = {&in.q,    &in.k,    &in.v,      &in.mask,       &in.bias,  &in.kv_length,
                      &in.seed, &in.step, &in.offset, &in.boundaries, &in.slopes};
    for (size_t i = 0; i < std::size(slots); ++i) *slots[i] = c.operand(i);
    Value dy = c.grad() ? c.grad() : full_like(c.result(), 0.0);
    Value dlse = a.lse ? c.grad(1) : Value();
    // Learned slopes: their part of the scores is then a bias like any other.
    bool slopes = in.slopes && c.needs(kForwardOptions + kSlopes);
    Value bias = in.bias, distance;
    if (slopes) {
      Operands all(c.op(), kForwardOptions);
      DType dtype = in.slopes.dtype();
      distance = distances(all, dtype);
      in.bias = slopes_bias(all, dtype);
      if (bias) in.bias = in.bias + cast(to_rank_4(bias), dtype);
      in.slopes = {};
    }
    Value y, lse;
    if (a.lse) y = c.result(0), lse = c.result(1);
    auto g = attention_backward(in, dy, dlse, a, y, lse);
    Grads grads{g.dq, g.dk, g.dv};
    grads.resize(c.op().operands().size());
    if (slopes) {
      Value each = neg(g.dbias) * distance;
      grads[kForwardOptions + kSlopes] = sum(each, {0, 2, 3});
    }
    if (bias) grads[kForwardOptions + kBias] = slopes ? sum_to(g.dbias, bias.type()) : g.dbias;
    return grads;
  }
  static constexpr auto jvp = Jvp::through_expand;
  static Batched batch(const BatchContext& c) { return batch_attention(c, kForwardOptions); }
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
      "cotangents of q, k, v and, where given, bias of attention; the probabilities are recomputed";
  static constexpr std::array operands{
      required("q"),    required("k"),      required("v"),          required("dy"),
      optional("mask"), optional("bias"),   optional("kv_length"),  optional("seed"),
      optional("step"), optional("offset"), optional("boundaries"), optional("slopes"),
      optional("dlse"), optional("y"),      optional("lse")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = AttentionAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_attention(c, kBackwardOptions)) return *refused;
    if (TensorType y = output_type(c); c.type(3) != y)
      return c.error("{} must be {}", c.describe(3), y.str());
    if (c.has(kDlse) && c.type(kDlse) != row_type(c))
      return c.error("{} must be {}", c.describe(kDlse), row_type(c).str());
    if (c.has(kY) && c.type(kY) != c.type(3))
      return c.error("{} must be {}", c.describe(kY), c.type(3).str());
    if (c.has(kLse) && c.type(kLse) != row_type(c))
      return c.error("{} must be {}", c.describe(kLse), row_type(c).str());
    std::vector results{c.type(0), c.type(1), c.type(2)};
    if (c.has(kBackwardOptions + kBias)) results.push_back(c.type(kBackwardOptions + kBias));
    return results;
  }
  static std::vector<Value> expand(const Op& op) {
    Operands in(op, kBackwardOptions);
    const auto& a = op.attrs<Attrs>();
    Sizes s = in.sizes();
    Softmax softmax = softmax_of(in, a, op.operand(3));
    const Rows& rows = softmax.rows;
    Value p = softmax.p, dy = reshape(rows.dy, s.grouped(s.value_width));
    Value dp = drop(reshape(scores_of(dy, rows.v), s.scores()), in, a);
    // Sums over the query heads of a group are part of the products.
    Value kept = cast(reshape(drop(p, in, a), s.grouped(s.keys)), in.v.dtype());
    Value dv = matmul(kept, dy, true, false);
    // grad_mul: what no query sees counts nothing, whatever v holds there.
    Value change = dp - sum(grad_mul(p, dp), {3}, true);
    if (Value dlse = op.operand(kDlse))
      change = change + reshape(dlse, {s.batch, s.heads, s.queries, 1});
    Value ds = grad_mul(p, change);
    Value bias = in.option[kBias];
    Value dbias = bias ? sum_to(ds, bias.type()) : Value();
    if (softmax.saturation) ds = ds * (1.0 - square(softmax.saturation));
    ds = cast(reshape(ds * scale_of(a, s.width), s.grouped(s.keys)), in.q.dtype());
    Value dq = reshape(matmul(ds, rows.k), in.q.shape());
    Value dk = matmul(ds, reshape(rows.q, s.grouped(s.width)), true, false);
    std::vector<Value> results{dq, dk, dv};
    if (bias) results.push_back(dbias);
    return results;
  }
  static constexpr auto jvp = Jvp::through_expand;
  static Batched batch(const BatchContext& c) { return batch_attention(c, kBackwardOptions); }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops =
        score_flops(op) * static_cast<double>(3 * op.operand(0).dim(3) + 2 * op.operand(2).dim(3));
    return cost;
  }
  static std::vector<Sample> samples() { return attention_samples(true); }
};

std::vector<Value> operands_of(const AttentionOperands& in, std::optional<Value> dy) {
  std::vector<Value> list{in.q, in.k, in.v};
  if (dy) list.push_back(*dy);
  for (Value v :
       {in.mask, in.bias, in.kv_length, in.seed, in.step, in.offset, in.boundaries, in.slopes})
    list.push_back(v);
  return list;
}

}  // namespace

AttentionResult attention(const AttentionOperands& in, AttentionAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("attention", "q", in.q, loc);
  if (attrs.p != 0) attrs.site = graph.module().next_random_site++;
  Op& op = build_op(graph, "attention", operands_of(in, {}), attrs, std::move(loc));
  return {op.result(0), attrs.lse ? op.result(1) : Value()};
}
Value attention(Value q, Value k, Value v, Value mask, AttentionAttrs attrs, SourceLocation loc) {
  return attention({q, k, v, mask}, attrs, std::move(loc)).y;
}
AttentionGrads attention_backward(const AttentionOperands& in, Value dy, Value dlse,
                                  AttentionAttrs attrs, Value y, Value lse, SourceLocation loc) {
  Graph& graph = detail::graph_of("attention_backward", "q", in.q, loc);
  std::vector<Value> operands = operands_of(in, dy);
  operands.insert(operands.end(), {dlse, y, lse});
  Op& op = build_op(graph, "attention_backward", std::move(operands), attrs, std::move(loc));
  return {op.result(0), op.result(1), op.result(2), in.bias ? op.result(3) : Value()};
}

void register_attention(OpRegistry& r) {
  register_rope(r);
  r.add<Attention>();
  r.add<AttentionBackward>();
}

}  // namespace sinter
