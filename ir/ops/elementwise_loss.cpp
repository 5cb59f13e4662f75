#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/activation.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/elementwise_loss.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>

#include <algorithm>

namespace sinter {
namespace {

using detail::require_float, detail::require_same, detail::sample_of, detail::widen;

struct ReductionAttrs {
  std::string reduction = "mean";
  static constexpr auto fields() {
    return std::tuple{field("reduction", &ReductionAttrs::reduction, "mean, sum or none")};
  }
};
struct HuberAttrs {
  double delta = 1;
  std::string reduction = "mean";
  static constexpr auto fields() {
    return std::tuple{field("delta", &HuberAttrs::delta, "where the slope stops growing"),
                      field("reduction", &HuberAttrs::reduction, "mean, sum or none")};
  }
};
struct KlDivAttrs {
  bool log_target = false;
  std::string reduction = "mean";
  static constexpr auto fields() {
    return std::tuple{
        field("log_target", &KlDivAttrs::log_target, "the target is a log-probability too"),
        field("reduction", &KlDivAttrs::reduction, "mean, batchmean, sum or none")};
  }
};

// The loss of operands 0 and 1, which must be floats of one type.
Inferred infer_loss(const InferContext& c, const std::string& reduction, bool batchmean = false) {
  if (auto refused = require_float(c, 0)) return *refused;
  if (auto refused = require_same(c, 0, 1)) return *refused;
  bool known = reduction == "mean" || reduction == "sum" || reduction == "none" ||
               (batchmean && reduction == "batchmean");
  if (!known)
    return c.error("reduction must be \"mean\", {}\"sum\" or \"none\", not \"{}\"",
                   batchmean ? "\"batchmean\", " : "", reduction);
  if (reduction == "batchmean" && c.rank(0) == 0)
    return c.error("{} has no axis of a batch", c.describe(0));
  return std::vector{
      TensorType{compute_type(c.type(0).dtype), reduction == "none" ? c.shape(0) : Shape{}}};
}

// What is left of the losses of all elements. A mean of nothing is 0.
Value reduced(Value losses, const std::string& reduction) {
  if (reduction == "none") return losses;
  Value total = losses.rank() == 0 ? losses : sum(losses);
  int64_t count = reduction == "mean"        ? losses.type().elements()
                  : reduction == "batchmean" ? losses.dim(0)
                                             : 1;
  return count > 1 ? total / static_cast<double>(count) : total;
}

std::vector<Sample> pair_samples(const std::vector<AttrMap>& more = {}) {
  const auto none = [] { return AttrMap{{"reduction", std::string("none")}}; };
  const auto total = [] { return AttrMap{{"reduction", std::string("sum")}}; };
  auto pair = [](TensorType type, AttrMap attrs) {
    return sample_of({type, type}, std::move(attrs));
  };
  const DType f = DType::F32;
  std::vector<Sample> samples = {pair({f, {2, 3}}, {}),         pair({f, {5}}, none()),
                                 pair({f, {2, 1, 3}}, total()), pair({f, {}}, {}),
                                 pair({f, {0, 3}}, {}),         pair({f, {1, 2, 3, 2}}, none()),
                                 pair({DType::BF16, {4}}, {}),  pair({DType::F64, {3}}, total())};
  for (const AttrMap& attrs : more) samples.push_back(pair({f, {3, 2}}, attrs));
  return samples;
}

struct PairLoss {
  static constexpr std::array operands{required("x"), required("y")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReductionAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Inferred infer(const InferContext& c) { return infer_loss(c, c.attrs<Attrs>().reduction); }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 4.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static Value distance(const Op& op) { return widen(op.operand(0)) - widen(op.operand(1)); }
};

struct Mse : PairLoss {
  static constexpr std::string_view name = "mse";
  static constexpr std::string_view doc = "the mean (sum, each) of (x - y)^2, floats of one type";
  static std::vector<Value> expand(const Op& op) {
    return {reduced(square(distance(op)), op.attrs<Attrs>().reduction)};
  }
  static std::vector<Sample> samples() { return pair_samples(); }
};

struct L1 : PairLoss {
  static constexpr std::string_view name = "l1";
  static constexpr std::string_view doc =
      "the mean (sum, each) of |x - y|, floats of one type; slope 0 where they are equal";
  static std::vector<Value> expand(const Op& op) {
    return {reduced(abs(distance(op)), op.attrs<Attrs>().reduction)};
  }
  static std::vector<Sample> samples() {
    auto samples = pair_samples();
    for (Sample& s : samples) s.gap = 0.05;
    return samples;
  }
};

struct Huber : PairLoss {
  static constexpr std::string_view name = "huber";
  static constexpr std::string_view doc =
      "the mean (sum, each) of (x - y)^2 / 2 up to |x - y| = delta, from there "
      "delta (|x - y| - delta / 2) (Huber, 1964)";
  using Attrs = HuberAttrs;
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (!(a.delta > 0)) return c.error("delta {} is not above 0", to_string(AttrValue(a.delta)));
    return infer_loss(c, a.reduction);
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value d = distance(op), far = abs(d);
    Value losses = where(le(far, a.delta), square(d) * 0.5, (far - 0.5 * a.delta) * a.delta);
    return {reduced(losses, a.reduction)};
  }
  static std::vector<Sample> samples() {
    return pair_samples({{{"delta", 0.4}}, {{"delta", 3.0}, {"reduction", std::string("none")}}});
  }
};

struct KlDiv : PairLoss {
  static constexpr std::string_view name = "kl_div";
  static constexpr std::string_view doc =
      "the mean (sum, each) of y (log y - x) of log-probabilities x and probabilities y, 0 where y "
      "is 0 (Kullback and Leibler, 1951); with log_target of exp(y) (y - x)";
  using Attrs = KlDivAttrs;
  static Inferred infer(const InferContext& c) {
    return infer_loss(c, c.attrs<Attrs>().reduction, true);
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = widen(op.operand(0)), y = widen(op.operand(1));
    Value p = a.log_target ? exp(y) : y;
    Value terms = p * ((a.log_target ? y : log(y)) - x);
    return {reduced(where(eq(p, 0.0), 0.0, terms), a.reduction)};
  }
  static std::vector<Sample> samples() {
    auto samples = pair_samples({{{"log_target", true}},
                                 {{"reduction", std::string("batchmean")}},
                                 {{"log_target", true}, {"reduction", std::string("none")}}});
    for (Sample& s : samples) s.low = 0.1, s.high = 1.2;
    return samples;
  }
};

// Whether `shape` can be broadcast to `to`, right-aligned.
bool broadcasts(const Shape& shape, const Shape& to) {
  if (shape.size() > to.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1 && shape[i] != to[to.size() - shape.size() + i]) return false;
  return true;
}

struct BinaryCrossEntropy {
  static constexpr std::string_view name = "binary_cross_entropy_with_logits";
  static constexpr std::string_view doc =
      "the mean (sum, each) of -(pos_weight y log s(z) + (1 - y) log(1 - s(z))) weight with s the "
      "sigmoid, by softplus; the weights are broadcast to z";
  static constexpr std::array operands{required("z"), required("y"), optional("weight"),
                                       optional("pos_weight")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReductionAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;

  static Inferred infer(const InferContext& c) {
    for (size_t i = 2; i < c.num_operands(); ++i) {
      if (!c.has(i)) continue;
      DType type = c.type(0).dtype;
      if (c.type(i).dtype != type && c.type(i).dtype != compute_type(type))
        return c.error("{} must have the dtype of {}, or f32", c.describe(i), c.describe(0));
      if (!broadcasts(c.shape(i), c.shape(0)))
        return c.error("{} does not broadcast to {}", c.describe(i), c.describe(0));
    }
    return infer_loss(c, c.attrs<Attrs>().reduction);
  }
  static std::vector<Value> expand(const Op& op) {
    Value z = widen(op.operand(0)), y = widen(op.operand(1));
    auto given = [&](size_t i) { return i < op.operands().size() && op.operand(i); };
    // Both terms are positive and keep their digits, and so do their slopes.
    Value hit = y * softplus(-z), miss = (1.0 - y) * softplus(z);
    if (given(3)) hit = widen(op.operand(3)) * hit;
    Value losses = hit + miss;
    if (given(2)) losses = widen(op.operand(2)) * losses;
    return {reduced(losses, op.attrs<Attrs>().reduction)};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 24.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = pair_samples();
    for (Sample& s : samples) s.absent = {}, s.low = 0.05, s.high = 0.95;
    const TensorType z{DType::F32, {2, 3}};
    auto weighted = [&](TensorType weight, TensorType pos_weight, std::vector<size_t> absent) {
      Sample s = sample_of({z, z, weight, pos_weight}, {{"reduction", std::string("sum")}});
      s.absent = std::move(absent);
      s.low = 0.05, s.high = 0.95;
      samples.push_back(std::move(s));
    };
    weighted({DType::F32, {2, 1}}, {DType::F32, {3}}, {});
    weighted({DType::F32, {}}, {DType::F32, {3}}, {2});
    weighted(z, {DType::F32, {}}, {3});
    return samples;
  }
};

template <typename Attrs>
Value build(std::string_view name, std::vector<Value> operands, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "the prediction", operands[0], loc);
  return build_op(graph, name, std::move(operands), std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value mse(Value x, Value y, std::string reduction, SourceLocation loc) {
  return build("mse", {x, y}, ReductionAttrs{std::move(reduction)}, std::move(loc));
}
Value l1(Value x, Value y, std::string reduction, SourceLocation loc) {
  return build("l1", {x, y}, ReductionAttrs{std::move(reduction)}, std::move(loc));
}
Value huber(Value x, Value y, double delta, std::string reduction, SourceLocation loc) {
  return build("huber", {x, y}, HuberAttrs{delta, std::move(reduction)}, std::move(loc));
}
Value kl_div(Value x, Value y, bool log_target, std::string reduction, SourceLocation loc) {
  return build("kl_div", {x, y}, KlDivAttrs{log_target, std::move(reduction)}, std::move(loc));
}
Value binary_cross_entropy_with_logits(Value z, Value y, BinaryCrossEntropyOptions options,
                                       SourceLocation loc) {
  return build("binary_cross_entropy_with_logits", {z, y, options.weight, options.pos_weight},
               ReductionAttrs{std::move(options.reduction)}, std::move(loc));
}

void register_elementwise_loss(OpRegistry& r) {
  r.add<Mse>();
  r.add<L1>();
  r.add<Huber>();
  r.add<KlDiv>();
  r.add<BinaryCrossEntropy>();
}

}  // namespace sinter
