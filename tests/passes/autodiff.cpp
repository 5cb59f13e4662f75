#include <doctest/doctest.h>
#include <pthread.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/pass.h>
#include <sinter/tests/support.h>

#include <chrono>
#include <exception>

using namespace sinter;

namespace {

// Runs `work` on a thread with 512 KiB of stack; rethrows what it throws.
void on_small_stack(void (*work)()) {
  struct Task {
    void (*work)();
    std::exception_ptr failure;
  } task{work, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, test::kSmallStack) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(
              &thread, &attributes,
              [](void* p) -> void* {
                auto* t = static_cast<Task*>(p);
                try {
                  t->work();
                } catch (...) {
                  t->failure = std::current_exception();
                }
                return nullptr;
              },
              &task) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (task.failure) std::rethrow_exception(task.failure);
}

// y = x + 2^-10, `depth` times; the sum, and its gradient as an output.
size_t deep_chain(int depth, bool whole_pipeline) {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {4}});
  Value y = x;
  for (int i = 0; i < depth; ++i) y = y + 0x1p-10;
  Value l = sum(y);
  graph.add_output("l", l);
  graph.add_output("grad_x", gradients(graph, l, std::vector{x})[0]);
  if (whole_pipeline) {
    PassManager manager;
    manager.run(module, default_pipeline());
  }
  verify(module);
  return graph.size();
}

}  // namespace

TEST_CASE("autodiff: AD-21 a graph of 20480 ops, on a small stack") {
  on_small_stack([] {
    // Each op of the chain, its constant and broadcast; the gradient passes through unchanged.
    if (deep_chain(20480, false) > 4 * 20480) throw Error("the gradient of a chain grew");
    deep_chain(20480, true);
  });
}

TEST_CASE("autodiff: the time is linear in the depth") {
  auto seconds = [](int depth) {
    auto start = std::chrono::steady_clock::now();
    deep_chain(depth, false);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(1000);
  double small = seconds(4000), large = seconds(32000);
  // Eight times the ops; a quadratic pass would take sixty-four times as long.
  CHECK(large < 24 * small + 0.05);
}

TEST_CASE("autodiff: AD-10 gradients of broadcast operands have the operands' shapes") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value a = graph.add_input("a", {DType::F32, {3, 1}});
  Value b = graph.add_input("b", {DType::F32, {4}});
  Value c = graph.add_input("c", {DType::F32, {2, 1, 1}});
  Value l = sum(a * b + c);
  std::vector<Value> grads = gradients(graph, l, std::vector{a, b, c});
  CHECK(grads[0].type() == a.type());
  CHECK(grads[1].type() == b.type());
  CHECK(grads[2].type() == c.type());
}

TEST_CASE("autodiff: a value in wrt may be an intermediate one, or the loss itself") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value h = exp(x);
  Value l = sum(h * h);
  std::vector<Value> grads = gradients(graph, l, std::vector{h, x, l});
  CHECK(grads[0].type() == h.type());
  CHECK(grads[1].type() == x.type());
  REQUIRE(grads[2].op() != nullptr);
  CHECK(grads[2].op()->is("full"));
  for (Value g : grads) graph.add_output("", g);
  CHECK_NOTHROW(verify(module));
}

TEST_CASE("autodiff: fan-out contributions keep the order of the uses") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value a = exp(x).named("a");
  Value first = sin(a), second = cos(a), third = neg(a);
  Value l = sum(first + second + third);
  Value g = gradients(graph, l, std::vector{a})[0];
  REQUIRE(g.op()->is("add_n"));
  REQUIRE(g.op()->operands().size() == 3);
  // Made in reverse, added in order: each contribution carries the line of its forward op.
  const Op& sum_op = *g.op();
  for (size_t i = 0; i < 3; ++i) {
    const Op* forward = i == 0 ? first.op() : i == 1 ? second.op() : third.op();
    CHECK(sum_op.operand(i).op()->from() == forward->loc());
  }
  CHECK(sum_op.operand(2).op()->position() < sum_op.operand(0).op()->position());
}
