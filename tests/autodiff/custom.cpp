// Gradients of one's own: custom_vjp, and ops that the program registers.

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/transforms.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <mutex>

using namespace sinter;

namespace {

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.diagnostic().message;
  }
  return "no error";
}

// y = x³ with the gradient 3 x² dy, as two graphs.
struct Cube {
  Graph& forward;
  Graph& backward;
  explicit Cube(Module& module, double factor = 3)
      : forward(module.add_graph("cube")), backward(module.add_graph("cube_vjp")) {
    Value x = forward.add_input("x", {DType::F32, {3}});
    forward.add_output("y", x * x * x);
    Value at = backward.add_input("x", x.type());
    backward.add_input("y", x.type());
    backward.add_output("dx", backward.add_input("dy", x.type()) * factor * square(at));
  }
};

std::vector<double> run(const Graph& graph, const std::vector<double>& x, size_t output) {
  std::vector<Tensor> in{Tensor::from_doubles({DType::F64, {3}}, x)};
  return Reference({true}).run(graph, in)[output].to_doubles();
}

// A user's op: x / (1 + x²), whose gradient is stated.
struct Bump {
  static constexpr std::string_view name = "test_bump";
  static constexpr std::string_view doc = "x / (1 + x²) of a float x of any shape.";
  static constexpr std::array operands{required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) {
    if (!is_float(c.type(0).dtype)) return c.error("{} is not of a float type", c.describe(0));
    return std::vector{c.type(0)};
  }
  static Grads vjp(const VjpContext& c) {
    Value x = c.operand(0), d = 1.0 + square(x);
    return {c.grad() * (1.0 - square(x)) / square(d)};
  }
  static constexpr auto jvp = Jvp::through_vjp;
  static constexpr auto batch = Batch::shift_axes;
  static std::vector<Value> expand(const Op& op) {
    Value x = op.operand(0);
    return {x / (1.0 + square(x))};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 4); }
  static std::vector<Sample> samples() {
    Sample vector, scalar;
    vector.operands = {{DType::F32, {3}}};
    scalar.operands = {{DType::F32, {}}};
    return {vector, scalar};
  }
};

// One whose rule gives a gradient of another shape.
struct Wrong : Bump {
  static constexpr std::string_view name = "test_wrong";
  static Grads vjp(const VjpContext& c) { return {full(c.op().graph(), {DType::F32, {4, 3}}, 1)}; }
};

void register_ops() {
  static std::once_flag once;
  std::call_once(once, [] {
    OpRegistry::get().add<Bump>();
    OpRegistry::get().add<Wrong>();
  });
}

}  // namespace

TEST_CASE("custom_vjp: the gradient is the user's, to second order too") {
  Module module;
  // The factor tells this gradient from that of the forward graph.
  Cube cube(module, 30);
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = custom_vjp(cube.forward, cube.backward, {x})[0];
  std::vector<Value> wrt{x};
  Value dx = gradients(graph, sum(y), wrt)[0];
  Value ddx = gradients(graph, sum(dx), wrt)[0];
  graph.add_output("y", y);
  graph.add_output("dx", dx);
  graph.add_output("ddx", ddx);
  verify(module);
  CHECK(run(graph, {1, 2, 3}, 0) == std::vector<double>{1, 8, 27});
  CHECK(run(graph, {1, 2, 3}, 1) == std::vector<double>{30, 120, 270});
  CHECK(run(graph, {1, 2, 3}, 2) == std::vector<double>{60, 120, 180});
}

TEST_CASE("custom_vjp: forward mode is the transposed gradient, and batches keep it") {
  Module module;
  Cube cube(module, 30);
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = custom_vjp(cube.forward, cube.backward, {x})[0];
  Value along = full(graph, x.type(), 2);
  graph.add_output("t", graph_transforms().jvp(graph, {&y, 1}, {&x, 1}, {&along, 1})[0]);
  CHECK(run(graph, {1, 2, 3}, 0) == std::vector<double>{60, 240, 540});

  Graph& one = module.add_graph("one");
  Value x1 = one.add_input("x", {DType::F32, {3}});
  one.add_output("y", custom_vjp(cube.forward, cube.backward, {x1})[0]);
  Graph& all = module.add_graph("all");
  Value xs = all.add_input("x", {DType::F32, {2, 3}});
  Value ys = graph_transforms().batch(one, all, {&xs, 1}, {true}, 2)[0];
  std::vector<Value> wrt{xs};
  all.add_output("dx", gradients(all, sum(ys), wrt)[0]);
  verify(module);
  std::vector<Tensor> in{Tensor::from_doubles({DType::F64, {2, 3}}, {1, 2, 3, 4, 5, 6})};
  CHECK(Reference({true}).run(all, in)[0].to_doubles() ==
        std::vector<double>{30, 120, 270, 480, 750, 1080});
}

TEST_CASE("custom_vjp: AD-19 round with a pass-through gradient") {
  Module module;
  Graph& forward = module.add_graph("round");
  Graph& backward = module.add_graph("pass");
  TensorType type{DType::F32, {4}};
  forward.add_output("y", round(forward.add_input("x", type)));
  backward.add_input("x", type);
  backward.add_input("y", type);
  backward.add_output("dx", backward.add_input("dy", type));
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", type);
  Value y = custom_vjp(forward, backward, {x})[0];
  graph.add_output("y", y);
  graph.add_output("dx", gradients(graph, sum(y), std::vector<Value>{x})[0]);
  std::vector<DeviceKind> devices{DeviceKind::Reference, DeviceKind::Interpreter};
  for (DeviceKind device : devices) {
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(module, options));
    Bindings out =
        session->run("main", {{"x", Tensor::from<float>({4}, {0.5f, 1.5f, 2.5f, -0.5f})}});
    CHECK(out.at("y").to_doubles() == std::vector<double>{0, 2, 2, 0});
    CHECK(std::signbit(out.at("y").at(3)));
    CHECK(out.at("dx").to_doubles() == std::vector<double>{1, 1, 1, 1});
  }
}

TEST_CASE("custom op: registered from outside, compiled, differentiated, batched") {
  register_ops();
  CHECK(message_of([] { OpRegistry::get().add<Bump>(); }) == "there is an op 'test_bump' already");
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = build_op(graph, "test_bump", {x}, NoAttrs{}, {}).result();
  std::vector<Value> wrt{x};
  graph.add_output("y", y);
  Value dx = gradients(graph, sum(y), wrt)[0];
  graph.add_output("dx", dx);
  graph.add_output("ddx", gradients(graph, sum(dx), wrt)[0]);
  Value along = full(graph, x.type(), 1);
  graph.add_output("t", graph_transforms().jvp(graph, {&y, 1}, {&x, 1}, {&along, 1})[0]);
  for (DeviceKind device : {DeviceKind::Reference, DeviceKind::Interpreter}) {
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(module, options));
    Bindings out = session->run("main", {{"x", Tensor::from<float>({3}, {0, 0.5f, 2})}});
    for (int64_t i = 0; i < 3; ++i) {
      double v = std::array{0.0, 0.5, 2.0}[static_cast<size_t>(i)], d = 1 + v * v;
      CHECK(out.at("y").at(i) == doctest::Approx(v / d));
      CHECK(out.at("dx").at(i) == doctest::Approx((1 - v * v) / (d * d)));
      CHECK(out.at("t").at(i) == doctest::Approx((1 - v * v) / (d * d)));
      CHECK(out.at("ddx").at(i) == doctest::Approx(2 * v * (v * v - 3) / (d * d * d)));
    }
  }
}

TEST_CASE("custom op: AD-19 a gradient of another shape is refused, with op and shapes") {
  register_ops();
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = build_op(graph, "test_wrong", {x}, NoAttrs{}, {}).result();
  std::vector<Value> wrt{x};
  CHECK(message_of([&] { gradients(graph, sum(y), wrt); }) ==
        "autodiff: the derivative of test_wrong by operand x: expected f32[3], got f32[4,3]");
}

TEST_CASE("call: differentiated like the ops that it stands for") {
  Module module;
  Graph& f = module.add_graph("f");
  f.add_output("y", sin(square(f.add_input("x", {DType::F32, {3}}))));
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = call(f, {call(f, {x})[0]})[0];
  graph.add_output("y", y);
  graph.add_output("dx", gradients(graph, sum(y), std::vector<Value>{x})[0]);
  verify(module);
  double v = 0.7, inner = std::sin(v * v);
  CHECK(run(graph, {v, 0, 0}, 0)[0] == doctest::Approx(std::sin(inner * inner)));
  CHECK(run(graph, {v, 0, 0}, 1)[0] ==
        doctest::Approx(std::cos(inner * inner) * 2 * inner * std::cos(v * v) * 2 * v));
  // The module compiles, with nothing but @main to be run.
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  auto session = make_session(compile(module, options));
  CHECK(session->run("main", {{"x", Tensor::from<float>({3}, {0.7f, 0, 0})}}).size() == 2);
}
