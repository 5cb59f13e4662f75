// Forward mode and batching on graphs as they come: deep ones, ones that share values, given
// tangents from anywhere.

#include <doctest/doctest.h>
#include <pthread.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/vmap.h>
#include <sinter/tests/support.h>

#include <ctime>
#include <exception>
#include <functional>

using namespace sinter;

namespace {

void on_small_stack(const std::function<void()>& work) {
  struct Task {
    const std::function<void()>& work;
    std::exception_ptr failure;
  } task{work, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, test::kSmallStack) == 0);
  pthread_t thread;
  auto start = [](void* p) -> void* {
    auto* t = static_cast<Task*>(p);
    try {
      t->work();
    } catch (...) {
      t->failure = std::current_exception();
    }
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, start, &task) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (task.failure) std::rethrow_exception(task.failure);
}

// A chain of norms, of which each is the transpose of its VJP, and of soft steps.
Graph& chain(Module& module, int depth) {
  Graph& graph = module.add_graph("chain");
  Value x = graph.add_input("x", {DType::F32, {4}}), y = x;
  for (int i = 0; i < depth; ++i) y = i % 4 == 0 ? y / norm(y) : tanh(y);
  graph.add_output("y", y);
  return graph;
}

// What the work takes of this thread's processor, whoever else uses the machine.
double seconds(int depth, const std::function<void(Graph&)>& work) {
  Module module;
  Graph& graph = chain(module, depth);
  auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  double start = now();
  work(graph);
  double took = now() - start;
  verify(module);
  return took;
}

void differentiate(Graph& graph) {
  Value x = graph.inputs()[0], y = graph.outputs()[0].value;
  Value v = graph.add_input("v", x.type());
  graph.add_output("t", tangents(graph, {&y, 1}, {&x, 1}, {&v, 1})[0]);
}

void batch(Graph& graph) {
  vmap(graph, "batched", std::vector<std::string>{"x"}, 3);
}

}  // namespace

TEST_CASE("jvp and vmap: deep graphs on a small stack, in linear time") {
  for (void (*work)(Graph&) : {&differentiate, &batch}) {
    on_small_stack([&] { seconds(10000, work); });
    seconds(1000, work);
    double small = seconds(8000, work), large = seconds(64000, work);
    // Eight times the ops; a quadratic pass would take sixty-four times as long.
    CHECK(large < 24 * small + 0.05);
  }
}

TEST_CASE("jvp: a tangent that is made late moves the derivative behind it") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value y = sin(x);
  Value late = exp(y);  // a direction that depends on what is differentiated
  Value t = tangents(graph, {&y, 1}, {&x, 1}, {&late, 1})[0];
  graph.add_output("t", t);
  CHECK(t.op()->position() > late.op()->position());
  CHECK_NOTHROW(verify(module));
}

TEST_CASE("jvp: tangents of a value and of what it is made of add up") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}});
  Value h = exp(x), y = neg(h);
  Value wrt[] = {x, h};
  Value v[] = {graph.add_input("vx", x.type()), graph.add_input("vh", x.type())};
  Value t = tangents(graph, {&y, 1}, wrt, v)[0];
  REQUIRE(t.op()->is("neg"));
  REQUIRE(t.op()->operand(0).op()->is("add"));
  CHECK(t.op()->operand(0).op()->operand(0) == v[1]);
  graph.add_output("t", t);
  CHECK_NOTHROW(verify(module));
}

TEST_CASE("derivatives: of the wrong type, or of what nothing depends on") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {3}}), c = graph.add_input("c", {DType::F32, {2}});
  Value y = exp(x);
  CHECK_THROWS_WITH_AS(tangents(graph, {&y, 1}, {&x, 1}, {&c, 1}), doctest::Contains("a tangent"),
                       Error);
  CHECK_THROWS_WITH_AS(vjp(graph, {&y, 1}, {&c, 1}, {&x, 1}), doctest::Contains("a cotangent"),
                       Error);
  CHECK_THROWS_WITH_AS(gradients(graph, y, {&x, 1}), doctest::Contains("float scalar"), Error);
  CHECK_FALSE(vjp(graph, {&y, 1}, {&x, 1}, {&c, 1}, Unused::Null)[0]);
  CHECK(vjp(graph, {&y, 1}, {&x, 1}, {&c, 1})[0].op()->is("full"));
  CHECK_THROWS_WITH_AS(vjp(graph, {&y, 1}, {&x, 1}, {&c, 1}, Unused::Refused),
                       doctest::Contains("%c"), Error);
}

TEST_CASE("vmap: nested, each axis in front of the last") {
  Module module;
  Graph& graph = module.add_graph("main");
  Value x = graph.add_input("x", {DType::F32, {2, 5}}), w = graph.add_input("w", {DType::F32, {5}});
  graph.add_output("y", sum(softmax(x) * w, {0}));
  vmap(graph, "inner", std::vector<std::string>{"x", "w"}, 3);
  Graph& outer = vmap(*module.find("inner"), "outer", std::vector<std::string>{"x"}, 4);
  CHECK(outer.inputs()[0].type().str() == "f32[4,3,2,5]");
  CHECK(outer.inputs()[1].type().str() == "f32[3,5]");
  CHECK(outer.outputs()[0].value.type().str() == "f32[4,3,5]");
  CHECK_NOTHROW(verify(module));
  CHECK_THROWS_AS(vmap(graph, "negative", std::vector<std::string>{"x"}, -1), Error);
}
