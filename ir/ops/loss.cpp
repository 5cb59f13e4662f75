#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/embedding.h>
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
  static constexpr auto fields() {
    return std::tuple{
        field("ignore_index", &CrossEntropyAttrs::ignore_index, "targets that count nowhere"),
        field("reduction", &CrossEntropyAttrs::reduction, "mean, sum or none")};
  }
};

// Refuses operands 0 (logits) and 1 (targets) that do not go together.
std::optional<Diagnostic> check_operands(const InferContext& c) {
  if (auto refused = require_float(c, 0)) return refused;
  if (auto refused = require_index(c, 1)) return refused;
  if (c.rank(0) == 0) return c.error("{} must have an axis of classes", c.describe(0));
  Shape rows(c.shape(0).begin(), c.shape(0).end() - 1);
  if (c.shape(1) != rows)
    return c.error("{} must have shape {}, that of {} without its last axis", c.describe(1),
                   to_string(rows), c.describe(0));
  const std::string& r = c.attrs<CrossEntropyAttrs>().reduction;
  if (r != "mean" && r != "sum" && r != "none")
    return c.error("reduction must be \"mean\", \"sum\" or \"none\", not \"{}\"", r);
  return std::nullopt;
}

TensorType loss_type(const InferContext& c) {
  bool none = c.attrs<CrossEntropyAttrs>().reduction == "none";
  return {compute_type(c.type(0).dtype), none ? c.shape(1) : Shape{}};
}

// Logits as [N, V] rows with the statistics that loss and gradient share. Everything about a row
// is a reduction along it: no one-hot matrix, and nothing is gathered.
struct Rows {
  Value z;            // [N, V], wide
  Value t;            // [N, 1]
  Value valid;        // [N, 1] bool
  Value is_target;    // [N, V] bool
  Value shift;        // [N, 1]: the row's maximum; 0 where that is -inf
  Value exponential;  // [N, V]
  Value total;        // [N, 1]; 1 for a row of -inf alone
};
Rows make_rows(Value z, Value t, int64_t ignore) {
  int64_t n = num_elements(t.shape()), classes = z.dim(-1);
  Rows r;
  r.z = widen(reshape(z, {n, classes}));
  r.t = reshape(t, {n, 1});
  r.valid = ne(r.t, static_cast<double>(ignore));
  r.is_target = eq(iota(t.graph(), {t.dtype(), {1, classes}}, 1), r.t);
  Value largest = max(r.z, {1}, true);
  r.shift = where(eq(largest, -kInf), 0.0, largest);
  r.exponential = exp(r.z - r.shift);
  Value total = sum(r.exponential, {1}, true);
  r.total = where(eq(total, 0.0), 1.0, total);
  return r;
}
Value count_valid(const Rows& r) {
  return sum(cast(r.valid, DType::I32), {0, 1});
}
// The divisor of the mean, 1 when no target is valid.
Value mean_divisor(const Rows& r) {
  return cast(maximum(count_valid(r), 1), r.z.dtype());
}

std::vector<Sample> loss_samples(bool backward) {
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
  add({DType::F32, {6, 4}}, DType::I32, {});
  add({DType::F32, {6, 3}}, DType::I32, {{"ignore_index", int64_t{1}}});
  add({DType::F32, {2, 3, 5}}, DType::I64, {{"reduction", std::string("sum")}});
  add({DType::F32, {2, 3, 5}}, DType::I32, {{"reduction", std::string("none")}});
  add({DType::F32, {3}}, DType::I32, {});
  add({DType::F32, {0, 3}}, DType::I32, {});
  add({DType::BF16, {4, 6}}, DType::I32, {});
  return samples;
}

struct CrossEntropyOp {
  static constexpr std::string_view name = "cross_entropy";
  static constexpr std::string_view doc =
      "softmax cross-entropy of logits [..., V] against class indices; loss and valid count";
  static constexpr std::array operands{required("z"), required("t")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = CrossEntropyAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_operands(c)) return *refused;
    return std::vector{loss_type(c), TensorType{DType::I32, {}}};
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<CrossEntropyAttrs>();
    Value z = op.operand(0);
    Value t =
        check_index(op.operand(1), 0, z.dim(-1), a.ignore_index, "cross_entropy: target", "row");
    Rows r = make_rows(z, t, a.ignore_index);
    Value logit = sum(where(r.is_target, r.z, 0.0), {1}, true);
    // (logit - shift) first: log(total) may be far below the shift's last place.
    Value loss = where(r.valid, log(r.total) - (logit - r.shift), 0.0);
    Value count = count_valid(r);
    if (a.reduction == "none") return {reshape(loss, t.shape()), count};
    Value total = sum(loss, {0, 1});
    if (a.reduction == "sum") return {total, count};
    return {total / cast(maximum(count, 1), total.dtype()), count};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    const auto& a = c.attrs<CrossEntropyAttrs>();
    if (c.grad(0) && c.needs(0))
      grads[0] = cross_entropy_backward(c.operand(0), c.operand(1), c.grad(0), a.ignore_index,
                                        a.reduction);
    return grads;
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
      "(softmax(z) - onehot(t)) * dloss, exactly 0 in the rows of ignored targets";
  static constexpr std::array operands{required("z"), required("t"), required("dloss")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  using Attrs = CrossEntropyAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = check_operands(c)) return *refused;
    TensorType expected = loss_type(c);
    if (c.type(2) != expected)
      return c.error("{} must have the type {} of the loss", c.describe(2), expected.str());
    return std::vector{c.type(0)};
  }
  static std::vector<Value> expand(const Op& op) {
    const auto& a = op.attrs<CrossEntropyAttrs>();
    Value z = op.operand(0), t = op.operand(1), dloss = op.operand(2);
    Rows r = make_rows(z, t, a.ignore_index);
    if (a.reduction == "mean") dloss = dloss / mean_divisor(r);
    Value weight = a.reduction == "none" ? reshape(dloss, r.t.shape()) : dloss;
    weight = where(r.valid, weight, 0.0);
    Value p = r.exponential / r.total;
    // grad_mul: an ignored row is 0 whatever its logits are.
    Value dz = grad_mul(weight, p - where(r.is_target, full_like(r.z, 1), full_like(r.z, 0)));
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

}  // namespace

CrossEntropy cross_entropy(Value z, Value t, int64_t ignore_index, std::string reduction,
                           SourceLocation loc) {
  Graph& graph = detail::graph_of("cross_entropy", "z", z, loc);
  Op& op = build_op(graph, "cross_entropy", {z, t},
                    CrossEntropyAttrs{ignore_index, std::move(reduction)}, std::move(loc));
  return {op.result(0), op.result(1)};
}
Value cross_entropy_backward(Value z, Value t, Value dloss, int64_t ignore_index,
                             std::string reduction, SourceLocation loc) {
  Graph& graph = detail::graph_of("cross_entropy_backward", "z", z, loc);
  return build_op(graph, "cross_entropy_backward", {z, t, dloss},
                  CrossEntropyAttrs{ignore_index, std::move(reduction)}, std::move(loc))
      .result();
}

void register_loss(OpRegistry& r) {
  r.add<CrossEntropyOp>();
  r.add<CrossEntropyBackward>();
}

}  // namespace sinter
