// Loops: scans against the same steps written out, in both modes and to second order; what is
// merged and what is computed again; loops of thousands of steps.

#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>
#include <sinter/passes/transforms.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <string>

using namespace sinter;

namespace {

constexpr int64_t kSteps = 5, kRows = 2, kWidth = 3, kInputs = 4;

// h' = tanh(h W + x U); y = h' * h.
struct Cell {
  Value next, row;
};
Cell cell(Value h, Value x, Value w, Value u) {
  Value next = tanh(matmul(h, w) + matmul(x, u));
  return {next, next * h};
}

// A recurrent network on inputs h0, xs, w, u: as a scan, or written out.
struct Network {
  Module module;
  Graph& graph = module.add_graph("main");
  Value h0 = graph.add_input("h0", {DType::F32, {kRows, kWidth}});
  Value xs = graph.add_input("xs", {DType::F32, {kSteps, kRows, kInputs}});
  Value w = graph.add_input("w", {DType::F32, {kWidth, kWidth}});
  Value u = graph.add_input("u", {DType::F32, {kInputs, kWidth}});
  Value last, rows;

  std::vector<Value> wrt() const { return {h0, xs, w, u}; }

  void write_out(bool reverse) {
    Value h = h0;
    std::vector<Value> stack(kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      int64_t i = reverse ? kSteps - 1 - step : step;
      Value x = reshape(slice_axis(xs, 0, i, i + 1), {kRows, kInputs});
      Cell c = cell(h, x, w, u);
      h = c.next;
      stack[static_cast<size_t>(i)] = reshape(c.row, {1, kRows, kWidth});
    }
    last = h;
    rows = concat(stack, 0);
  }
  void loop(ScanAttrs options) {
    Graph& body = module.add_graph("body");
    Value h = body.add_input("h", h0.type());
    Value x = body.add_input("x", {DType::F32, {kRows, kInputs}});
    // In this order, which arguments of one call do not have.
    Value own_w = body.add_input("w", w.type()), own_u = body.add_input("u", u.type());
    Cell c = cell(h, x, own_w, own_u);
    body.add_output("h", c.next);
    body.add_output("y", c.row);
    std::vector<Value> results = scan(body, {h0}, {xs}, {w, u}, options);
    last = results[0];
    rows = results[1];
  }
  // A scalar that depends on all of them.
  Value loss() const {
    Value weights = cast(iota(graph, {DType::I32, rows.shape()}, 2), DType::F32) - 0.75;
    return sum(rows * weights) + sum(square(last));
  }
  std::vector<std::vector<double>> run() const {
    std::vector<Tensor> in;
    int64_t seed = 1;
    for (Value v : graph.inputs()) {
      std::vector<double> values = fill(v.type(), seed++).to_doubles();
      for (double& x : values) x *= 0.5;
      in.push_back(Tensor::from_doubles({DType::F64, v.shape()}, values));
    }
    std::vector<std::vector<double>> out;
    for (const Tensor& t : Reference({true}).run(graph, in)) out.push_back(t.to_doubles());
    return out;
  }
};

void check_same(const std::vector<std::vector<double>>& got,
                const std::vector<std::vector<double>>& right, double tolerance = 1e-12) {
  REQUIRE(got.size() == right.size());
  for (size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].size() == right[i].size());
    for (size_t k = 0; k < got[i].size(); ++k) {
      CAPTURE(i);
      CAPTURE(k);
      CHECK(std::abs(got[i][k] - right[i][k]) <= tolerance * std::max(1.0, std::abs(right[i][k])));
    }
  }
}

// Does `body` for both forms and compares what they give.
void compare(const std::function<void(Network&)>& body) {
  for (bool reverse : {false, true})
    for (bool recompute : {false, true}) {
      CAPTURE(reverse);
      CAPTURE(recompute);
      Network plain, looped;
      plain.write_out(reverse);
      looped.loop({.length = kSteps, .reverse = reverse, .recompute = recompute});
      for (Network* n : {&plain, &looped}) {
        body(*n);
        verify(n->module);
      }
      check_same(looped.run(), plain.run());
      auto again = parse_module(print(looped.module), "scan.sir");
      CHECK(print(*again) == print(looped.module));
    }
}

size_t count(const Graph& graph, std::string_view op) {
  size_t n = 0;
  for (Op& o : graph) n += o.is(op);
  return n;
}

}  // namespace

TEST_CASE("scan: results are those of the steps written out") {
  compare([](Network& n) {
    n.graph.add_output("last", n.last);
    n.graph.add_output("rows", n.rows);
  });
}

TEST_CASE("scan: gradients by carries, rows and what all steps share") {
  compare([](Network& n) {
    std::vector<Value> wrt = n.wrt();
    for (Value g : gradients(n.graph, n.loss(), wrt)) n.graph.add_output("", g);
  });
}

TEST_CASE("scan: the gradient of the gradient") {
  compare([](Network& n) {
    std::vector<Value> wrt = n.wrt(), first = gradients(n.graph, n.loss(), wrt);
    Value total = sum(square(first[0]));
    for (size_t i = 1; i < first.size(); ++i) total = total + sum(square(first[i]));
    for (Value g : gradients(n.graph, total, wrt)) n.graph.add_output("", g);
  });
}

TEST_CASE("scan: tangents, and gradients of tangents") {
  compare([](Network& n) {
    std::vector<Value> wrt = n.wrt(), along;
    for (Value v : wrt) along.push_back(cos(v));
    std::vector<Value> of{n.last, n.rows};
    std::vector<Value> t = graph_transforms().jvp(n.graph, of, wrt, along);
    n.graph.add_output("", t[0]);
    n.graph.add_output("", t[1]);
    for (Value g : gradients(n.graph, sum(square(t[1])) + sum(t[0]), wrt))
      n.graph.add_output("", g);
  });
}

TEST_CASE("scan: a part of the operands, and results that nothing reads") {
  compare([](Network& n) {
    std::vector<Value> wrt{n.u};
    n.graph.add_output("", gradients(n.graph, sum(n.last), wrt)[0]);
    std::vector<Value> rows{n.xs};
    n.graph.add_output("", gradients(n.graph, sum(square(n.rows)), rows)[0]);
  });
}

TEST_CASE("scan: batched, each example is as without the others") {
  constexpr int64_t kExamples = 3;
  for (bool reverse : {false, true}) {
    CAPTURE(reverse);
    Network one;
    one.loop({.length = kSteps, .reverse = reverse});
    one.graph.add_output("last", one.last);
    one.graph.add_output("rows", one.rows);
    std::vector<Value> wrt = one.wrt();
    for (Value g : gradients(one.graph, one.loss(), wrt)) one.graph.add_output("", g);

    Graph& all = one.module.add_graph("all");
    std::vector<Value> inputs;
    std::vector<bool> carried;
    for (Value v : one.graph.inputs()) {
      bool shared = v.name() == "w";
      TensorType type = v.type();
      if (!shared) type.shape.insert(type.shape.begin(), kExamples);
      inputs.push_back(all.add_input(v.name(), type));
      carried.push_back(!shared);
    }
    for (Value v : graph_transforms().batch(one.graph, all, inputs, carried, kExamples))
      all.add_output("", v);
    verify(one.module);

    std::vector<Tensor> together;
    for (Value v : all.inputs()) together.push_back(fill({DType::F64, v.shape()}, 3));
    std::vector<Tensor> got = Reference({true}).run(all, together);
    for (int64_t e = 0; e < kExamples; ++e) {
      std::vector<Tensor> alone;
      for (size_t i = 0; i < together.size(); ++i) {
        const Tensor& t = together[i];
        Value v = one.graph.inputs()[i];
        std::vector<double> values = t.to_doubles();
        int64_t n = v.type().elements();
        if (carried[i]) values = {values.begin() + e * n, values.begin() + (e + 1) * n};
        alone.push_back(Tensor::from_doubles({DType::F64, v.shape()}, values));
      }
      std::vector<Tensor> right = Reference({true}).run(one.graph, alone);
      for (size_t i = 0; i < right.size(); ++i)
        for (int64_t k = 0; k < right[i].size(); ++k)
          CHECK(got[i].at(e * right[i].size() + k) == doctest::Approx(right[i].at(k)));
    }
  }
}

TEST_CASE("scan: unrolled, the gradient uses the forward values, unless they are asked for again") {
  for (bool recompute : {false, true}) {
    CAPTURE(recompute);
    Network n;
    n.loop({.length = kSteps, .recompute = recompute});
    std::vector<Value> wrt = n.wrt();
    for (Value g : gradients(n.graph, n.loss(), wrt)) n.graph.add_output("", g);
    PassManager manager;
    manager.run(n.module, parse_pipeline("inline,canonicalize,cse,dce,recompute,expand,"
                                         "canonicalize,cse,dce"));
    CHECK(n.module.graphs().size() == 1);
    CHECK(count(n.graph, "tanh") == static_cast<size_t>(recompute ? 2 * kSteps : kSteps));
    CHECK(count(n.graph, "scan") == 0);
  }
  // With the pass switched off no value is computed again.
  Network n;
  n.loop({.length = kSteps, .recompute = true});
  std::vector<Value> wrt = n.wrt();
  for (Value g : gradients(n.graph, n.loss(), wrt)) n.graph.add_output("", g);
  PassManager manager;
  manager.disabled = {"recompute"};
  manager.run(n.module, parse_pipeline("recompute,expand,canonicalize,cse,dce"));
  CHECK(count(n.graph, "tanh") == static_cast<size_t>(kSteps));
}

TEST_CASE("scan: carries of integers count, and have no gradient") {
  Module module;
  Graph& graph = module.add_graph("main");
  Graph& body = module.add_graph("body");
  {
    Value n = body.add_input("n", {DType::I32, {}}), x = body.add_input("x", {DType::F32, {}});
    body.add_output("n", n + 1);
    body.add_output("x", x * cast(n, DType::F32));
  }
  Value x = graph.add_input("x", {DType::F32, {}});
  std::vector<Value> r = scan(body, {full(graph, {DType::I32, {}}, 2), x}, {}, {}, {.length = 3});
  graph.add_output("n", r[0]);
  graph.add_output("y", r[1]);
  graph.add_output("dx", gradients(graph, r[1], std::vector<Value>{x})[0]);
  std::vector<Tensor> out = Reference().run(graph, std::vector{Tensor::scalar(2.0f)});
  CHECK(out[0].at(0) == 5);
  CHECK(out[1].at(0) == 48);
  CHECK(out[2].at(0) == 24);
}

TEST_CASE("scan: thousands of steps with their gradient, on every host device") {
  constexpr int64_t kMany = 3000;
  Module module;
  Graph& graph = module.add_graph("main");
  Graph& body = module.add_graph("body");
  {
    Value c = body.add_input("c", {DType::F32, {4}}), x = body.add_input("x", {DType::F32, {4}});
    Value next = c * 0.5 + x;
    body.add_output("c", next);
    body.add_output("y", next);
  }
  Value c = graph.add_input("c", {DType::F32, {4}});
  Value x = graph.add_input("x", {DType::F32, {kMany, 4}});
  std::vector<Value> r = scan(body, {c}, {x}, {});
  graph.add_output("last", r[0]);
  Value loss = sum(r[1]) + sum(r[0]);
  std::vector<Value> wrt{x};
  graph.add_output("dx", gradients(graph, loss, wrt)[0]);
  for (DeviceKind device : {DeviceKind::Reference, DeviceKind::Interpreter}) {
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(module, options));
    Bindings out = session->run("main", {{"c", Tensor::full({DType::F32, {4}}, 0)},
                                         {"x", Tensor::full({DType::F32, {kMany, 4}}, 1)}});
    CHECK(out.at("last").at(0) == doctest::Approx(2));
    CHECK(out.at("dx").at(4 * (kMany - 1)) == 2);
    CHECK(out.at("dx").at(0) == doctest::Approx(2));
  }
}
