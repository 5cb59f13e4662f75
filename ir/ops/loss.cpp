#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/ir/ops/index.h>
#include <sinter/ir/ops/loss.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <limits>

namespace sinter {
namespace {

using detail::require_float, detail::require_index, detail::sample_of, detail::widen;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct CrossEntropyAttrs {
  int64_t ignore_index = -100;
  std::string reduction = "mean";
  double label_smoothing = 0, z_loss = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("ignore_index", &CrossEntropyAttrs::ignore_index, "targets that count nowhere"),
        field("reduction", &CrossEntropyAttrs::reduction, "mean, sum or none"),
        field("label_smoothing", &CrossEntropyAttrs::label_smoothing,
              "the share of a target spread over all classes"),
        field("z_loss", &CrossEntropyAttrs::z_loss, "times the squared log-sum-exp of each row")};
  }
};
struct NllAttrs {
  int64_t ignore_index = -100;
  std::string reduction = "mean";
  static constexpr auto fields() {
    return std::tuple{field("ignore_index", &NllAttrs::ignore_index, "targets that count nowhere"),
                      field("reduction", &NllAttrs::reduction, "mean, sum or none")};
  }
};

// Refuses operands 0 (logits), 1 (targets) and `weight` (of classes) that do not go together.
std::optional<Diagnostic> check_operands(const InferContext& c, const std::string& reduction,
                                         size_t weight) {
  if (auto refused = require_float(c, 0)) return refused;
  if (auto refused = require_index(c, 1)) return refused;
  if (c.rank(0) == 0) return c.error("{} must have an axis of classes", c.describe(0));
  Shape rows(c.shape(0).begin(), c.shape(0).end() - 1), classes{c.shape(0).back()};
  if (c.shape(1) != rows)
    return c.error("{} must have shape {}, that of {} without its last axis", c.describe(1),
                   to_string(rows), c.describe(0));
  if (c.has(weight)) {
    DType type = c.type(0).dtype;
    if (c.type(weight).dtype != type && c.type(weight).dtype != compute_type(type))
      return c.error("{} must have the dtype of {}, or f32", c.describe(weight), c.describe(0));
    if (c.shape(weight) != classes)
      return c.error("{} must have shape {}, the classes of {}", c.describe(weight),
                     to_string(classes), c.describe(0));
  }
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    return c.error("reduction must be \"mean\", \"sum\" or \"none\", not \"{}\"", reduction);
  return std::nullopt;
}
std::optional<Diagnostic> check_cross_entropy(const InferContext& c, size_t weight) {
  const auto& a = c.attrs<CrossEntropyAttrs>();
  if (!(a.label_smoothing >= 0 && a.label_smoothing <= 1))
    return c.error("label_smoothing {} is not in [0, 1]", to_string(AttrValue(a.label_smoothing)));
  return check_operands(c, a.reduction, weight);
}

TensorType loss_type(const InferContext& c, const std::string& reduction) {
  return {compute_type(c.type(0).dtype), reduction == "none" ? c.shape(1) : Shape{}};
}

// Logits as [N, V] rows with the statistics that loss and gradient share. Everything about a row
// is a reduction along it, or read at one place: no one-hot matrix.
struct Rows {
  Value z;            // [N, V], wide
  Value t;            // [N, 1]
  Value valid;        // [N, 1] bool
  Value is_target;    // [N, V] bool
  Value shift;        // [N, 1]: the row's maximum; 0 where that is -inf
  Value exponential;  // [N, V]
  Value total;        // [N, 1]; 1 for a row of -inf alone
};

// Rows longer than this are folded in parts of kPart: a part fits the registers of a warp, so that
// its maximum and then its exponentials take one pass over memory, not two.
constexpr int64_t kLongRow = 8192, kPart = 1024;

// Sets shift and the sum of exponentials, which it returns.
Value fold_parts(Rows& r) {
  int64_t n = r.z.dim(0), classes = r.z.dim(1), parts = (classes + kPart - 1) / kPart;
  Value x = reshape(pad(r.z, {0, 0}, {0, parts * kPart - classes}, -kInf), {n, parts, kPart});
  Value largest = max(x, {2}, true);
  Value base = where(eq(largest, -kInf), 0.0, largest);
  Value totals = reshape(sum(exp(x - base), {2}, true), {n, parts});
  largest = reshape(largest, {n, parts});
  Value top = max(largest, {1}, true);
  r.shift = where(eq(top, -kInf), 0.0, top);
  return sum(totals * exp(largest - r.shift), {1}, true);
}

Rows make_rows(Value z, Value t, int64_t ignore) {
  int64_t n = num_elements(t.shape()), classes = z.dim(-1);
  Rows r;
  r.z = widen(reshape(z, {n, classes}));
  r.t = reshape(t, {n, 1});
  r.valid = ne(r.t, static_cast<double>(ignore));
  r.is_target = eq(iota(t.graph(), {t.dtype(), {1, classes}}, 1), r.t);
  Value total;
  if (classes > kLongRow) {
    total = fold_parts(r);
    r.exponential = exp(r.z - r.shift);
  } else {
    Value largest = max(r.z, {1}, true);
    r.shift = where(eq(largest, -kInf), 0.0, largest);
    r.exponential = exp(r.z - r.shift);
    total = sum(r.exponential, {1}, true);
  }
  r.total = where(eq(total, 0.0), 1.0, total);
  return r;
}

// The target's logit [N, 1], 0 where there is none. A long row is read at that place alone: to
// compare every place with the target takes as long as its exponential.
Value target_logit(const Rows& r, Value z) {
  if (r.z.dim(1) <= kLongRow) return sum(where(r.is_target, r.z, 0.0), {1}, true);
  Value place = where(r.valid, r.t, 0.0);
  Value logit = widen(take_along_axis(reshape(z, r.z.shape()), place, 1));
  return where(r.valid, logit, 0.0);
}
Value count_valid(Value valid) {
  return sum(cast(valid, DType::I32), {0, 1});
}

// The class weights of a row [1, V] and of the targets [N, 1]; unset without weights.
struct Weights {
  Value classes, target;
};
Weights make_weights(const Op& op, size_t at, Value is_target) {
  if (at >= op.operands().size() || !op.operand(at)) return {};
  Value w = widen(op.operand(at));
  w = reshape(w, {1, w.dim(0)});
  return {w, sum(where(is_target, w, 0.0), {1}, true)};
}
// The divisor of the mean, 1 where that would be 0.
Value mean_divisor(Value valid, const Weights& w, DType type) {
  if (!w.classes) return cast(maximum(count_valid(valid), 1), type);
  Value total = sum(where(valid, w.target, 0.0), {0, 1});
  return where(eq(total, 0.0), 1.0, total);
}
// What is left of the rows' losses [N, 1], those of ignored targets being 0.
Value reduced(Value losses, Value valid, const Weights& w, const std::string& reduction, Value t) {
  if (reduction == "none") return reshape(losses, t.shape());
  Value total = sum(losses, {0, 1});
  return reduction == "sum" ? total : total / mean_divisor(valid, w, total.dtype());
}

// -log softmax of all classes [N, V].
Value surprise(const Rows& r, Value log_total) {
  return log_total - (r.z - r.shift);
}

std::vector<Sample> loss_samples(bool backward, bool extended = true) {
  std::vector<Sample> samples;
  auto add = [&](TensorType z, DType index, AttrMap attrs) {
    Shape rows(z.shape.begin(), z.shape.end() - 1);
    auto found = attrs.find("reduction");
    bool none = found != attrs.end() && std::get<std::string>(found->second) == "none";
    Sample s = sample_of({z, {index, rows}}, std::move(attrs));
    if (backward) s.operands.push_back({compute_type(z.dtype), none ? rows : Shape{}});
    s.integer_high = z.shape.back();
    samples.push_back(std::move(s));
  };
  auto weighted = [&](TensorType z, DType index, AttrMap attrs) {
    add(z, index, std::move(attrs));
    samples.back().operands.push_back({z.dtype, {z.shape.back()}});
    samples.back().low = 0.3;  // the mean divides by weights
  };
  add({DType::F32, {6, 4}}, DType::I32, {});
  add({DType::F32, {6, 3}}, DType::I32, {{"ignore_index", int64_t{1}}});
  add({DType::F32, {2, 3, 5}}, DType::I64, {{"reduction", std::string("sum")}});
  add({DType::F32, {2, 3, 5}}, DType::I32, {{"reduction", std::string("none")}});
  add({DType::F32, {3}}, DType::I32, {});
  add({DType::F32, {0, 3}}, DType::I32, {});
  add({DType::BF16, {4, 6}}, DType::I32, {});
  if (extended) {
    add({DType::F32, {5, 4}}, DType::I32, {{"label_smoothing", 0.1}, {"ignore_index", int64_t{2}}});
    add({DType::F32, {2, 2, 3}}, DType::I32, {{"z_loss", 0.2}});
    weighted({DType::F32, {4, 3}}, DType::I32,
             {{"label_smoothing", 0.3}, {"z_loss", 0.1}, {"ignore_index", int64_t{1}}});
    weighted({DType::F32, {4, 3}}, DType::I64,
             {{"label_smoothing", 0.3}, {"reduction", std::string("none")}});
  }
  weighted({DType::F32, {6, 3}}, DType::I32, {});
  weighted({DType::F32, {2, 2, 1, 4}}, DType::I32, {{"reduction", std::string("sum")}});
  weighted({DType::BF16, {4, 6}}, DType::I32, {});
  return samples;
}

struct CrossEntropyOp {
  static constexpr std::string_view name = "cross_entropy";
  static constexpr std::string_view doc =
      "softmax cross-entropy of logits [..., V] against class indices, with label smoothing, "
      "z-loss "
      "and class weights [V]; loss and valid count. An ignored class stays in the denominator of "
      "the softmax";
  static constexpr std::array operands{required("z"), required("t"), optional("weight")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = CrossEntropyAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_cross_entropy(c, 2)) return *refused;
    return std::vector{loss_type(c, c.attrs<Attrs>().reduction), TensorType{DType::I32, {}}};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value z = op.operand(0);
    Value t =
        check_index(op.operand(1), 0, z.dim(-1), a.ignore_index, "cross_entropy: target", "row");
    Rows r = make_rows(z, t, a.ignore_index);
    Weights w = make_weights(op, 2, r.is_target);
    Value log_total = log(r.total);
    // (logit - shift) first: log(total) may be far below the shift's last place.
    Value loss = log_total - (target_logit(r, z) - r.shift);
    if (w.classes) loss = grad_mul(w.target, loss);
    if (a.label_smoothing != 0) {
      double each = a.label_smoothing / static_cast<double>(z.dim(-1));
      Value all = surprise(r, log_total);
      if (w.classes) all = grad_mul(broadcast_to(w.classes, all.shape()), all);
      loss = loss * (1 - a.label_smoothing) + sum(all, {1}, true) * each;
    }
    if (a.z_loss != 0) loss = loss + square(r.shift + log_total) * a.z_loss;
    loss = where(r.valid, loss, 0.0);
    return {reduced(loss, r.valid, w, a.reduction, t), count_valid(r.valid)};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(c.op().operands().size());
    if (!c.grad(0)) return grads;
    if (c.needs(0)) {
      std::vector<Value> given{c.operand(0), c.operand(1), c.grad(0)};
      if (grads.size() > 2) given.push_back(c.operand(2));
      grads[0] = build_op(c.grad(0).graph(), "cross_entropy_backward", std::move(given),
                          c.attrs<Attrs>(), {})
                     .result();
    }
    if (c.needs(2)) grads[2] = weight_gradient(c);
    return grads;
  }
  // A row's loss is linear in the weights; the mean divides by the weights of the targets.
  static Value weight_gradient(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    Value z = c.operand(0), dloss = c.grad(0);
    Rows r = make_rows(z, c.operand(1), a.ignore_index);
    Weights w = make_weights(c.op(), 2, r.is_target);
    Value all = surprise(r, log(r.total));
    Value share = where(r.is_target, all, 0.0) * (1 - a.label_smoothing);
    if (a.label_smoothing != 0)
      share = share + all * (a.label_smoothing / static_cast<double>(z.dim(-1)));
    if (a.reduction == "mean") {
      dloss = dloss / mean_divisor(r.valid, w, dloss.dtype());
      share = share - where(r.is_target, broadcast_to(c.result(0), all.shape()), 0.0);
    }
    Value row = a.reduction == "none" ? reshape(dloss, r.t.shape()) : dloss;
    Value dw = sum(grad_mul(where(r.valid, row, 0.0), share), {0});
    return cast(dw, c.operand(2).dtype());
  }
  static constexpr auto jvp = Jvp::through_vjp;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 6.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() { return loss_samples(false); }
};

struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  static constexpr std::string_view doc =
      "(softmax(z) - onehot(t)) * dloss (smoothed, weighted, with the slope of the z-loss), "
      "exactly "
      "0 in the rows of ignored targets";
  static constexpr std::array operands{required("z"), required("t"), required("dloss"),
                                       optional("weight")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = CrossEntropyAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_cross_entropy(c, 3)) return *refused;
    TensorType expected = loss_type(c, c.attrs<Attrs>().reduction);
    if (c.type(2) != expected)
      return c.error("{} must have the type {} of the loss", c.describe(2), expected.str());
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value z = op.operand(0), t = op.operand(1), dloss = op.operand(2);
    Rows r = make_rows(z, t, a.ignore_index);
    Weights w = make_weights(op, 3, r.is_target);
    if (a.reduction == "mean") dloss = dloss / mean_divisor(r.valid, w, r.z.dtype());
    Value row = a.reduction == "none" ? reshape(dloss, r.t.shape()) : dloss;
    row = where(r.valid, row, 0.0);
    Value p = r.exponential * (1.0 / r.total);
    Value slope = p - where(r.is_target, full_like(r.z, 1), full_like(r.z, 0));
    if (w.classes) slope = w.target * slope;
    if (a.label_smoothing != 0) {
      double each = a.label_smoothing / static_cast<double>(z.dim(-1));
      Value spread = w.classes ? p * sum(w.classes, {1}, true) - w.classes
                               : p * static_cast<double>(z.dim(-1)) - 1.0;
      slope = slope * (1 - a.label_smoothing) + spread * each;
    }
    if (a.z_loss != 0) slope = slope + p * ((r.shift + log(r.total)) * (2 * a.z_loss));
    // grad_mul: an ignored row is 0 whatever its logits are.
    Value dz = grad_mul(row, slope);
    return {reshape(cast(dz, z.dtype()), z.shape())};
  }
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 8.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() { return loss_samples(true); }
};

struct Nll {
  static constexpr std::string_view name = "nll";
  static constexpr std::string_view doc =
      "-logp[t] of log-probabilities [..., V] and class indices, weighted by class [V] if given; "
      "loss and valid count";
  static constexpr std::array operands{required("logp"), required("t"), optional("weight")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  using Attrs = NllAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = check_operands(c, a.reduction, 2)) return *refused;
    return std::vector{loss_type(c, a.reduction), TensorType{DType::I32, {}}};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value logp = op.operand(0);
    int64_t classes = logp.dim(-1);
    Value t = check_index(op.operand(1), 0, classes, a.ignore_index, "nll: target", "row");
    int64_t n = num_elements(t.shape());
    Value places = reshape(t, {n, 1});
    Value valid = ne(places, static_cast<double>(a.ignore_index));
    Value is_target = eq(iota(t.graph(), {t.dtype(), {1, classes}}, 1), places);
    Weights w = make_weights(op, 2, is_target);
    Value chosen = where(is_target, widen(reshape(logp, {n, classes})), 0.0);
    Value loss = -sum(chosen, {1}, true);
    if (w.classes) loss = grad_mul(w.target, loss);
    loss = where(valid, loss, 0.0);
    return {reduced(loss, valid, w, a.reduction, t), count_valid(valid)};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op);
    cost.flops = 2.0 * static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Sample> samples() { return loss_samples(false, false); }
};

CrossEntropyAttrs attrs_of(const CrossEntropyOptions& o) {
  return {o.ignore_index, o.reduction, o.label_smoothing, o.z_loss};
}

}  // namespace

CrossEntropy cross_entropy(Value z, Value t, CrossEntropyOptions options, SourceLocation loc) {
  Graph& graph = detail::graph_of("cross_entropy", "z", z, loc);
  Op& op =
      build_op(graph, "cross_entropy", {z, t, options.weight}, attrs_of(options), std::move(loc));
  return {op.result(0), op.result(1)};
}
CrossEntropy cross_entropy(Value z, Value t, int64_t ignore_index, std::string reduction,
                           SourceLocation loc) {
  CrossEntropyOptions options;
  options.ignore_index = ignore_index;
  options.reduction = std::move(reduction);
  return cross_entropy(z, t, std::move(options), std::move(loc));
}
Value cross_entropy_backward(Value z, Value t, Value dloss, CrossEntropyOptions options,
                             SourceLocation loc) {
  Graph& graph = detail::graph_of("cross_entropy_backward", "z", z, loc);
  return build_op(graph, "cross_entropy_backward", {z, t, dloss, options.weight}, attrs_of(options),
                  std::move(loc))
      .result();
}
CrossEntropy nll(Value logp, Value t, int64_t ignore_index, std::string reduction, Value weight,
                 SourceLocation loc) {
  Graph& graph = detail::graph_of("nll", "logp", logp, loc);
  Op& op = build_op(graph, "nll", {logp, t, weight}, NllAttrs{ignore_index, std::move(reduction)},
                    std::move(loc));
  return {op.result(0), op.result(1)};
}

void register_loss(OpRegistry& r) {
  r.add<CrossEntropyOp>();
  r.add<CrossEntropyBackward>();
  r.add<Nll>();
  register_elementwise_loss(r);
}

}  // namespace sinter
