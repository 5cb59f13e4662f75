#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <cmath>

namespace sinter {
namespace {

using detail::require_float, detail::require_index, detail::sample_of, detail::widen;

struct Rope {
  static constexpr std::string_view name = "rope";
  static constexpr std::string_view doc =
      "rotary embedding of rows [..., S, D]; position 0 is the identity in bits";
  static constexpr std::array operands{required("x"), required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
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
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    if (!c.only(0)) return Batched::through_expand();
    return Batched::all({rebuild(c.op(), c.graph(), {c.operand(0), c.operand(1)}).result()});
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

}  // namespace

Value rope(Value x, Value offset, RopeAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("rope", "x", x, loc);
  return build_op(graph, "rope", {x, offset}, std::move(attrs), std::move(loc)).result();
}

void register_rope(OpRegistry& r) {
  r.add<Rope>();
}

}  // namespace sinter
