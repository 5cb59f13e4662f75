// Generated host code against the interpreter and against f64.

#include <sinter/runtime/host_compiler.h>

#include <doctest/doctest.h>
#include <sinter/ir/numeric.h>
#include <sinter/tests/codegen/exact_cases.h>
#include <sinter/tests/runtime/have_compiler.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

using namespace sinter;
using namespace sinter::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using sinter::test::have_compiler;

// Compiles `programs` as one unit.
class Unit {
 public:
  explicit Unit(std::vector<LoopProgram> programs) : programs_(std::move(programs)) {
    std::vector<const LoopProgram*> pointers;
    for (const LoopProgram& p : programs_) pointers.push_back(&p);
    const HostSource source[] = {{programs_[0].symbol, print_host(pointers), ""}};
    module_ = HostCompiler().compile(source).at(0);
  }
  std::vector<FaultSlot> run(std::vector<void*> buffers, size_t which = 0) const {
    const LoopProgram& p = programs_[which];
    std::vector<FaultSlot> faults(p.faults.size(), {std::numeric_limits<int64_t>::max(), 0});
    using Function = void(void**, FaultSlot*, const uint32_t*, int64_t, int64_t);
    auto* f = module_->function<Function>(p.symbol);
    // In two parts, as two threads would.
    f(buffers.data(), faults.data(), p.sites.data(), 0, p.grid / 2);
    f(buffers.data(), faults.data(), p.sites.data(), p.grid / 2, p.grid);
    return faults;
  }
  void interpret(std::vector<void*> buffers, size_t which = 0) const {
    std::vector<FaultSlot> faults(programs_[which].faults.size());
    sinter::interpret(programs_[which], buffers, faults);
  }

 private:
  std::vector<LoopProgram> programs_;
  std::shared_ptr<const HostModule> module_;
};

std::vector<float> ramp(int64_t n, float scale) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(scale * static_cast<float>((i * 37 + 11) % 101 - 50));
  return out;
}

// Floats over the whole exponent range, both signs, and the special values.
std::vector<float> all_exponents() {
  std::vector<float> out = {0.0F,  -0.0F,   1.0F,      -1.0F,      kInf, -kInf, kNan,
                            88.8F, -104.0F, 0x1p-149F, -0x1p-149F, kMax, -kMax};
  uint32_t state = 7;
  for (uint32_t e = 0; e < 255; ++e)
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525U + 1013904223U;
      out.push_back(
          std::bit_cast<float>((state & 0x80000000U) | e << 23 | (state >> 8 & 0x7fffffU)));
    }
  // Where exp, tanh, erf and their kin have their slopes.
  for (int i = -2000; i <= 2000; ++i) out.push_back(static_cast<float>(i) * 0.0537F);
  return out;
}

double ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(static_cast<double>(got) - want) / ulp;
}

// Whether both are NaN, or the same infinity, or finite with equal sign.
bool same_kind(float got, float want) {
  if (std::isnan(want)) return std::isnan(got);
  return std::isinf(got) == std::isinf(want) && std::signbit(got) == std::signbit(want);
}

}  // namespace

TEST_CASE("generated host code: vector add, softmax and column sum equal the interpreter") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  LoopProgram add = vector_add("host", DType::F32, 1001);
  LoopProgram half = vector_add("host", DType::BF16, 777);
  half.symbol = "vector_add_bf16";
  const Unit unit({add, half, row_softmax("host", DType::F32, 3, 129), column_sum("host", 50, 45)});
  std::vector<float> x = ramp(1001, 0.3F), y = ramp(1001, 7.7F), z(1001), want(1001);
  unit.run({x.data(), y.data(), z.data()});
  unit.interpret({x.data(), y.data(), want.data()});
  CHECK(z == want);
  std::vector<uint16_t> p, q, r(777), s(777);
  for (size_t i = 0; i < 777; ++i) {
    p.push_back(f32_to_bf16(x[i]));
    q.push_back(f32_to_bf16(y[i]));
  }
  unit.run({p.data(), q.data(), r.data()}, 1);
  unit.interpret({p.data(), q.data(), s.data()}, 1);
  CHECK(r == s);
  std::vector<float> rows = ramp(3 * 129, 0.2F), a(rows.size()), b(rows.size());
  unit.run({rows.data(), a.data()}, 2);
  unit.interpret({rows.data(), b.data()}, 2);
  for (size_t i = 0; i < rows.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(2e-6));
  std::vector<float> columns = ramp(50 * 45, 1.1F), c(45), d(45);
  unit.run({columns.data(), c.data()}, 3);
  unit.interpret({columns.data(), d.data()}, 3);
  CHECK(c == d);
}

TEST_CASE("generated host code: float functions are within 2 ulp of f64 over the whole range") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  const std::vector<float> x = all_exponents();
  const auto n = static_cast<int64_t>(x.size());
  // Every function of one float in the table.
  std::vector<Fn> fns;
  std::vector<LoopProgram> programs;
  for (int f = 0; f <= static_cast<int>(Fn::Select); ++f) {
    const Fn fn = static_cast<Fn>(f);
    const Intrinsic& row = intrinsic(fn);
    if (row.arity != 1 || row.f32 == nullptr || row.gives_bool) continue;
    fns.push_back(fn);
    programs.push_back(
        elementwise("f_" + std::string(row.name), "host", n, {DType::F32}, {DType::F32},
                    [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                      return std::vector<Var>{b.let(fn, v)};
                    }));
  }
  CHECK(fns.size() >= 28);
  const Unit unit(programs);
  for (size_t f = 0; f < fns.size(); ++f) {
    const Intrinsic& row = intrinsic(fns[f]);
    CAPTURE(row.name);
    const bool periodic = fns[f] == Fn::Sin || fns[f] == Fn::Cos || fns[f] == Fn::Tan;
    std::vector<float> in = x, out(x.size());
    unit.run({in.data(), out.data()}, f);
    double worst = 0;
    float where = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float v = x[i];
      if (periodic && std::fabs(v) > 1e6F && !std::isinf(v)) {
        if (fns[f] != Fn::Tan) CHECK(std::fabs(out[i]) <= 1.0F);
        continue;
      }
      const double want = row.f64(static_cast<double>(v), 0, 0);
      const bool kind = same_kind(out[i], static_cast<float>(want));
      if (!kind) {
        CAPTURE(v);
        CAPTURE(out[i]);
        CHECK(kind);
      } else if (std::isfinite(out[i]) && ulps(out[i], want) > worst) {
        worst = ulps(out[i], want);
        where = v;
      }
    }
    CAPTURE(where);
    CHECK(worst <= 2.0);
  }
}

TEST_CASE("generated host code: pow within 2 ulp of f64, ends included") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  std::vector<float> x, y;
  const float ends[] = {0.0F, -0.0F, 1,    -1,  kInf, -kInf, kNan,   0.5F,
                        -0.5, 2,     -2.0, 3.0, -3.0, 1e30F, 1e-40F, 2.5F};
  for (float a : ends)
    for (float b : ends) {
      x.push_back(a);
      y.push_back(b);
    }
  uint32_t state = 3;
  const auto next = [&] { return state = state * 1664525U + 1013904223U; };
  for (int i = 0; i < 20000; ++i) {
    x.push_back(std::bit_cast<float>(next() & 0x7fffffffU));
    y.push_back(static_cast<float>(static_cast<int32_t>(next())) * 0x1p-27F);
  }
  const auto n = static_cast<int64_t>(x.size());
  const Unit unit({elementwise("power", "host", n, {DType::F32, DType::F32}, {DType::F32},
                               [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                                 return std::vector<Var>{b.let(Fn::Pow, v)};
                               })});
  std::vector<float> out(x.size());
  unit.run({x.data(), y.data(), out.data()});
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::pow(static_cast<double>(x[i]), static_cast<double>(y[i]));
    CAPTURE(x[i]);
    CAPTURE(y[i]);
    CAPTURE(out[i]);
    REQUIRE(same_kind(out[i], static_cast<float>(want)));
    if (std::isfinite(out[i])) REQUIRE(ulps(out[i], want) <= 2.0);
  }
}

TEST_CASE("generated host code: constants, conversions, integers, random bits, faults are exact") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  std::vector<ExactCase> trials = exact_cases("host");
  std::vector<LoopProgram> programs;
  for (const ExactCase& t : trials) programs.push_back(t.program);
  const Unit unit(programs);
  for (size_t i = 0; i < trials.size(); ++i) {
    ExactCase& t = trials[i];
    CAPTURE(t.program.symbol);
    std::vector<void*> buffers;
    for (auto& bytes : t.inputs) buffers.push_back(bytes.data());
    std::vector<std::vector<uint8_t>> got;
    for (auto& bytes : t.outputs) got.emplace_back(bytes.size());
    for (auto& bytes : got) buffers.push_back(bytes.data());
    const std::vector<FaultSlot> faults = unit.run(buffers, i);
    CHECK(difference(t, got) == "");
    REQUIRE(faults.size() == t.faults.size());
    for (size_t f = 0; f < faults.size(); ++f) {
      CHECK(faults[f].position == t.faults[f].position);
      CHECK(faults[f].value == t.faults[f].value);
    }
  }
}

TEST_CASE("generated host code: normal numbers follow Box-Muller") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  const LoopProgram p = elementwise(
      "normals", "host", 5000, {}, {DType::F32},
      [&](LoopBuilder& b, const std::vector<Var>&, const IndexExpr& e) {
        const std::vector<Var> args = {b.literal(DType::U32, 5), b.literal(DType::U32, 6),
                                       b.literal(DType::U32, 7), b.literal(DType::I64, 3)};
        return std::vector<Var>{b.random(RandomKind::Normal, 2, args, e)};
      });
  std::vector<float> out(5000);
  Unit({p}).run({out.data()});
  const RandomStream stream{{5, 6}, 7, 2, 3};
  for (int64_t i = 0; i < 5000; ++i) {
    const double want = random_normal<double>(stream, i);
    CHECK(std::fabs(out[static_cast<size_t>(i)] - want) <= 4e-6 * std::max(1.0, std::fabs(want)));
  }
}
