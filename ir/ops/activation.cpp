#include <sinter/ir/ops/activation.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/pointwise.h>

namespace sinter {

namespace {

// exp(-|x|), which cannot overflow. Not by abs: at 0 the slope must be that of one side, so that
// functions which are smooth there keep theirs.
Expr decay(Expr x) {
  return exp(select(x >= 0.0, -x, x));
}
Expr one(Expr like) {
  return like.builder()->literal(like.type(), 1.0);
}

// 1 / (1 + exp(-x)) with all its digits on both sides.
Expr sigmoid_of(Expr x) {
  Expr e = decay(x);
  return select(x >= 0.0, one(x), e) / (1.0 + e);
}
// 1 - sigmoid(x), likewise.
Expr sigmoid_rest(Expr x) {
  Expr e = decay(x);
  return select(x >= 0.0, e, one(x)) / (1.0 + e);
}
Expr sigmoid_slope(Expr x) {
  Expr e = decay(x), d = 1.0 + e;
  return e / (d * d);
}

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

// The argument of the sigmoid in the tanh form: 0.5 * (1 + tanh(u)) = sigmoid(2u).
Expr gelu_inner(Expr x) {
  return 2.0 * kSqrtTwoOverPi * (x + kCubic * (x * x * x));
}

Expr gelu_of(Expr x, const GeluAttrs& a) {
  if (a.approximate == "tanh") return x * sigmoid_of(gelu_inner(x));
  return 0.5 * x * (1.0 + erf(x * kSqrtHalf));
}

Expr gelu_slope(Expr x, const GeluAttrs& a) {
  if (a.approximate == "tanh") {
    // Beyond 12 the second term is 0 in every type; unclamped it would be 0 times infinity.
    Expr c = min(max(x, -12.0), 12.0);
    Expr inner = 2.0 * kSqrtTwoOverPi * (1.0 + 3.0 * kCubic * (c * c));
    return sigmoid_of(gelu_inner(x)) + c * sigmoid_slope(gelu_inner(c)) * inner;
  }
  Expr density = 0.5 * kSqrtTwoOverPi * exp(-0.5 * (x * x));
  return 0.5 * (1.0 + erf(x * kSqrtHalf)) + x * density;
}

std::optional<std::string> check_gelu(const void* attrs) {
  const std::string& form = static_cast<const GeluAttrs*>(attrs)->approximate;
  if (form == "none" || form == "tanh") return std::nullopt;
  return fmt::format("approximate is \"none\" or \"tanh\", not \"{}\"", form);
}

// A stated partial of x alone.
template <typename F>
PointwiseBuilder::Partial slope(F f) {
  return [f](PointwiseArgs x, Expr, const void*) { return f(x[0]); };
}

}  // namespace

void register_activation(OpRegistry& r) {
  r.add(pointwise("relu", "max(x, 0); NaN survives, slope 0 at 0", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return max(x[0], 0.0); })
            .partial(0, slope([](Expr x) { return select(x > 0.0, one(x), 0.0); }))
            .bounded(0)
            .sample_range(-2, 2, 0.05)
            .build());
  r.add(pointwise("sigmoid", "1 / (1 + exp(-x))", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return sigmoid_of(x[0]); })
            .partial(0, slope([](Expr x) { return sigmoid_slope(x); }))
            .bounded(0)
            .flops(8)
            .build());
  r.add(pointwise("silu", "x * sigmoid(x) (Elfwing et al., 2017)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return x[0] * sigmoid_of(x[0]); })
            .partial(0, slope([](Expr x) {
                       Expr s = sigmoid_of(x);
                       return s + x * (s * sigmoid_rest(x));
                     }))
            .bounded(0)
            .flops(9)
            .build());
  r.add(pointwise("softplus", "log(1 + exp(x))", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return max(x[0], 0.0) + log1p(decay(x[0])); })
            .partial(0, slope([](Expr x) { return sigmoid_of(x); }))
            .bounded(0)
            .flops(10)
            .build());
  r.add(pointwise_with<GeluAttrs>(
            "gelu",
            "x * Phi(x) with Phi the normal distribution's (Hendrycks and Gimpel, 2016); "
            "approximate = \"tanh\": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
            {"x"}, Domain::Float,
            [](PointwiseArgs x, const GeluAttrs& a) { return gelu_of(x[0], a); })
            .partial(0,
                     [](PointwiseArgs x, Expr, const void* attrs) {
                       return gelu_slope(x[0], *static_cast<const GeluAttrs*>(attrs));
                     })
            .bounded(0)
            .also_check(&check_gelu)
            .flops(14)
            .sample_attrs({})
            .sample_attrs({{"approximate", std::string("tanh")}})
            .build());
}

Value relu(Value x, SourceLocation loc) {
  return detail::build_unary("relu", x, std::move(loc));
}
Value sigmoid(Value x, SourceLocation loc) {
  return detail::build_unary("sigmoid", x, std::move(loc));
}
Value silu(Value x, SourceLocation loc) {
  return detail::build_unary("silu", x, std::move(loc));
}
Value softplus(Value x, SourceLocation loc) {
  return detail::build_unary("softplus", x, std::move(loc));
}
Value gelu(Value x, std::string approximate, SourceLocation loc) {
  Graph& graph = detail::graph_of("gelu", "x", x, loc);
  return build_op(graph, "gelu", {x}, GeluAttrs{std::move(approximate)}, std::move(loc)).result();
}

}  // namespace sinter
