#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/pointwise.h>

#include <algorithm>

namespace sinter {

using detail::build_unary;
using detail::sample;

namespace {

constexpr std::string_view kNoSlope = "a comparison or logical op gives bool";

void register_binary(OpRegistry& r) {
  r.add(pointwise("add", "a + b, elementwise; integers wrap", {"a", "b"}, Domain::Numeric,
                  [](PointwiseArgs x) { return x[0] + x[1]; })
            .build());
  r.add(pointwise("sub", "a - b, elementwise; integers wrap", {"a", "b"}, Domain::Numeric,
                  [](PointwiseArgs x) { return x[0] - x[1]; })
            .build());
  r.add(pointwise("mul", "a * b, elementwise; integers wrap", {"a", "b"}, Domain::Numeric,
                  [](PointwiseArgs x) { return x[0] * x[1]; })
            .bounded(0)
            .bounded(1)
            .build());
  r.add(pointwise("div", "a / b, elementwise", {"a", "b"}, Domain::Float,
                  [](PointwiseArgs x) { return x[0] / x[1]; })
            .sample_range(-2, 2, 0.3)
            .build());
  r.add(pointwise("maximum",
                  "the larger of a and b; NaN if either is, and equal operands share the gradient",
                  {"a", "b"}, Domain::Numeric, [](PointwiseArgs x) { return max(x[0], x[1]); })
            .bounded(0)
            .bounded(1)
            .sample_range(-2, 2, 0.01)
            .build());
  r.add(pointwise("minimum",
                  "the smaller of a and b; NaN if either is, and equal operands share the gradient",
                  {"a", "b"}, Domain::Numeric, [](PointwiseArgs x) { return min(x[0], x[1]); })
            .bounded(0)
            .bounded(1)
            .sample_range(-2, 2, 0.01)
            .build());
  r.add(pointwise("pow", "a to the power b, as C's pow", {"a", "b"}, Domain::Float,
                  [](PointwiseArgs x) { return pow(x[0], x[1]); })
            .flops(8)
            .sample_range(0.3, 2)
            .build());
}

void register_unary(OpRegistry& r) {
  r.add(pointwise("neg", "-x; integers wrap", {"x"}, Domain::Numeric, [](PointwiseArgs x) {
          return -x[0];
        }).build());
  r.add(pointwise("abs", "|x|, slope 0 at 0; integers wrap", {"x"}, Domain::Numeric,
                  [](PointwiseArgs x) { return abs(x[0]); })
            .bounded(0)
            .sample_range(-2, 2, 0.05)
            .build());
  r.add(pointwise("square", "x * x; integers wrap", {"x"}, Domain::Numeric, [](PointwiseArgs x) {
          return x[0] * x[0];
        }).build());
  r.add(pointwise("sqrt", "the square root; NaN below 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return sqrt(x[0]); })
            .flops(2)
            .sample_range(0.1, 3)
            .build());
  r.add(pointwise("rsqrt", "1 / sqrt(x)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return rsqrt(x[0]); })
            .flops(2)
            .sample_range(0.1, 3)
            .build());
  r.add(pointwise("exp", "e to the power x", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return exp(x[0]); })
            .flops(4)
            .build());
  r.add(pointwise("expm1", "exp(x) - 1 without cancellation near 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return expm1(x[0]); })
            .flops(6)
            .build());
  r.add(pointwise("log", "the natural logarithm; NaN below 0, -inf at 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return log(x[0]); })
            .flops(4)
            .sample_range(0.1, 3)
            .build());
  r.add(pointwise("sin", "the sine of x in radians", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return sin(x[0]); })
            .bounded(0)
            .flops(8)
            .build());
  r.add(pointwise("cos", "the cosine of x in radians", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return cos(x[0]); })
            .bounded(0)
            .flops(8)
            .build());
  r.add(pointwise("tanh", "the hyperbolic tangent", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return tanh(x[0]); })
            // 1 - y*y loses all digits where y rounds to 1.
            .partial(0,
                     [](PointwiseArgs x, Expr, const void*) {
                       Expr e = exp(-2.0 * select(x[0] >= 0.0, x[0], -x[0]));
                       Expr d = 1.0 + e;
                       return 4.0 * (e / (d * d));
                     })
            .bounded(0)
            .flops(8)
            .build());
  r.add(pointwise("floor", "the largest whole number not above x; slope 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return floor(x[0]); })
            .sample_range(0.1, 0.9)
            .build());
}

void register_logic(OpRegistry& r) {
  auto compare = [&r](std::string_view name, std::string_view doc, Domain domain, auto body) {
    r.add(pointwise(name, doc, {"a", "b"}, domain, body)
              .gives_bool()
              .not_differentiable(kNoSlope)
              .build());
  };
  compare("eq", "a == b as bool; false for NaN", Domain::Any,
          [](PointwiseArgs x) { return x[0] == x[1]; });
  compare("ne", "a != b as bool; true for NaN", Domain::Any,
          [](PointwiseArgs x) { return x[0] != x[1]; });
  compare("lt", "a < b as bool", Domain::Numeric, [](PointwiseArgs x) { return x[0] < x[1]; });
  compare("le", "a <= b as bool", Domain::Numeric, [](PointwiseArgs x) { return x[0] <= x[1]; });
  compare("gt", "a > b as bool", Domain::Numeric, [](PointwiseArgs x) { return x[0] > x[1]; });
  compare("ge", "a >= b as bool", Domain::Numeric, [](PointwiseArgs x) { return x[0] >= x[1]; });
  compare("logical_and", "a and b, of bools", Domain::Bool,
          [](PointwiseArgs x) { return x[0] && x[1]; });
  compare("logical_or", "a or b, of bools", Domain::Bool,
          [](PointwiseArgs x) { return x[0] || x[1]; });
  r.add(pointwise("logical_not", "not x, of a bool", {"x"}, Domain::Bool,
                  [](PointwiseArgs x) { return !x[0]; })
            .gives_bool()
            .not_differentiable(kNoSlope)
            .build());
}

// ---- Ops with rules of their own

// The side not chosen gets exactly zero, whatever the cotangent is.
Grads where_vjp(const VjpContext& c) {
  Value condition = c.operand(0), dy = c.grad();
  Grads grads(3);
  if (!c.needs(1) && !c.needs(2)) return grads;
  Value zero = full_like(dy, 0.0);
  if (c.needs(1)) grads[1] = where(condition, dy, zero);
  if (c.needs(2)) grads[2] = where(condition, zero, dy);
  return grads;
}

// What a product with a slope says of the slope: nothing where either factor is 0, though the slope
// of the slope be infinite or NaN. By the other factor it is a product with the slope again.
Grads grad_mul_vjp(const VjpContext& c) {
  Grads grads(2);
  if (c.needs(0)) grads[0] = grad_mul(c.grad(), c.operand(1));
  if (c.needs(1)) grads[1] = zero_mul(c.grad(), c.operand(0));
  return grads;
}

Grads zero_mul_vjp(const VjpContext& c) {
  Grads grads(2);
  for (size_t i : {0, 1})
    if (c.needs(i)) grads[i] = zero_mul(c.grad(), c.operand(1 - i));
  return grads;
}

// The sum of two terms, either of which may be null, rounded once to the type.
std::vector<Value> sum_of_terms(Value a, Value b, DType type) {
  if (!a || !b) return {a ? a : b};
  return {cast(add(detail::widen(a), detail::widen(b)), type)};
}

std::vector<Value> grad_mul_jvp(const JvpContext& c) {
  Value ddy = c.tangent(0), dp = c.tangent(1);
  return sum_of_terms(ddy ? grad_mul(ddy, c.operand(1)) : Value(),
                      dp ? zero_mul(c.operand(0), dp) : Value(), c.operand(0).dtype());
}

std::vector<Value> zero_mul_jvp(const JvpContext& c) {
  Value da = c.tangent(0), db = c.tangent(1);
  return sum_of_terms(da ? zero_mul(da, c.operand(1)) : Value(),
                      db ? zero_mul(c.operand(0), db) : Value(), c.operand(0).dtype());
}

Expr clamp_limit(Expr like, double limit) {
  Cell cell = detail::number_cell(Number(limit), like.type());
  return is_float(like.type()) ? like.builder()->literal(like.type(), cell.f)
                               : like.builder()->literal_integer(like.type(), cell.i);
}

std::optional<std::string> check_clamp(const void* attrs) {
  const auto& a = *static_cast<const ClampAttrs*>(attrs);
  if (a.min <= a.max) return std::nullopt;
  return fmt::format("min {} is not at most max {}", to_string(AttrValue(a.min)),
                     to_string(AttrValue(a.max)));
}

void register_choice(OpRegistry& r) {
  r.add(pointwise("where",
                  "a where c (bool) holds, else b; the side not chosen gets a gradient of exactly "
                  "zero",
                  {"c", "a", "b"}, Domain::Any,
                  [](PointwiseArgs x) { return select(x[0], x[1], x[2]); })
            .bool_operand(0)
            .bounded(1)
            .bounded(2)
            .vjp(&where_vjp)
            .jvp(Jvp::linear)
            .build());
  r.add(pointwise_with<ClampAttrs>(
            "clamp", "min(max(x, min), max); NaN survives, slope 1 from min to max, else 0", {"x"},
            Domain::Numeric,
            [](PointwiseArgs x, const ClampAttrs& a) {
              return min(max(x[0], clamp_limit(x[0], a.min)), clamp_limit(x[0], a.max));
            })
            .partial(0,
                     [](PointwiseArgs x, Expr, const void* attrs) {
                       const auto& a = *static_cast<const ClampAttrs*>(attrs);
                       return select(x[0] < a.min || x[0] > a.max, 0.0,
                                     x[0].builder()->literal(x[0].type(), 1.0));
                     })
            .bounded(0)
            .also_check(&check_clamp)
            .flops(2)
            .sample_attrs({{"min", -0.53}, {"max", 0.77}})
            .sample_attrs({{"min", 0.111}})
            .sample_attrs({{"max", 1.013}})
            .build());
  r.add(pointwise("grad_mul", "dy == 0 ? 0 : dy * p: derivatives multiply so", {"dy", "p"},
                  Domain::Float,
                  [](PointwiseArgs x) { return select(x[0] == 0.0, 0.0, x[0] * x[1]); })
            .partial(0, [](PointwiseArgs x, Expr, const void*) { return x[1]; })
            .partial(1, [](PointwiseArgs x, Expr, const void*) { return x[0]; })
            .vjp(&grad_mul_vjp)
            .jvp(&grad_mul_jvp)
            .flops(2)
            .sample_range(-2, 2, 0.05)
            .build());
  r.add(pointwise(
            "zero_mul", "a == 0 or b == 0 ? 0 : a * b: derivatives of derivatives multiply so",
            {"a", "b"}, Domain::Float,
            [](PointwiseArgs x) { return select(x[0] == 0.0 || x[1] == 0.0, 0.0, x[0] * x[1]); })
            .partial(0, [](PointwiseArgs x, Expr, const void*) { return x[1]; })
            .partial(1, [](PointwiseArgs x, Expr, const void*) { return x[0]; })
            .vjp(&zero_mul_vjp)
            .jvp(&zero_mul_jvp)
            .flops(3)
            .sample_range(-2, 2, 0.05)
            .build());
  r.add(pointwise("add_n",
                  "the sum of all operands, left to right in the compute type, rounded once", {"x"},
                  Domain::Numeric,
                  [](PointwiseArgs x) {
                    Expr total = x[0];
                    for (size_t i = 1; i < x.size(); ++i) total = total + x[i];
                    return total;
                  })
            .variadic_last()
            .build());
}

// ---- Conversion

struct Cast {
  static constexpr std::string_view name = "cast";
  static constexpr std::string_view doc =
      "x in the annotated dtype, from any to any; floats round to nearest even, float to integer "
      "truncates and saturates (NaN gives 0), to bool is x != 0.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Pointwise;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = CastAttrs;

  static Inferred infer(const InferContext& c) {
    const TensorType& to = c.attrs<Attrs>().type.type;
    if (to.shape != c.shape(0))
      return c.error("the shape of {} does not fit the result {}", c.describe(0), to.str());
    return std::vector{to};
  }
  static Grads vjp(const VjpContext& c) {
    DType from = c.operand(0).dtype();
    if (!is_float(from) || !is_float(c.result().dtype())) return Grads(1);
    return {cast(c.grad(), from)};
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Sample> samples() {
    Sample large = sample({"f32[7]"}, {}, "i32[7]");
    large.low = -3e9, large.high = 3e9;
    return {sample({"f32[2,3]"}, {}, "bf16[2,3]"), sample({"bf16[4]"}, {}, "f32[4]"),
            sample({"f32[]"}, {}, "f16[]"),        sample({"i32[2,3,4]"}, {}, "f32[2,3,4]"),
            sample({"i64[3]"}, {}, "bf16[3]"),     sample({"bool[1,5]"}, {}, "f32[1,5]"),
            sample({"f32[3]"}, {}, "bool[3]"),     sample({"i64[3]"}, {}, "i32[3]"),
            sample({"f32[0,3]"}, {}, "f16[0,3]"),  large};
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    const Cell* in = x.data.data();
    Cell* out = y.data.data();
    sinter::evaluate(detail::cast_fn(x.type.dtype, y.type.dtype), y.type.elements(), {&in, 1},
                     {&out, 1});
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    BodyNode x = b.operand(0, {at.begin(), at.end()});
    return detail::cast_node(b, x, op.operand(0).dtype(), op.result().dtype());
  }
};

OpDef cast_def() {
  OpDef def = make_def<Cast>();
  def.scalar = [](std::span<const DType> operands, const void* attrs) {
    return detail::cast_fn(operands[0], static_cast<const CastAttrs*>(attrs)->type.type.dtype);
  };
  return def;
}

// Its samples are integers: for floats the derivative is not that of the function, on purpose.
OpDef stop_gradient_def() {
  OpDef def = pointwise("stop_gradient", "x, through which no gradient flows", {"x"}, Domain::Any,
                        [](PointwiseArgs x) { return x[0]; })
                  .flops(0)
                  .vjp([](const VjpContext&) { return Grads(1); })
                  .jvp(Jvp::none)
                  .build();
  def.samples = [] {
    return std::vector{sample({"i32[2,3]"}), sample({"bool[4]"}), sample({"i64[]"})};
  };
  return def;
}

}  // namespace

// ---- Functions

Value add(Operand a, Operand b) {
  return build_pointwise("add", {a, b});
}
Value sub(Operand a, Operand b) {
  return build_pointwise("sub", {a, b});
}
Value mul(Operand a, Operand b) {
  return build_pointwise("mul", {a, b});
}
Value div(Operand a, Operand b) {
  return build_pointwise("div", {a, b});
}
Value maximum(Operand a, Operand b) {
  return build_pointwise("maximum", {a, b});
}
Value minimum(Operand a, Operand b) {
  return build_pointwise("minimum", {a, b});
}
Value pow(Operand a, Operand b) {
  return build_pointwise("pow", {a, b});
}
Value eq(Operand a, Operand b) {
  return build_pointwise("eq", {a, b});
}
Value ne(Operand a, Operand b) {
  return build_pointwise("ne", {a, b});
}
Value lt(Operand a, Operand b) {
  return build_pointwise("lt", {a, b});
}
Value le(Operand a, Operand b) {
  return build_pointwise("le", {a, b});
}
Value gt(Operand a, Operand b) {
  return build_pointwise("gt", {a, b});
}
Value ge(Operand a, Operand b) {
  return build_pointwise("ge", {a, b});
}
Value logical_and(Operand a, Operand b) {
  return build_pointwise("logical_and", {a, b});
}
Value logical_or(Operand a, Operand b) {
  return build_pointwise("logical_or", {a, b});
}
Value where(Operand c, Operand a, Operand b) {
  return build_pointwise("where", {c, a, b});
}
Value grad_mul(Operand dy, Operand p) {
  return build_pointwise("grad_mul", {dy, p});
}
Value zero_mul(Operand a, Operand b) {
  return build_pointwise("zero_mul", {a, b});
}
Value neg(Value x, SourceLocation loc) {
  return build_unary("neg", x, std::move(loc));
}
Value abs(Value x, SourceLocation loc) {
  return build_unary("abs", x, std::move(loc));
}
Value square(Value x, SourceLocation loc) {
  return build_unary("square", x, std::move(loc));
}
Value sqrt(Value x, SourceLocation loc) {
  return build_unary("sqrt", x, std::move(loc));
}
Value rsqrt(Value x, SourceLocation loc) {
  return build_unary("rsqrt", x, std::move(loc));
}
Value exp(Value x, SourceLocation loc) {
  return build_unary("exp", x, std::move(loc));
}
Value expm1(Value x, SourceLocation loc) {
  return build_unary("expm1", x, std::move(loc));
}
Value log(Value x, SourceLocation loc) {
  return build_unary("log", x, std::move(loc));
}
Value sin(Value x, SourceLocation loc) {
  return build_unary("sin", x, std::move(loc));
}
Value cos(Value x, SourceLocation loc) {
  return build_unary("cos", x, std::move(loc));
}
Value tanh(Value x, SourceLocation loc) {
  return build_unary("tanh", x, std::move(loc));
}
Value floor(Value x, SourceLocation loc) {
  return build_unary("floor", x, std::move(loc));
}
Value logical_not(Value x, SourceLocation loc) {
  return build_unary("logical_not", x, std::move(loc));
}
Value stop_gradient(Value x, SourceLocation loc) {
  return build_unary("stop_gradient", x, std::move(loc));
}

Value clamp(Value x, double min, double max, SourceLocation loc) {
  Graph& graph = detail::graph_of("clamp", "x", x, loc);
  return build_op(graph, "clamp", {x}, ClampAttrs{min, max}, std::move(loc)).result();
}

Value add_n(std::vector<Value> terms, SourceLocation loc) {
  if (terms.empty()) throw Error(Diagnostic{loc, "add_n: takes at least 1 operand, got 0"});
  if (terms.size() == 1) return terms[0];
  Graph& graph = detail::graph_of("add_n", "x", terms[0], loc);
  return build_op(graph, "add_n", std::move(terms), NoAttrs{}, std::move(loc)).result();
}

Value cast(Value x, DType dtype, SourceLocation loc) {
  Graph& graph = detail::graph_of("cast", "x", x, loc);
  if (x.dtype() == dtype) return x;
  CastAttrs attrs{{TensorType{dtype, x.shape()}}};
  return build_op(graph, "cast", {x}, std::move(attrs), std::move(loc)).result();
}

void register_arithmetic(OpRegistry& r) {
  register_binary(r);
  register_unary(r);
  register_logic(r);
  register_choice(r);
  r.add(cast_def());
  r.add(stop_gradient_def());
}

}  // namespace sinter
