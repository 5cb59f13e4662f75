#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/runtime/reference.h>
#include <sinter/sinter.h>
#include <sinter/tests/support.h>

#include <cmath>

using namespace sinter;

namespace {

using Doubles = std::vector<double>;
TensorType f64(Shape shape) {
  return {DType::F64, std::move(shape)};
}

// Inputs by name, outputs by name, in f64.
std::map<std::string, Doubles> run(const Graph& graph, const std::map<std::string, Doubles>& in) {
  verify(graph.module());
  auto read = parse_module(print(graph.module()), "test.sir");
  CHECK(print(*read) == print(graph.module()));
  std::vector<Tensor> inputs;
  for (Value v : graph.inputs()) inputs.push_back(Tensor::from_doubles(v.type(), in.at(v.name())));
  std::vector<Tensor> out = Reference({true}).run(graph, inputs);
  std::map<std::string, Doubles> named;
  for (size_t i = 0; i < out.size(); ++i) named[graph.outputs()[i].name] = out[i].to_doubles();
  return named;
}

void check_near(const Doubles& got, const Doubles& right) {
  REQUIRE(got.size() == right.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - right[i]) <= 1e-12 * std::max(1.0, std::abs(right[i])));
  }
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.diagnostic().message;
  }
  return "no error";
}

Value at(Value v, int64_t i) {
  return reshape(slice_axis(v, 0, i, i + 1), {});
}

// x² y + sin x + y³
Value surface(Value v) {
  Value x = at(v, 0), y = at(v, 1);
  return x * x * y + sin(x) + y * y * y;
}

}  // namespace

TEST_CASE("grad: of functions of one or several values, and of values that are there") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({2})), y = g.input("y", f64({2}));
  g.output("one", grad([](Value v) { return sum(sin(v)); }, x));
  std::vector<Value> two = grad([](Value a, Value b) { return sum(a * b * b); }, {x, y});
  g.output("dx", two[0]);
  g.output("dy", two[1]);
  auto list = [](const std::vector<Value>& v) { return sum(v[0] * v[1]); };
  g.output("listed", grad(list, std::vector<Value>{x, y})[1]);
  Value loss = sum(x * exp(y));
  g.output("there", grad(loss, y));
  g.output("unused", grad(sum(x), y));
  auto out = run(g.graph(), {{"x", {1, 2}}, {"y", {3, -1}}});
  check_near(out["one"], {std::cos(1), std::cos(2)});
  check_near(out["dx"], {9, 1});
  check_near(out["dy"], {6, -4});
  check_near(out["listed"], {1, 2});
  check_near(out["there"], {std::exp(3), 2 * std::exp(-1)});
  check_near(out["unused"], {0, 0});
}

TEST_CASE("grad: what a function captures is constant, even where it depends on the argument") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({})), twice = x * 2.0;
  g.output("dx", grad([&](Value v) { return v * twice; }, x));
  g.output("stopped", grad([&](Value v) { return v * stop_gradient(v); }, x));
  auto out = run(g.graph(), {{"x", {3}}});
  check_near(out["dx"], {6});
  check_near(out["stopped"], {3});
}

TEST_CASE("value_and_grad, vjp and jvp: values beside their derivatives") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({2})), w = g.input("w", f64({2}));
  ValueAndGrad v = value_and_grad([](Value a) { return sum(square(a)); }, x);
  g.output("value", v.value);
  g.output("grad", v.grad());
  auto two = [](Value a, Value b) { return std::vector<Value>{a * b, sum(a)}; };
  ValuesAndGrads back = vjp(two, {x, w}, {w, full(g.graph(), f64({}), 10)});
  g.output("product", back.values[0]);
  g.output("bx", back.grads[0]);
  g.output("bw", back.grads[1]);
  ValuesAndTangents along = jvp(two, {x, w}, {w, {}});
  g.output("tp", along.tangents[0]);
  g.output("ts", along.tangents[1]);
  auto out = run(g.graph(), {{"x", {1, 2}}, {"w", {5, 7}}});
  check_near(out["value"], {5});
  check_near(out["grad"], {2, 4});
  check_near(out["product"], {5, 14});
  check_near(out["bx"], {35, 59});
  check_near(out["bw"], {5, 14});
  check_near(out["tp"], {25, 49});
  check_near(out["ts"], {12});
}

TEST_CASE("jacobian: either mode, the axes of y and then those of x") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({3})), a = g.input("a", f64({2, 3}));
  auto f = [&](Value v) { return sin(reshape(matmul(a, reshape(v, {3, 1})), {2, 1})); };
  for (auto [name, mode] :
       {std::pair("forward", JacobianMode::Forward), std::pair("reverse", JacobianMode::Reverse),
        std::pair("auto", JacobianMode::Auto)}) {
    Value j = jacobian(f, x, mode);
    CHECK(j.shape() == Shape{2, 1, 3});
    g.output(name, j);
  }
  Doubles xs{0.1, -0.2, 0.3}, as{1, 2, 3, -1, 0.5, 2}, right;
  for (size_t i = 0; i < 2; ++i) {
    double s = 0;
    for (size_t k = 0; k < 3; ++k) s += as[3 * i + k] * xs[k];
    for (size_t k = 0; k < 3; ++k) right.push_back(std::cos(s) * as[3 * i + k]);
  }
  auto out = run(g.graph(), {{"x", xs}, {"a", as}});
  for (const char* name : {"forward", "reverse", "auto"}) check_near(out[name], right);
}

TEST_CASE("hessian and hvp: x² y + sin x + y³ at (2, 3)") {
  Model model;
  Scope g = model.graph("main");
  Value z = g.input("z", f64({2})), v = g.input("v", f64({2}));
  g.output("gradient", grad(surface, z));
  g.output("hessian", hessian(surface, z));
  g.output("hvp", hvp(surface, z, v));
  // Forward over reverse, reverse over reverse and forward over forward say the same.
  g.output("forward_reverse",
           jacobian([](Value u) { return grad(surface, u); }, z, JacobianMode::Forward));
  g.output("reverse_reverse",
           jacobian([](Value u) { return grad(surface, u); }, z, JacobianMode::Reverse));
  auto slope = [&](Value u) { return jvp(surface, {u}, {v}).tangents[0]; };
  g.output("forward_forward", jvp(slope, {z}, {v}).tangents[0]);
  auto out = run(g.graph(), {{"z", {2, 3}}, {"v", {1, 10}}});
  double xx = 6 - std::sin(2);
  check_near(out["gradient"], {12 + std::cos(2), 31});
  for (const char* name : {"hessian", "forward_reverse", "reverse_reverse"})
    check_near(out[name], {xx, 4, 4, 18});
  check_near(out["hvp"], {xx + 40, 184});
  check_near(out["forward_forward"], {xx + 80 + 1800});
}

TEST_CASE("custom_vjp: a function's own gradient; what it captures is constant") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({2})), k = g.input("k", f64({2}));
  auto own = [&](Value v) {
    return custom_vjp(
        "own", [&](Value a) { return a * k; },
        [&](Value a, Value y, Value dy) { return dy * a + y + k; }, v);
  };
  g.output("y", own(x));
  std::vector<Value> grads = grad(sum(own(x)), {x, k});
  g.output("dx", grads[0]);
  g.output("dk", grads[1]);
  auto out = run(g.graph(), {{"x", {2, 3}}, {"k", {5, 7}}});
  check_near(out["y"], {10, 21});
  check_near(out["dx"], {2 + 10 + 5, 3 + 21 + 7});
  check_near(out["dk"], {0, 0});
}

TEST_CASE("custom_vjp: AD-19 a gradient of the wrong shape is refused, and nothing stays behind") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({3}));
  size_t ops = g.graph().size(), graphs = model.module().graphs().size();
  CHECK(message_of([&] {
          custom_vjp(
              "ones", [](Value a) { return a * 2.0; },
              [](Value a, Value, Value) {
                return full(a.graph(), f64({4, 3}), 1);
              },
              x);
        }) == "custom_vjp: @ones_vjp, the gradient of @ones by operand x: expected [3], got [4,3]");
  CHECK(
      message_of([&] {
        custom_vjp(
            "two", [](Value a) { return a * 2.0; },
            [](const std::vector<Value>& a, const std::vector<Value>&, const std::vector<Value>&) {
              return std::vector<Value>{a[0], a[0]};
            },
            std::vector<Value>{x});
      }) ==
      "custom_vjp: @two_vjp, the gradient of @two, gives 2 gradients, expected 1: one for each "
      "float operand");
  CHECK(g.graph().size() == ops);
  CHECK(g.graph().inputs().size() == 1);
  CHECK(model.module().graphs().size() == graphs);
}

TEST_CASE("vmap: each example alone, over any axis, with what is shared") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({3, 2})), y = g.input("y", f64({2, 3})), k = g.input("k", f64({2}));
  auto f = [&](Value a, Value b) {
    CHECK(a.shape() == Shape{2});
    CHECK(b.shape() == Shape{2});
    return sum(a * b * k);
  };
  Value z = vmap(f, {x, y}, {0, 1})[0];
  CHECK(z.shape() == Shape{3});
  g.output("z", z);
  g.output("d", vmap([&](Value a) { return grad([&](Value v) { return sum(v * v * k); }, a); }, x));
  g.output("dk", grad(sum(square(z)), k));
  auto out = run(g.graph(), {{"x", {1, 2, 3, 4, 5, 6}}, {"y", {1, 2, 3, 4, 5, 6}}, {"k", {1, 10}}});
  check_near(out["z"], {1 + 80, 6 + 200, 15 + 360});
  check_near(out["d"], {2, 40, 6, 80, 10, 120});
  check_near(out["dk"], {2 * (81 * 1 + 206 * 6 + 375 * 15), 2 * (81 * 8 + 206 * 20 + 375 * 36)});
}

TEST_CASE("scan: carries, rows, captured weights, and their gradients") {
  Model model;
  Scope g = model.graph("main");
  Value c = g.input("c", f64({})), x = g.input("x", f64({3})), k = g.input("k", f64({}));
  auto step = [&](const std::vector<Value>& carries, const std::vector<Value>& rows) {
    Value next = carries[0] * rows[0] + k;
    return ScanResult{{next}, {square(next)}};
  };
  ScanResult r = scan(step, {c}, {x});
  CHECK(r.stacked[0].shape() == Shape{3});
  g.output("last", r.carries[0]);
  g.output("rows", r.stacked[0]);
  std::vector<Value> d = grad(sum(r.stacked[0]), {c, x, k});
  g.output("dc", d[0]);
  g.output("dx", d[1]);
  g.output("dk", d[2]);
  // 1: 2 + 10 = 12, 2: 36 + 10 = 46, 3: 184 + 10 = 194.
  auto out = run(g.graph(), {{"c", {1}}, {"x", {2, 3, 4}}, {"k", {10}}});
  check_near(out["last"], {194});
  check_near(out["rows"], {144, 2116, 37636});
  double d3 = 388, d2 = 92 + 4 * d3, d1 = 24 + 3 * d2;
  check_near(out["dc"], {2 * d1});
  check_near(out["dx"], {1 * d1, 12 * d2, 46 * d3});
  check_near(out["dk"], {d1 + d2 + d3});
}

TEST_CASE("scan: inside a scan, a vmap and a gradient") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({2})), k = g.input("k", f64({}));
  // y = k⁶ x by three times two multiplications.
  auto power = [&](Value v) {
    auto inner = [&](const std::vector<Value>& c, const std::vector<Value>&) {
      return ScanResult{{c[0] * k}, {}};
    };
    auto outer = [&](const std::vector<Value>& c, const std::vector<Value>&) {
      return ScanResult{scan(inner, {c[0]}, {}, {.length = 2}).carries, {}};
    };
    return scan(outer, {v}, {}, {.length = 3}).carries[0];
  };
  Value y = vmap(power, x);
  g.output("y", y);
  g.output("dk", grad(sum(y), k));
  g.output("ddk", grad(grad(sum(y), k), k));
  auto out = run(g.graph(), {{"x", {1, 3}}, {"k", {2}}});
  check_near(out["y"], {64, 192});
  check_near(out["dk"], {4 * 6 * 32});
  check_near(out["ddk"], {4 * 30 * 16});
}

TEST_CASE("scan: parameters declared inside are shared by all steps") {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value x = g.input("x", f32({6, 4, 3}));
  auto cell = [&](const std::vector<Value>& c, const std::vector<Value>& rows) {
    return ScanResult{{tanh(nn::linear(g / "h", c[0], 5) + nn::linear(g / "x", rows[0], 5))}, {}};
  };
  ScanResult r = scan(cell, {full(g.graph(), f32({4, 5}), 0)}, {x});
  Value loss = mean(square(r.carries[0]));
  g.output("loss", loss);
  minimize(loss, g.parameters(), AdamW{});
  verify(model.module());
  CHECK(model.parameters().size() == 4);
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  Program program(model, options);
  program.init(1);
  Bindings batch{{"x", fill(f32({6, 4, 3}), 1)}, {"lr", Tensor::scalar(0.01f)}};
  double first = program.run("step", batch).at("loss").at(0);
  for (int i = 0; i < 5; ++i) program.run("step", batch);
  CHECK(program.run("step", batch).at("loss").at(0) < first);
}

TEST_CASE("derivatives: mistakes are refused with what was expected, at the caller's line") {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", f64({2})), n = g.input("n", i32({2}));
  auto first = [](Value v) { return v; };
  CHECK(message_of([&] { grad(first, x); }) ==
        "grad: the function gives f64[2], expected a float scalar");
  CHECK(message_of([&] { grad([](Value a, Value b) { return sum(a * b); }, x); }) ==
        "grad: the function takes 2 arguments, got 1");
  CHECK(message_of([&] { jvp(first, {x}, {full(g.graph(), f64({3}), 1)}); }) ==
        "jvp: tangent 0: expected f64[2], got f64[3]");
  CHECK(message_of([&] { vjp(first, {x}, {}); }) == "vjp: 0 cotangents for 1 values");
  CHECK(message_of([&] { jacobian(first, n); }) == "jacobian: i32[2] is no float");
  CHECK(message_of([&] { vmap(first, {x}, {std::nullopt}); }) ==
        "vmap: no argument has an axis of examples");
  CHECK(message_of([&] { vmap(first, {x}, {1}); }) == "vmap: argument 0 (f64[2]) has no axis 1");
  auto none = [](const std::vector<Value>&, const std::vector<Value>&) { return ScanResult{}; };
  CHECK(message_of([&] { scan(none, {x}, {}, {.length = 2}); }) ==
        "scan: the step gives 0 carries, expected 1");
  auto wider = [](const std::vector<Value>& c, const std::vector<Value>&) {
    return ScanResult{{cast(c[0], DType::F32)}, {}};
  };
  CHECK(message_of([&] { scan(wider, {x}, {}, {.length = 2}); }) ==
        "scan: carry x goes into @scan as f64[2] and comes out as f32[2]");
  // Nothing is left of what was begun.
  CHECK(model.module().graphs().size() == 2);
  try {
    grad(first, x);
  } catch (const Error& e) {
    CHECK(e.diagnostic().location.line == __LINE__ - 2);
    CHECK(e.diagnostic().location.file_name().ends_with("derivatives.cpp"));
  }
}
