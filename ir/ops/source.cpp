#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>

#include <algorithm>

namespace sinter {

using detail::sample;

Cell full_cell(const FullAttrs& attrs, DType dtype) {
  return detail::number_cell(attrs.value, dtype);
}

namespace {

struct Full {
  static constexpr std::string_view name = "full";
  static constexpr std::string_view doc =
      "A tensor of the annotated type (any dtype) whose every element is `value`; floats are held "
      "exactly and rounded where executed.";
  static constexpr std::array<OperandSpec, 0> operands{};
  static constexpr OpKind kind = OpKind::Source;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = FullAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    DType dtype = a.type.type.dtype;
    if (!detail::fits(a.value, dtype))
      return c.error("value {} does not fit {}", to_string(detail::to_attr(a.value)),
                     to_string(dtype));
    return std::vector{a.type.type};
  }
  static Grads vjp(const VjpContext&) { return {}; }
  static constexpr auto jvp = Jvp::none;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({}, {{"value", 0.5}}, "f32[]"),
            sample({}, {{"value", -1.25}}, "bf16[2,3]"),
            sample({}, {{"value", int64_t{7}}}, "i32[4]"),
            sample({}, {{"value", int64_t{1}}}, "bool[1,2]"),
            sample({}, {{"value", 3.0}}, "f32[0,2]"),
            sample({}, {{"value", int64_t{9007199254740993}}}, "i64[2]")};
  }
  static void evaluate(EvaluateContext& c) {
    ReferenceTensor& y = c.results[0];
    Cell cell = canonical(y.type.dtype, full_cell(c.op.attrs<Attrs>(), y.type.dtype));
    std::fill(y.data.begin(), y.data.end(), cell);
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr>, BodyBuilder& b) {
    DType dtype = op.result().dtype();
    return b.literal(dtype, full_cell(op.attrs<Attrs>(), dtype));
  }
};

struct Iota {
  static constexpr std::string_view name = "iota";
  static constexpr std::string_view doc =
      "The index along `axis` as each element, in the annotated type (integer or float, rank >= "
      "1).";
  static constexpr std::array<OperandSpec, 0> operands{};
  static constexpr OpKind kind = OpKind::Source;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = IotaAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    const TensorType& type = a.type.type;
    if (type.dtype == DType::Bool) return c.error("counts in integers or floats, not bool");
    if (!normalize_axis(a.axis.value, type.rank()))
      return c.error("axis {} is out of range for {}", a.axis.value, type.str());
    return std::vector{type};
  }
  static Grads vjp(const VjpContext&) { return {}; }
  static constexpr auto jvp = Jvp::none;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({}, {}, "i32[5]"),
            sample({}, {{"axis", int64_t{1}}}, "f32[2,3]"),
            sample({}, {{"axis", int64_t{-2}}}, "i64[2,3,4]"),
            sample({}, {{"axis", int64_t{0}}}, "bf16[300]"),
            sample({}, {{"axis", int64_t{1}}}, "u32[1,4]"),
            sample({}, {{"axis", int64_t{0}}}, "f32[0,2]")};
  }
  static void evaluate(EvaluateContext& c) {
    ReferenceTensor& y = c.results[0];
    const Shape& shape = y.type.shape;
    auto axis = static_cast<size_t>(*normalize_axis(c.op.attrs<Attrs>().axis.value, y.type.rank()));
    int64_t stride = row_major_strides(shape)[axis], extent = shape[axis];
    for (size_t i = 0; i < y.data.size(); ++i) {
      Cell cell{};
      cell.i = static_cast<int64_t>(i) / stride % extent;
      y.data[i] = convert(cell, DType::I64, y.type.dtype);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const TensorType& type = op.result().type();
    auto axis = static_cast<size_t>(*normalize_axis(op.attrs<Attrs>().axis.value, type.rank()));
    return b.index(at[axis], type.dtype);
  }
};

}  // namespace

Value full(Graph& graph, TensorType type, Number value, SourceLocation loc) {
  // One spelling per constant: whole numbers for integers, doubles for floats.
  if (is_float(type.dtype))
    value = Number(value.as_double());
  else if (std::holds_alternative<double>(value.value) && detail::fits(value, type.dtype))
    value = Number(detail::number_cell(value, type.dtype).i);
  return build_op(graph, "full", {}, FullAttrs{value, {std::move(type)}}, std::move(loc)).result();
}

Value full_like(Value like, Number value, SourceLocation loc) {
  Graph& graph = detail::graph_of("full", "like", like, loc);
  return full(graph, like.type(), value, std::move(loc));
}

Value iota(Graph& graph, TensorType type, int64_t axis, SourceLocation loc) {
  axis = normalize_axis(axis, type.rank()).value_or(axis);
  return build_op(graph, "iota", {}, IotaAttrs{Axis{axis}, {std::move(type)}}, std::move(loc))
      .result();
}

void register_source(OpRegistry& r) {
  r.add<Full>();
  r.add<Iota>();
}

}  // namespace sinter
