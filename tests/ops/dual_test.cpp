// Derivatives of every pointwise op against dual and hyper-dual numbers, in f64: its expression is
// evaluated on them, so neither the table's partials nor the ops' stated ones take part.

#include <sinter/ir/dual.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {
namespace {

using Hyper = Dual<Dual<double>>;

// y with erfc(y) = q. Each step of Newton's method on dual numbers makes one more derivative right.
Hyper erfc_inverse(const Hyper& q) {
  const double start[] = {value_of(q), 0, 0};
  Hyper y = intrinsic(Fn::ErfcInv).f64(start[0], 0, 0);
  for (int i = 0; i < 3; ++i) y += (erfc(y) - q) / (1.12837916709551257390 * exp(-(y * y)));
  return y;
}

Hyper remainder_of(const Hyper& a, const Hyper& b) {
  return a - std::floor(value_of(a) / value_of(b)) * b;
}

// The scalar intrinsics, written once more.
Hyper apply(Fn fn, const Hyper& a, const Hyper& b, const Hyper& c) {
  switch (fn) {
    case Fn::Add:
      return a + b;
    case Fn::Sub:
      return a - b;
    case Fn::Mul:
      return a * b;
    case Fn::Div:
      return a / b;
    case Fn::Neg:
      return -a;
    case Fn::Abs:
      return abs(a);
    case Fn::Max:
      return max(a, b);
    case Fn::Min:
      return min(a, b);
    case Fn::Pow:
      return pow(a, b);
    case Fn::Fma:
      return fma(a, b, c);
    case Fn::Rem:
      return remainder_of(a, b);
    case Fn::Exp:
      return exp(a);
    case Fn::Exp2:
      return exp2(a);
    case Fn::Expm1:
      return expm1(a);
    case Fn::Log:
      return log(a);
    case Fn::Log2:
      return log2(a);
    case Fn::Log1p:
      return log1p(a);
    case Fn::Sqrt:
      return sqrt(a);
    case Fn::Rsqrt:
      return 1.0 / sqrt(a);
    case Fn::Inv1p:
      return 1.0 / (1.0 + a);
    case Fn::Cbrt:
      return cbrt(a);
    case Fn::Hypot:
      return hypot(a, b);
    case Fn::Sin:
      return sin(a);
    case Fn::Cos:
      return cos(a);
    case Fn::Tan:
      return tan(a);
    case Fn::Sinh:
      return sinh(a);
    case Fn::Cosh:
      return cosh(a);
    case Fn::Tanh:
      return tanh(a);
    case Fn::Asin:
      return asin(a);
    case Fn::Acos:
      return acos(a);
    case Fn::Atan:
      return atan(a);
    case Fn::Atan2:
      return atan2(a, b);
    case Fn::Erf:
      return erf(a);
    case Fn::Erfc:
      return erfc(a);
    case Fn::ErfcInv:
      return erfc_inverse(a);
    case Fn::NormCdf:
      return 0.5 * erfc(-0.70710678118654752440 * a);
    case Fn::Floor:
      return floor(a);
    case Fn::Ceil:
      return ceil(a);
    case Fn::Round:
      return nearbyint(a);
    case Fn::Trunc:
      return trunc(a);
    case Fn::Eq:
      return a == b;
    case Fn::Ne:
      return a != b;
    case Fn::Lt:
      return a < b;
    case Fn::Le:
      return a <= b;
    case Fn::Gt:
      return a > b;
    case Fn::Ge:
      return a >= b;
    case Fn::And:
      return a != 0 && b != 0;
    case Fn::Or:
      return a != 0 || b != 0;
    case Fn::Not:
      return a == 0;
    case Fn::Select:
      return a != 0 ? b : c;
    default:
      FAIL("no dual form of ", intrinsic(fn).name);
      return {};
  }
}

// `fn` of one element; bools are numbers.
Hyper evaluate_dual(const ScalarFn& fn, std::span<const Hyper> args) {
  std::vector<Hyper> at(fn.nodes.size());
  for (size_t k = 0; k < fn.nodes.size(); ++k) {
    const ExprNode& n = fn.nodes[k];
    auto arg = [&](size_t i) {
      return n.args[i] < 0 ? Hyper() : at[static_cast<size_t>(n.args[i])];
    };
    if (n.fn == Fn::Param)
      at[k] = args[static_cast<size_t>(n.param)];
    else if (n.fn == Fn::Literal)
      at[k] = is_float(n.type) ? n.literal.f : static_cast<double>(n.literal.i);
    else if (n.fn == Fn::Cast)
      at[k] = arg(0);  // from f64 to f64
    else
      at[k] = apply(n.fn, arg(0), arg(1), arg(2));
  }
  return at[static_cast<size_t>(fn.results[0])];
}

// The op with `sample`'s attributes on vectors of f64 (and bool).
Sample widened(Sample sample, int64_t length) {
  for (TensorType& type : sample.operands)
    type = {type.dtype == DType::Bool ? DType::Bool : DType::F64, {length}};
  return sample;
}

bool has_float(const Sample& sample) {
  return std::any_of(sample.operands.begin(), sample.operands.end(),
                     [](const TensorType& t) { return is_float(t.dtype); });
}

void check_close(double given, double right) {
  CAPTURE(given);
  CAPTURE(right);
  CHECK(std::abs(given - right) <= 1e-9 * std::max(1.0, std::abs(right)));
}

// Every first and second derivative of one op at `length` points.
void check_op(const OpDef& def, const Sample& sample, int64_t length) {
  Trial trial = make_trial(def, widened(sample, length), 0);
  Graph& graph = *trial.graph;
  auto inputs = draw(graph, trial.sample, 11);
  std::vector<size_t> floats;
  std::vector<Value> wrt;
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    if (is_float(graph.inputs()[i].dtype())) {
      floats.push_back(i);
      wrt.push_back(graph.inputs()[i]);
    }
  auto first = gradients(graph, sum(trial.op->result()), wrt);
  for (Value g : first) graph.add_output("", g);
  for (Value g : first)
    for (Value h : gradients(graph, sum(g), wrt)) graph.add_output("", h);
  auto results = Reference({.f64 = true}).run_cells(graph, inputs);

  std::vector<DType> types;
  for (const TensorType& type : trial.sample.operands) types.push_back(type.dtype);
  ScalarFn fn = def.scalar(types, trial.op->raw_attrs().get());
  const size_t n = floats.size();
  for (size_t k = 0; k < static_cast<size_t>(length); ++k)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) {
        std::vector<Hyper> args;
        for (size_t a = 0; a < inputs.size(); ++a) {
          const Cell& cell = inputs[a].data[k];
          const bool real = is_float(inputs[a].type.dtype);
          args.push_back({{real ? cell.f : static_cast<double>(cell.i), a == floats[i] ? 1.0 : 0.0},
                          {a == floats[j] ? 1.0 : 0.0, 0.0}});
        }
        Hyper y = evaluate_dual(fn, args);
        CAPTURE(i);
        CAPTURE(j);
        check_close(results[0].data[k].f, y.value.value);
        check_close(results[1 + i].data[k].f, y.value.slope);
        check_close(results[1 + n + i * n + j].data[k].f, y.slope.slope);
      }
}

}  // namespace

TEST_CASE("dual numbers: every pointwise op's first and second derivatives") {
  size_t ops = 0;
  for (const OpDef* def : OpRegistry::get().all()) {
    if (def->kind != OpKind::Pointwise || !def->scalar || !def->vjp) continue;
    std::vector<AttrMap> done;
    for (const Sample& sample : def->samples()) {
      if (!has_float(sample) || sample.result) continue;
      if (std::find(done.begin(), done.end(), sample.attrs) != done.end()) continue;
      done.push_back(sample.attrs);
      CAPTURE(def->name);
      check_op(*def, sample, 12);
    }
    ops += !done.empty();
  }
  CHECK(ops >= 60);
}

TEST_CASE("dual numbers: known values") {
  auto f = [](auto x) { return x * x + 3.0 * x; };
  CHECK(f(Dual<double>{2, 1}).value == 10);
  CHECK(f(Dual<double>{2, 1}).slope == 7);
  auto wave = derivatives([](auto x) { return sin(x * x); }, 1.5);
  CHECK(wave.value == doctest::Approx(0.778073).epsilon(1e-6));
  CHECK(wave.first == doctest::Approx(-1.884521).epsilon(1e-6));
  auto surface = [](auto x, auto y) { return x * x * y + sin(x) + y * y * y; };
  auto g = gradient(surface, std::array{2.0, 3.0});
  auto h = hessian(surface, std::array{2.0, 3.0});
  CHECK(g[0] == doctest::Approx(11.583853).epsilon(1e-7));
  CHECK(g[1] == 31);
  CHECK(h[0][0] == doctest::Approx(5.090703).epsilon(1e-7));
  CHECK(h[0][1] == 4);
  CHECK(h[1][0] == 4);
  CHECK(h[1][1] == 18);
}

TEST_CASE("dual numbers: kinks, and derivatives of third order") {
  auto slope = [](auto f, double x) { return f(Dual<double>{x, 1}).slope; };
  CHECK(slope([](auto x) { return abs(x); }, 0) == 0);
  CHECK(slope([](auto x) { return 3.0 * max(x, 2); }, 2) == 1.5);
  CHECK(slope([](auto x) { return hypot(x, 0); }, 0) == 0);
  CHECK(slope([](auto x) { return pow(x, 2); }, 0) == 0);
  CHECK(slope([](auto x) { return pow(x, 3); }, -2) == 12);
  CHECK(slope([](auto x) { return pow(2, x); }, 3) == doctest::Approx(8 * std::log(2)));
  CHECK(slope([](auto x) { return floor(x) + fmod(x, 2); }, 3.5) == 1);
  // x^4 at 2 in three directions: 24 x.
  Dual<Hyper> x;
  x.value = {{2, 1}, {1, 0}};
  x.slope = 1;
  CHECK((x * x * x * x).slope.slope.slope == 48);
}

}  // namespace sinter::test
