#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/prefix.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <utility>

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

// S at each place from the one before it in the direction of the run: S = b + a S, starting from 0.
// By doubling: after k steps each element has taken in the 2^k up to it. Where b is 0 nothing comes
// in, whatever a is.
Value affine_run(Value a, Value b, int64_t axis, bool reverse) {
  for (int64_t reach = 1; reach < b.dim(axis); reach *= 2) {
    b = b + grad_mul(shifted(b, axis, reach, reverse, 0), a);
    if (2 * reach < b.dim(axis)) a = a * shifted(a, axis, reach, reverse, 0);
  }
  return b;
}

// The primitive along any axis.
Value along_axis(const Op& op, std::string_view combine) {
  const auto& a = op.attrs<PrefixAttrs>();
  Value x = op.operand(0);
  int64_t axis = *normalize_axis(a.axis.value, x.rank()), last = x.rank() - 1;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < x.rank(); ++i) order.push_back(i);
  std::swap(order[static_cast<size_t>(axis)], order[static_cast<size_t>(last)]);
  if (axis != last) x = permute(x, order);
  RunningAttrs attrs{std::string(combine), a.reverse, a.exclusive};
  Value y = running(x, attrs);
  return axis != last ? permute(y, order) : y;
}

// The gradient of a running product by x, without a division: what comes after an element is a run
// of its own, S = dy + (the next x) S.
Value product_grad(Value x, Value dy, int64_t axis, bool reverse, bool exclusive) {
  DType type = x.dtype();
  x = widen(x);
  dy = widen(dy);
  Value next = shifted(x, axis, 1, !reverse, 0);
  if (exclusive) dy = shifted(dy, axis, 1, !reverse, 0);
  Value before = cumprod(x, axis, reverse, true);
  return cast(grad_mul(affine_run(next, dy, axis, !reverse), before), type);
}

Value product_tangent(Value x, Value dx, int64_t axis, bool reverse, bool exclusive) {
  DType type = x.dtype();
  x = widen(x);
  Value before = cumprod(x, axis, reverse, true);
  Value t = affine_run(x, grad_mul(widen(dx), before), axis, reverse);
  return cast(exclusive ? shifted(t, axis, 1, reverse, 0) : t, type);
}

struct Prefix {
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
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
    return Cost::bytes_moved(op, n > 0 ? 1 : 0);
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
  static std::vector<Value> expand(const Op& op) { return {along_axis(op, "sum")}; }
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
  static std::vector<Value> expand(const Op& op) { return {along_axis(op, "prod")}; }
  static Grads vjp(const VjpContext& c) {
    const auto& a = c.attrs<Attrs>();
    int64_t axis = *normalize_axis(a.axis.value, c.operand(0).rank());
    return {product_grad(c.operand(0), c.grad(), axis, a.reverse, a.exclusive)};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    const auto& a = c.attrs<Attrs>();
    int64_t axis = *normalize_axis(a.axis.value, c.operand(0).rank());
    return {product_tangent(c.operand(0), c.tangent(0), axis, a.reverse, a.exclusive)};
  }
};

// ---- The primitive

template <typename T, typename Combine>
void run_row(const T* x, T* y, int64_t n, const PrefixOrder& order, T start, Combine combine) {
  auto place = [&](int64_t i) { return order.reverse ? n - 1 - i : i; };
  int64_t group = order.group();
  std::vector<T> runs(static_cast<size_t>(order.lanes));
  T tiles = start;
  for (int64_t base = 0; base < n; base += order.lanes * order.vector) {
    // Elements of a lane's run that exist.
    auto end = [&](int64_t lane) { return std::min(base + (lane + 1) * order.vector, n); };
    for (int64_t lane = 0; lane < order.lanes; ++lane) {
      T& run = runs[static_cast<size_t>(lane)];
      run = start;
      for (int64_t i = base + lane * order.vector; i < end(lane); ++i)
        run = combine(run, x[place(i)]);
    }
    for (int64_t first = 0; first < order.lanes; first += group) {
      T before = tiles, total = start;
      for (int64_t lane = first; lane < first + group; ++lane) {
        T run = start;
        for (int64_t i = base + lane * order.vector; i < end(lane); ++i) {
          if (order.exclusive) y[place(i)] = combine(before, run);
          run = combine(run, x[place(i)]);
          if (!order.exclusive) y[place(i)] = combine(before, run);
        }
        before = combine(before, runs[static_cast<size_t>(lane)]);
        total = combine(total, runs[static_cast<size_t>(lane)]);
      }
      tiles = combine(tiles, total);
    }
  }
}

struct Running {
  static constexpr std::string_view name = "running";
  static constexpr std::string_view doc =
      "The running sum or product of x (numeric) along its last axis, in the order of lanes and "
      "vector; bf16 and f16 in f32, rounded once. What cumsum and cumprod become.";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Prefix;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = RunningAttrs;
  static constexpr auto batch = Batch::shift_axes;

  static Inferred infer(const InferContext& c) {
    const auto& a = c.attrs<Attrs>();
    if (c.type(0).dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
    if (c.rank(0) == 0) return c.error("{} has no axis", c.describe(0));
    if (a.combine != "sum" && a.combine != "prod")
      return c.error("combine = \"{}\" is neither \"sum\" nor \"prod\"", a.combine);
    if (a.lanes < 0 || a.lanes > 1024 || (a.lanes & (a.lanes - 1)) != 0)
      return c.error("lanes = {} is not a power of two up to 1024", a.lanes);
    if (a.vector < 0 || a.vector > 16) return c.error("vector = {} is not in 0..16", a.vector);
    return std::vector{c.type(0)};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Sample> samples() {
    auto order = [](int64_t lanes, int64_t vector) {
      return AttrMap{{"lanes", lanes}, {"vector", vector}};
    };
    auto prod = [](AttrMap attrs) {
      attrs["combine"] = std::string("prod");
      return attrs;
    };
    return {sample({"f32[9]"}),
            sample({"f32[2,5]"}, {{"reverse", true}, {"exclusive", true}}),
            sample({"f32[3,37]"}, order(8, 2)),
            sample({"f32[70]"}, order(32, 1)),
            sample({"f32[2,19]"}, prod(order(4, 3))),
            sample({"f32[6]"}, prod({{"exclusive", true}})),
            sample({"f32[2,3,4]"}, prod({{"reverse", true}})),
            sample({"bf16[3,20]"}, order(2, 4)),
            sample({"i32[2,5]"}),
            sample({"f32[0,3]"}),
            sample({"f32[3,0]"})};
  }

  static Grads vjp(const VjpContext& c) {
    const auto& a = c.attrs<Attrs>();
    if (a.combine == "sum") return {cumsum(c.grad(), -1, !a.reverse, a.exclusive)};
    Value x = c.operand(0);
    return {product_grad(x, c.grad(), x.rank() - 1, a.reverse, a.exclusive)};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    const auto& a = c.attrs<Attrs>();
    if (a.combine == "sum") return {cumsum(c.tangent(0), -1, a.reverse, a.exclusive)};
    Value x = c.operand(0);
    return {product_tangent(x, c.tangent(0), x.rank() - 1, a.reverse, a.exclusive)};
  }

  template <typename T, typename From>
  static void evaluate_as(EvaluateContext& c, From from) {
    const auto& a = c.op.attrs<Attrs>();
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    int64_t n = x.type.shape.back(), rows = n > 0 ? x.type.elements() / n : 0;
    bool product = a.combine == "prod";
    std::vector<T> in(static_cast<size_t>(n)), out(static_cast<size_t>(n));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < n; ++i)
        in[static_cast<size_t>(i)] = from(x.data[static_cast<size_t>(row * n + i)]);
      run_row(in.data(), out.data(), n, a.order(), static_cast<T>(product),
              [&](T p, T q) { return static_cast<T>(product ? p * q : p + q); });
      for (int64_t i = 0; i < n; ++i) {
        Cell cell{};
        if constexpr (std::is_floating_point_v<T>)
          cell.f = static_cast<double>(out[static_cast<size_t>(i)]);
        else
          cell.i = static_cast<int64_t>(out[static_cast<size_t>(i)]);
        y.data[static_cast<size_t>(row * n + i)] = canonical(y.type.dtype, cell);
      }
    }
  }
  static void evaluate(EvaluateContext& c) {
    DType type = c.results[0].type.dtype;
    if (type == DType::F64)
      evaluate_as<double>(c, [](const Cell& cell) { return cell.f; });
    else if (is_float(type))
      evaluate_as<float>(c, [](const Cell& cell) { return static_cast<float>(cell.f); });
    else  // integers wrap
      evaluate_as<uint64_t>(c, [](const Cell& cell) { return static_cast<uint64_t>(cell.i); });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const auto& a = op.attrs<Attrs>();
    DType type = op.operand(0).dtype(), compute = compute_type(type);
    auto element = [&](const IndexExpr& r) {
      std::vector<IndexExpr> in(at.begin(), at.end());
      in.back() = r;
      return detail::cast_node(b, b.operand(0, std::move(in)), type, compute);
    };
    BodyNode y = b.prefix(a.combine == "prod" ? Fn::Mul : Fn::Add, op.result().shape().back(),
                          a.order(), at.back(), element);
    return detail::cast_node(b, y, compute, type);
  }
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

Value running(Value x, RunningAttrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of("running", "x", x, loc);
  return build_op(graph, "running", {x}, std::move(attrs), std::move(loc)).result();
}

void register_prefix(OpRegistry& r) {
  r.add<CumSum>();
  r.add<CumProd>();
  r.add<Running>();
}

}  // namespace sinter
