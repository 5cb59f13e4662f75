#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/prefix.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <cmath>

namespace sinter {
namespace {

using detail::sample, detail::widen;

// x moved by `places` along the axis, away from where the running starts; `fill` follows in.
Value shifted(Value x, int64_t axis, int64_t places, bool reverse, int fill) {
  int64_t n = x.dim(axis);
  if (places >= n) return full_like(x, fill);
  auto rank = static_cast<size_t>(x.rank());
  std::vector<int64_t> low(rank, 0), high(rank, 0);
  (reverse ? high : low)[static_cast<size_t>(axis)] = places;
  Value rest = reverse ? slice_axis(x, axis, places, n) : slice_axis(x, axis, 0, n - places);
  return pad(rest, std::move(low), std::move(high), fill);
}

// By doubling: after k steps each element has taken in the 2^k up to it.
Value running(const Op& op, Value (*combine)(Operand, Operand), int identity) {
  const auto& a = op.attrs<PrefixAttrs>();
  Value x = op.operand(0), y = widen(x);
  int64_t axis = *normalize_axis(a.axis.value, x.rank());
  if (a.exclusive) y = shifted(y, axis, 1, a.reverse, identity);
  for (int64_t reach = 1; reach < x.dim(axis); reach *= 2)
    y = combine(y, shifted(y, axis, reach, a.reverse, identity));
  return cast(y, x.dtype());
}

struct Prefix {
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = PrefixAttrs;
  static constexpr auto batch = Batch::shift_axes;

  static Inferred infer(const InferContext& c) {
    if (c.type(0).dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
    int64_t axis = c.attrs<Attrs>().axis.value;
    if (!normalize_axis(axis, c.rank(0)))
      return c.error("axis {} is not an axis of {}", axis, c.describe(0));
    return std::vector{c.type(0)};
  }
  static Cost cost(const Op& op) {
    Value x = op.operand(0);
    int64_t n = x.dim(*normalize_axis(op.attrs<Attrs>().axis.value, x.rank()));
    return Cost::bytes_moved(op, std::ceil(std::log2(static_cast<double>(n) + 1)));
  }
  static std::vector<Sample> samples() {
    const auto axis = [](int64_t i) { return AttrMap{{"axis", i}}; };
    return {sample({"f32[9]"}),
            sample({"f32[9]"}, {{"reverse", true}}),
            sample({"f32[5]"}, {{"exclusive", true}}),
            sample({"f32[3,4]"}, {{"axis", int64_t{0}}, {"reverse", true}, {"exclusive", true}}),
            sample({"f32[2,3,2]"}, axis(1)),
            sample({"f32[2,1,3,2]"}, axis(-2)),
            sample({"f32[2,1]"}, {{"exclusive", true}}),
            sample({"f32[0,3]"}, axis(0)),
            sample({"f32[3,0]"}, axis(0)),
            sample({"bf16[3,6]"}),
            sample({"i32[2,5]"}),
            sample({"u32[4]"}, {{"reverse", true}})};
  }
};

struct CumSum : Prefix {
  static constexpr std::string_view name = "cumsum";
  static constexpr std::string_view doc =
      "The running sum of x (numeric) along an axis, from either end, with or without the element "
      "itself; bf16 and f16 in f32, integers wrap.";
  static constexpr auto jvp = Jvp::linear;
  static std::vector<Value> expand(const Op& op) { return {running(op, &add, 0)}; }
  // What an element was added to lies on its other side.
  static Grads vjp(const VjpContext& c) {
    const auto& a = c.attrs<Attrs>();
    return {cumsum(c.grad(), a.axis.value, !a.reverse, a.exclusive)};
  }
};

struct CumProd : Prefix {
  static constexpr std::string_view name = "cumprod";
  static constexpr std::string_view doc =
      "The running product of x (numeric) along an axis, from either end, with or without the "
      "element itself; its gradient is right with zeros.";
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static std::vector<Value> expand(const Op& op) { return {running(op, &mul, 1)}; }
};

Value prefix(std::string_view name, Value x, PrefixAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "x", x, loc);
  return build_op(graph, name, {x}, attrs, std::move(loc)).result();
}

}  // namespace

Value cumsum(Value x, int64_t axis, bool reverse, bool exclusive, SourceLocation loc) {
  return prefix("cumsum", x, {{axis}, reverse, exclusive}, std::move(loc));
}
Value cumprod(Value x, int64_t axis, bool reverse, bool exclusive, SourceLocation loc) {
  return prefix("cumprod", x, {{axis}, reverse, exclusive}, std::move(loc));
}

void register_prefix(OpRegistry& r) {
  r.add<CumSum>();
  r.add<CumProd>();
}

}  // namespace sinter
