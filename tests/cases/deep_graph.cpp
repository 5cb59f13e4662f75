// AD-21: a chain of 20480 ops is built, differentiated, printed, parsed, compiled, run and freed on
// a thread whose stack is 512 KiB: nothing walks the graph by recursion.

#include <doctest/doctest.h>
#include <pthread.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/autodiff.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/cases/devices.h>
#include <sinter/tests/support.h>

#include <string>

using namespace sinter;

namespace {

constexpr int kDepth = 20480;

void run_on(DeviceKind device, const Module& module) {
  auto executable = compile(module, {.device = device});
  auto session = make_session(executable);
  const Bindings outputs = session->run("chain", {{"x", Tensor::full({DType::F32, {4}}, 1.0)}});
  for (double v : outputs.at("y").to_doubles()) CHECK(v == 21.0);
  for (double v : outputs.at("dx").to_doubles()) CHECK(v == 1.0);
}

void chain() {
  Module module;
  Graph& graph = module.add_graph("chain");
  const Value x = graph.add_input("x", {DType::F32, {4}});
  Value y = x;
  for (int i = 0; i < kDepth; ++i) y = y + 0x1p-10;
  graph.add_output("y", y);
  const Value loss = sum(y);
  graph.add_output("dx", gradients(graph, loss, std::span(&x, 1))[0]);

  const std::string text = print(module);
  const auto again = parse_module(text, "chain.sir");
  CHECK(print(*again) == text);
  for (DeviceKind device : test::devices_here())
    if (device != DeviceKind::Cuda) run_on(device, *again);
}

// Runs `body` on a thread with that stack; what it throws comes back as text.
std::string on_stack_of(size_t bytes, void (*body)()) {
  struct Call {
    void (*body)();
    std::string error;
  } call{body, {}};
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  pthread_t thread;
  auto start = [](void* argument) -> void* {
    auto* c = static_cast<Call*>(argument);
    try {
      c->body();
    } catch (const std::exception& e) {
      c->error = e.what();
    }
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, start, &call) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return call.error;
}

}  // namespace

TEST_CASE("AD-21: a deep graph on a small stack") {
  CHECK(on_stack_of(test::kSmallStack, chain) == "");
}
