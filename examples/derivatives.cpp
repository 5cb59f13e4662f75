// The snippets of docs/derivatives.md, with what they give.

#include <sinter/sinter.h>

#include <cmath>
#include <cstdio>
#include <string>

using namespace sinter;

namespace {

// Of a graph with the inputs x f64[2], v f64[2], a f64[3,2], each as below.
void reverse(Scope g, Value x, Value a) {
  // f(x) = Σ sin(a x)
  auto f = [&](Value u) { return sum(sin(matmul(a, reshape(u, {2, 1})))); };
  g.output("dx", grad(f, x));  // [2], the shape of x

  // Several arguments: one gradient each.
  auto h = [](Value p, Value q) { return sum(p * exp(q)); };
  ValueAndGrad both = value_and_grad(h, {x, x * 2.0});
  g.output("value", both.value);
  g.output("dp", both.grads[0]);
  g.output("dq", both.grads[1]);
}

void products(Scope g, Value x, Value v) {
  auto f = [](Value u) { return u * sin(u); };                 // [2] to [2]
  g.output("transposed", vjp(f, {x}, {v}).grads[0]);           // vᵀ J
  g.output("along", jvp(f, {x}, {v}).tangents[0]);             // J v
  g.output("jacobian", jacobian(f, x));                        // [2, 2]
  g.output("reverse", jacobian(f, x, JacobianMode::Reverse));  // the same, row by row
}

void second(Scope g, Value x, Value v) {
  auto f = [](Value u) { return sum(u * u * u) + square(sum(u)); };
  g.output("hessian", hessian(f, x));  // [2, 2]
  g.output("hvp", hvp(f, x, v));       // hessian times v, without it
}

void own(Scope g, Value x) {
  // y = round(x), as if it were y = x.
  auto straight_through = [](Value u) {
    return custom_vjp(
        "straight_through", [](Value t) { return floor(t + 0.5); },
        [](Value, Value, Value dy) { return dy; }, u);
  };
  g.output("rounded", straight_through(x));
  g.output("passed", grad([&](Value u) { return sum(square(straight_through(u))); }, x));

  // y = x, with a gradient of at most 1.
  auto clipped = [](Value u) {
    return custom_vjp(
        "clipped", [](Value t) { return t; },
        [](Value, Value, Value dy) { return clamp(dy, -1, 1); }, u);
  };
  g.output("kept", grad([&](Value u) { return sum(square(clipped(u))); }, x));

  // No gradient at all through the second factor.
  g.output("stopped", grad([](Value u) { return sum(u * stop_gradient(u)); }, x));
}

void examples(Scope g, Value x, Value a) {
  // The gradient of each row's own loss, for all rows of a at once: [3, 2].
  auto loss = [](Value w, Value row) { return square(sum(w * row) - 1.0); };
  auto of_one = [&](Value row) { return grad([&](Value w) { return loss(w, row); }, x); };
  g.output("each", vmap(of_one, a));
}

void loop(Scope g, Value x, Value a) {
  // c ← tanh(c ⊙ row) + x for each row of a; x is captured, and every step's c² comes out.
  auto step = [&](const std::vector<Value>& carries, const std::vector<Value>& rows) {
    Value c = tanh(carries[0] * rows[0]) + x;
    return ScanResult{{c}, {square(c)}};
  };
  ScanResult r = scan(step, {full_like(x, 0)}, {a});
  g.output("last", r.carries[0]);     // [2]
  g.output("squares", r.stacked[0]);  // [3, 2]
  g.output("through", grad(sum(r.stacked[0]), x));
}

std::string text(const Tensor& t) {
  std::string out;
  for (int64_t i = 0; i < t.size(); ++i) out += fmt::format("{}{:.4f}", i ? ", " : "", t.at(i));
  return t.shape().empty() ? out : "[" + out + "]";
}

}  // namespace

int main() {
  Model model;
  Scope g = model.graph("main");
  Value x = g.input("x", {DType::F64, {2}}), v = g.input("v", {DType::F64, {2}}),
        a = g.input("a", {DType::F64, {3, 2}});
  reverse(g, x, a);
  products(g, x, v);
  second(g, x, v);
  own(g, x);
  examples(g, x, a);
  loop(g, x, a);

  GradCheckReport report = check_grads(g.graph(), {}, {.wrt = {"a"}});
  std::printf("a: %s\n", report.ok() ? "both modes agree with central differences" : "off");

  CompileOptions options;
  options.device = DeviceKind::Reference;
  Bindings out = Program(model, options)
                     .run("main", {{"x", Tensor::from<double>({2}, {0.5, 1.75})},
                                   {"v", Tensor::from<double>({2}, {1, -1})},
                                   {"a", Tensor::from<double>({3, 2}, {1, 2, 3, 0, -1, 1})}});
  for (const GraphOutput& o : g.graph().outputs())
    std::printf("%s: %s\n", o.name.c_str(), text(out.at(o.name)).c_str());
}
