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
  Expr e = decay(x), r = inv1p(e);
  return select(x >= 0.0, r, e * r);
}
// 1 - sigmoid(x), likewise.
Expr sigmoid_rest(Expr x) {
  Expr e = decay(x), r = inv1p(e);
  return select(x >= 0.0, e * r, r);
}
Expr sigmoid_slope(Expr x) {
  Expr e = decay(x), r = inv1p(e);
  return e * r * r;
}

constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

// The argument of the sigmoid in the tanh form: 0.5 * (1 + tanh(u)) = sigmoid(2u).
Expr gelu_inner(Expr x) {
  return x * (2.0 * kSqrtTwoOverPi + 2.0 * kSqrtTwoOverPi * kCubic * (x * x));
}

Expr gelu_of(Expr x, const GeluAttrs& a) {
  if (a.approximate == "tanh") return x * sigmoid_of(gelu_inner(x));
  return x * norm_cdf(x);
}

Expr gelu_slope(Expr x, const GeluAttrs& a) {
  if (a.approximate == "tanh") {
    // Beyond 12 the sigmoid is 0 or 1 and its slope 0 in every type; unclamped that would be 0
    // times infinity. Both come from one exponential and one reciprocal, which are most of the
    // work.
    Expr c = min(max(x, -12.0), 12.0);
    Expr inner = 2.0 * kSqrtTwoOverPi + 6.0 * kSqrtTwoOverPi * kCubic * (c * c);
    Expr u = gelu_inner(c), e = decay(u), r = inv1p(e), er = e * r;
    return select(u >= 0.0, r, er) + c * (er * r) * inner;
  }
  Expr density = 0.5 * kSqrtTwoOverPi * exp(-0.5 * (x * x));
  return norm_cdf(x) + x * density;
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

// tanh(softplus(x)) is n / (n + 2) with n = exp(x) (exp(x) + 2): from exp(-|x|) on either side.
struct MishParts {
  Expr e, top, bottom;  // exp(-|x|), n and n + 2 up to a common factor
};
MishParts mish_parts(Expr x) {
  Expr e = decay(x);
  Expr up = 1.0 + 2.0 * e, down = e * (e + 2.0);
  return {e, select(x >= 0.0, up, down), select(x >= 0.0, up + 2.0 * (e * e), down + 2.0)};
}
Expr mish_of(Expr x) {
  MishParts m = mish_parts(x);
  return x * (m.top / m.bottom);
}
Expr mish_slope(Expr x) {
  MishParts m = mish_parts(x);
  // sech(softplus(x))^2 sigmoid(x), likewise.
  Expr rest = 4.0 * (m.e * (1.0 + m.e)) * select(x >= 0.0, m.e, one(x));
  return m.top / m.bottom + x * (rest / (m.bottom * m.bottom));
}

// min(max(x, low), high), and its slope: 1 strictly inside.
Expr between(Expr x, double low, double high) {
  return min(max(x, low), high);
}
Expr inside(Expr x, double low, double high) {
  return select(x > low && x < high, one(x), 0.0);
}

constexpr double kSeluAlpha = 1.6732632423543772848;
constexpr double kSeluScale = 1.0507009873554804934;

std::optional<std::string> check_hardtanh(const void* attrs) {
  const auto& a = *static_cast<const HardtanhAttrs*>(attrs);
  if (a.min <= a.max) return std::nullopt;
  return fmt::format("min {} is not at most max {}", to_string(AttrValue(a.min)),
                     to_string(AttrValue(a.max)));
}

void register_smooth(OpRegistry& r) {
  r.add(pointwise("logsigmoid", "log(sigmoid(x)) = -softplus(-x)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return min(x[0], 0.0) - log1p(decay(x[0])); })
            .partial(0, slope([](Expr x) { return sigmoid_rest(x); }))
            .bounded(0)
            .flops(10)
            .build());
  r.add(pointwise("softsign", "x / (1 + |x|) (Turian et al., 2009)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return x[0] / (1.0 + abs(x[0])); })
            .partial(0, slope([](Expr x) {
                       Expr d = 1.0 + abs(x);
                       return 1.0 / (d * d);
                     }))
            .bounded(0)
            .flops(3)
            .build());
  r.add(pointwise("mish", "x * tanh(softplus(x)) (Misra, 2019)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return mish_of(x[0]); })
            .partial(0, slope([](Expr x) { return mish_slope(x); }))
            .bounded(0)
            .flops(12)
            .build());
  r.add(pointwise_with<EluAttrs>("elu", "x above 0, else alpha (exp(x) - 1) (Clevert et al., 2015)",
                                 {"x"}, Domain::Float,
                                 [](PointwiseArgs x, const EluAttrs& a) {
                                   return select(x[0] > 0.0, x[0], a.alpha * expm1(x[0]));
                                 })
            .bounded(0)
            .flops(7)
            .sample_range(-2, 2, 0.05)
            .sample_attrs({})
            .sample_attrs({{"alpha", 0.3}})
            .build());
  r.add(pointwise(
            "selu", "scale * elu(x) with alpha 1.67326 and scale 1.0507 (Klambauer et al., 2017)",
            {"x"}, Domain::Float,
            [](PointwiseArgs x) {
              return select(x[0] > 0.0, kSeluScale * x[0], (kSeluScale * kSeluAlpha) * expm1(x[0]));
            })
            .bounded(0)
            .flops(8)
            .sample_range(-2, 2, 0.05)
            .build());
}

void register_hard(OpRegistry& r) {
  r.add(pointwise_with<LeakyReluAttrs>(
            "leaky_relu", "x above 0, else slope * x (Maas et al., 2013)", {"x"}, Domain::Float,
            [](PointwiseArgs x, const LeakyReluAttrs& a) {
              return select(x[0] > 0.0, x[0], a.slope * x[0]);
            })
            .bounded(0)
            .flops(2)
            .sample_range(-2, 2, 0.05)
            .sample_attrs({})
            .sample_attrs({{"slope", 0.2}})
            .build());
  r.add(pointwise("relu6", "min(max(x, 0), 6); NaN survives, slope 1 strictly between", {"x"},
                  Domain::Float, [](PointwiseArgs x) { return between(x[0], 0, 6); })
            .partial(0, slope([](Expr x) { return inside(x, 0, 6); }))
            .bounded(0)
            .flops(2)
            .sample_range(-8, 8, 0.05)
            .build());
  r.add(pointwise_with<HardtanhAttrs>(
            "hardtanh", "min(max(x, min), max); NaN survives, slope 1 strictly between", {"x"},
            Domain::Float,
            [](PointwiseArgs x, const HardtanhAttrs& a) { return between(x[0], a.min, a.max); })
            .partial(0,
                     [](PointwiseArgs x, Expr, const void* attrs) {
                       const auto& a = *static_cast<const HardtanhAttrs*>(attrs);
                       return inside(x[0], a.min, a.max);
                     })
            .bounded(0)
            .also_check(&check_hardtanh)
            .flops(2)
            .sample_attrs({})
            .sample_attrs({{"min", -0.53}, {"max", 0.77}})
            .build());
  r.add(pointwise("hardsigmoid", "min(max(x + 3, 0), 6) / 6 (Howard et al., 2019)", {"x"},
                  Domain::Float, [](PointwiseArgs x) { return between(x[0] + 3.0, 0, 6) / 6.0; })
            .partial(0, slope([](Expr x) { return inside(x, -3, 3) / 6.0; }))
            .bounded(0)
            .flops(4)
            .sample_range(-5, 5)
            .build());
  r.add(pointwise("hardswish", "x * hardsigmoid(x) (Howard et al., 2019)", {"x"}, Domain::Float,
                  [](PointwiseArgs x) { return x[0] * (between(x[0] + 3.0, 0, 6) / 6.0); })
            .partial(0, slope([](Expr x) {
                       return select(x <= -3.0, 0.0,
                                     select(x >= 3.0, one(x), x * (1.0 / 3.0) + 0.5));
                     }))
            .bounded(0)
            .flops(5)
            .sample_range(-5, 5)
            .build());
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
  register_smooth(r);
  register_hard(r);
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
Value logsigmoid(Value x, SourceLocation loc) {
  return detail::build_unary("logsigmoid", x, std::move(loc));
}
Value softsign(Value x, SourceLocation loc) {
  return detail::build_unary("softsign", x, std::move(loc));
}
Value mish(Value x, SourceLocation loc) {
  return detail::build_unary("mish", x, std::move(loc));
}
Value relu6(Value x, SourceLocation loc) {
  return detail::build_unary("relu6", x, std::move(loc));
}
Value hardsigmoid(Value x, SourceLocation loc) {
  return detail::build_unary("hardsigmoid", x, std::move(loc));
}
Value hardswish(Value x, SourceLocation loc) {
  return detail::build_unary("hardswish", x, std::move(loc));
}
Value selu(Value x, SourceLocation loc) {
  return detail::build_unary("selu", x, std::move(loc));
}
Value hardtanh(Value x, double min, double max, SourceLocation loc) {
  Graph& graph = detail::graph_of("hardtanh", "x", x, loc);
  return build_op(graph, "hardtanh", {x}, HardtanhAttrs{min, max}, std::move(loc)).result();
}
Value leaky_relu(Value x, double slope, SourceLocation loc) {
  Graph& graph = detail::graph_of("leaky_relu", "x", x, loc);
  return build_op(graph, "leaky_relu", {x}, LeakyReluAttrs{slope}, std::move(loc)).result();
}
Value elu(Value x, double alpha, SourceLocation loc) {
  Graph& graph = detail::graph_of("elu", "x", x, loc);
  return build_op(graph, "elu", {x}, EluAttrs{alpha}, std::move(loc)).result();
}
Value gelu(Value x, std::string approximate, SourceLocation loc) {
  Graph& graph = detail::graph_of("gelu", "x", x, loc);
  return build_op(graph, "gelu", {x}, GeluAttrs{std::move(approximate)}, std::move(loc)).result();
}

}  // namespace sinter
