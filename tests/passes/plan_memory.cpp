#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/plan.h>

using namespace sinter;

namespace {

constexpr const char* kText = R"(graph @main(%x: f32[64]) -> f32[64] {
  %a = exp %x : f32[64]
  %b = sin %a : f32[64]
  %c = neg %b : f32[64]
  %d = add %c, %a : f32[64]
  return %d
})";

PlannedValue& entry(MemoryPlan& plan, const char* name) {
  for (PlannedValue& p : plan.values)
    if (p.value.name() == name) return p;
  FAIL("no value " << name);
  return plan.values[0];
}

}  // namespace

TEST_CASE("plan: values that live at once have bytes of their own") {
  auto module = parse_module(kText, "t.sir");
  MemoryPlan plan = plan_memory(*module->find("main"));
  plan.check();
  CHECK(plan.arena_bytes == 3 * 256);
  CHECK(plan.input_bytes == 256);
  CHECK(plan.output_bytes == 256);
  const PlannedValue* d = plan.find(module->find("main")->outputs()[0].value);
  REQUIRE(d != nullptr);
  CHECK(d->where == PlannedValue::Output);
  CHECK(d->index == 0);
}

TEST_CASE("plan: check finds an overlap") {
  auto module = parse_module(kText, "t.sir");
  MemoryPlan plan = plan_memory(*module->find("main"));
  entry(plan, "b").offset = entry(plan, "a").offset;
  CHECK_THROWS_AS(plan.check(), InternalError);
}

TEST_CASE("plan: check finds a value outside the arena, unaligned, or alias of nothing") {
  auto module = parse_module(kText, "t.sir");
  MemoryPlan good = plan_memory(*module->find("main"));
  MemoryPlan plan = good;
  entry(plan, "c").offset = plan.arena_bytes;
  CHECK_THROWS_AS(plan.check(), InternalError);
  plan = good;
  entry(plan, "a").offset += 4;
  CHECK_THROWS_AS(plan.check(), InternalError);
  plan = good;
  entry(plan, "c").where = PlannedValue::Alias;
  entry(plan, "c").index = 1000;
  CHECK_THROWS_AS(plan.check(), InternalError);
}

TEST_CASE("plan: without sharing every value has bytes of its own") {
  auto module = parse_module(kText, "t.sir");
  MemoryPlan plan = plan_memory(*module->find("main"), false);
  plan.check();
  CHECK(entry(plan, "a").offset == 0);
  CHECK(entry(plan, "b").offset == 256);
  CHECK(entry(plan, "c").offset == 512);
}

TEST_CASE("plan: random lifetimes never overlap") {
  // A graph whose values die in another order than they are made.
  Module module;
  Graph& graph = module.add_graph("main");
  std::vector<Value> live = {graph.add_input("x", {DType::F32, {16}})};
  uint64_t state = 12345;
  auto random = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % n;
  };
  for (int i = 0; i < 600; ++i) {
    Value a = live[random(live.size())], b = live[random(live.size())];
    Value v = reshape(a, {a.type().elements()});
    if (random(3) == 0)
      v = concat({v, reshape(b, {b.type().elements()})}, 0);
    else if (random(3) == 0)
      v = exp(v);
    if (v.type().elements() > 4096) v = slice_axis(v, 0, 0, 64);
    if (live.size() > 12) live.erase(live.begin() + static_cast<int64_t>(random(live.size())));
    live.push_back(v);
  }
  for (Value v : live) graph.add_output("", v);
  for (bool share : {true, false}) {
    MemoryPlan plan = plan_memory(graph, share);
    CHECK_NOTHROW(plan.check());
  }
  CHECK(plan_memory(graph, true).arena_bytes < plan_memory(graph, false).arena_bytes);
}
