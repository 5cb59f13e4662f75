#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/axes.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/reduce_composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/statistics.h>
#include <sinter/ir/ops/view.h>

#include <cmath>
#include <limits>

namespace sinter {
namespace {

using detail::AxesAttrs, detail::check_axes, detail::count_over, detail::is_narrow,
    detail::require_float, detail::sample, detail::widen;
using List = std::vector<int64_t>;

struct VarianceAttrs {
  Axes axes;
  bool keep = false;
  int64_t correction = 1;
  static constexpr auto fields() {
    return std::tuple{
        field("axes", &VarianceAttrs::axes, "the axes reduced; [] means all"),
        field("keep", &VarianceAttrs::keep, "reduced axes stay, with extent 1"),
        field("correction", &VarianceAttrs::correction, "what is taken off the count")};
  }
};

template <typename Attrs>
List axes_in(const Op& op) {
  return *detail::axes_of(op.attrs<Attrs>().axes.value, op.operand(0).rank());
}

template <typename Attrs>
Inferred infer_to(const InferContext& c, DType result) {
  const auto& a = c.attrs<Attrs>();
  if (auto refused = check_axes(c, a.axes.value)) return *refused;
  return std::vector{TensorType{
      result, reduced_shape(c.shape(0), *detail::axes_of(a.axes.value, c.rank(0)), a.keep)}};
}

Cost reduction_cost(const Op& op, double flops_per_element) {
  Cost cost = Cost::bytes_moved(op);
  cost.flops = flops_per_element * static_cast<double>(op.operand(0).type().elements());
  return cost;
}

// ---- argmax, argmin

template <bool kLargest>
struct ArgExtremum {
  static constexpr std::string_view name = kLargest ? "argmax" : "argmin";
  static constexpr std::string_view doc =
      kLargest
          ? "The place of the largest element of x (numeric) over `axes` as i32, row-major among "
            "several axes: the first of equal ones, and of NaN before any number."
          : "The place of the smallest element of x (numeric) over `axes` as i32, row-major among "
            "several axes: the first of equal ones, and of NaN before any number.";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AxesAttrs;
  static constexpr NonDifferentiable vjp{"a place is an integer"};
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::shift_reduced_axes;

  static Inferred infer(const InferContext& c) {
    if (c.type(0).dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
    const auto& a = c.attrs<Attrs>();
    if (auto refused = check_axes(c, a.axes.value)) return *refused;
    int64_t count = count_over(c.shape(0), *detail::axes_of(a.axes.value, c.rank(0)));
    if (count == 0) return c.error("there is nothing to choose from in {}", c.describe(0));
    if (count > INT32_MAX) return c.error("{} places of {} do not fit i32", count, c.describe(0));
    return infer_to<Attrs>(c, DType::I32);
  }
  static Cost cost(const Op& op) { return reduction_cost(op, 4); }
  static std::vector<Sample> samples() {
    return {sample({"f32[5]"}),
            sample({"f32[3,4]"}, {{"axes", List{1}}}),
            sample({"f32[3,4]"}, {{"axes", List{0}}, {"keep", true}}),
            sample({"f32[2,3,4]"}, {{"axes", List{-1, 0}}}),
            sample({"f32[2,1,3,2]"}, {{"axes", List{1}}}),
            sample({"f32[0,3]"}, {{"axes", List{1}}}),
            sample({"f32[]"}),
            sample({"bf16[3,6]"}, {{"axes", List{1}}}),
            sample({"i32[2,9]"}, {{"axes", List{1}}})};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    List axes = axes_in<Attrs>(op);
    Value best = kLargest ? max(x, axes, true) : min(x, axes, true);
    Value chosen = eq(x, best);
    if (is_float(x.dtype())) chosen = logical_or(chosen, ne(x, x));  // then the best is NaN too
    TensorType places{DType::I32, x.shape()};
    Value place;
    int64_t stride = 1;
    for (size_t k = axes.size(); k-- > 0;) {
      Value along = iota(op.graph(), places, axes[k]);
      if (stride != 1) along = along * static_cast<double>(stride);
      place = place ? place + along : along;
      stride *= x.dim(axes[k]);
    }
    if (!place) place = full(op.graph(), places, 0);
    Value none = full_like(place, INT32_MAX);
    return {min(where(chosen, place, none), axes, op.attrs<Attrs>().keep)};
  }
};

// ---- var, std

struct Spread {
  using Attrs = VarianceAttrs;
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::shift_reduced_axes;

  static Inferred infer(const InferContext& c) {
    if (auto refused = require_float(c, 0)) return *refused;
    return infer_to<Attrs>(c, c.type(0).dtype);
  }
  static Cost cost(const Op& op) { return reduction_cost(op, 5); }
  static std::vector<Sample> samples() {
    return {sample({"f32[5]"}),
            sample({"f32[3,4]"}, {{"axes", List{1}}, {"keep", true}}),
            sample({"f32[2,3,4]"}, {{"axes", List{0, 2}}, {"correction", int64_t{0}}}),
            sample({"f32[2,3,2,2]"}, {{"axes", List{-1, 1}}}),
            sample({"f32[2,3]"}),
            sample({"f32[0,3]"}, {{"axes", List{1}}}),
            sample({"bf16[4,6]"}, {{"axes", List{1}}})};
  }
  // The distances from the mean.
  static Value centered(Value wide, const List& axes) { return wide - mean(wide, axes, true); }
  // NaN where there are not enough elements, so that every derivative is NaN as well.
  static double divisor(const Op& op) {
    int64_t count = count_over(op.operand(0).shape(), axes_in<Attrs>(op));
    int64_t free = count - op.attrs<Attrs>().correction;
    return free > 0 ? static_cast<double>(free) : std::numeric_limits<double>::quiet_NaN();
  }
};

struct Variance : Spread {
  static constexpr std::string_view name = "var";
  static constexpr std::string_view doc =
      "The sum of squared distances of x from its mean over `axes`, divided by count - correction; "
      "in two passes. NaN where that is not above 0.";
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    List axes = axes_in<Attrs>(op);
    Value total = sum(square(centered(widen(x), axes)), axes, op.attrs<Attrs>().keep);
    return {cast(total / divisor(op), x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    List axes = axes_in<Attrs>(c.op());
    // grad_mul: a cotangent of 0 asks nothing of a variance that is NaN.
    Value share = grad_mul(widen(c.grad()), 2.0 / divisor(c.op()));
    Value slope = centered(widen(x), axes);
    return {cast(grad_mul(unreduce(share, x.shape(), axes), slope), x.dtype())};
  }
};

struct StandardDeviation : Spread {
  static constexpr std::string_view name = "std";
  static constexpr std::string_view doc =
      "The square root of `var`, of the scale of x throughout, NaN where it is; its gradient at 0 "
      "is 0.";
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    List axes = axes_in<Attrs>(op);
    Value length = norm(centered(widen(x), axes), axes, op.attrs<Attrs>().keep);
    return {cast(length / std::sqrt(divisor(op)), x.dtype())};
  }
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0);
    const auto& a = c.attrs<Attrs>();
    List axes = axes_in<Attrs>(c.op());
    // A deviation rounded to 8 bits would tilt the gradient.
    Value y = is_narrow(x) ? std_dev(widen(x), axes, a.keep, a.correction) : c.result();
    Value safe = where(eq(y, 0.0), 1.0, y) * divisor(c.op());
    Value direction = centered(widen(x), axes) / unreduce(safe, x.shape(), axes);
    return {cast(grad_mul(unreduce(widen(c.grad()), x.shape(), axes), direction), x.dtype())};
  }
};

// ---- any, all

template <bool kAll>
struct Truth {
  static constexpr std::string_view name = kAll ? "all" : "any";
  static constexpr std::string_view doc =
      kAll ? "Whether every element of x (bool) over `axes` is true; true for no elements."
           : "Whether some element of x (bool) over `axes` is true; false for no elements.";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = AxesAttrs;
  static constexpr NonDifferentiable vjp{"bools have no derivative"};
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::shift_reduced_axes;

  static Inferred infer(const InferContext& c) {
    if (c.type(0).dtype != DType::Bool) return c.error("{} must be bool", c.describe(0));
    return infer_to<Attrs>(c, DType::Bool);
  }
  static Cost cost(const Op& op) { return reduction_cost(op, 1); }
  static std::vector<Sample> samples() {
    return {sample({"bool[3]"}),
            sample({"bool[2,3]"}, {{"axes", List{1}}}),
            sample({"bool[4,2]"}, {{"axes", List{0}}, {"keep", true}}),
            sample({"bool[2,3,2]"}, {{"axes", List{0, -1}}}),
            sample({"bool[2,1,2,2]"}, {{"axes", List{1, 2}}}),
            sample({"bool[]"}),
            sample({"bool[0,3]"}, {{"axes", List{0}}})};
  }
  static std::vector<Value> expand(const Op& op) {
    Value x = cast(op.operand(0), DType::I32);
    List axes = axes_in<Attrs>(op);
    bool keep = op.attrs<Attrs>().keep;
    // The extremum of nothing is the end of the range, and that is right for both.
    return {gt(kAll ? min(x, axes, keep) : max(x, axes, keep), 0)};
  }
};

template <typename Attrs>
Value build(std::string_view name, Value x, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(name, "x", x, loc);
  return build_op(graph, name, {x}, std::move(attrs), std::move(loc)).result();
}

}  // namespace

namespace detail {

std::optional<List> axes_of(const List& axes, int64_t rank) {
  auto sorted = normalize_axes(axes, rank);
  if (sorted && sorted->empty())
    for (int64_t i = 0; i < rank; ++i) sorted->push_back(i);
  return sorted;
}

std::optional<Diagnostic> check_axes(const InferContext& c, const List& axes) {
  if (axes_of(axes, c.rank(0))) return std::nullopt;
  return c.error("axes {} do not name distinct axes of {}", to_string(AttrValue(axes)),
                 c.describe(0));
}

}  // namespace detail

Value argmax(Value x, List axes, bool keep, SourceLocation loc) {
  return build("argmax", x, AxesAttrs{{std::move(axes)}, keep}, std::move(loc));
}
Value argmin(Value x, List axes, bool keep, SourceLocation loc) {
  return build("argmin", x, AxesAttrs{{std::move(axes)}, keep}, std::move(loc));
}
Value var(Value x, List axes, bool keep, int64_t correction, SourceLocation loc) {
  return build("var", x, VarianceAttrs{{std::move(axes)}, keep, correction}, std::move(loc));
}
Value std_dev(Value x, List axes, bool keep, int64_t correction, SourceLocation loc) {
  return build("std", x, VarianceAttrs{{std::move(axes)}, keep, correction}, std::move(loc));
}
Value any(Value x, List axes, bool keep, SourceLocation loc) {
  return build("any", x, AxesAttrs{{std::move(axes)}, keep}, std::move(loc));
}
Value all(Value x, List axes, bool keep, SourceLocation loc) {
  return build("all", x, AxesAttrs{{std::move(axes)}, keep}, std::move(loc));
}

void register_statistics(OpRegistry& r) {
  r.add<ArgExtremum<true>>();
  r.add<ArgExtremum<false>>();
  r.add<Variance>();
  r.add<StandardDeviation>();
  r.add<Truth<false>>();
  r.add<Truth<true>>();
}

}  // namespace sinter
