// What changes every step is a value, not a constant of the compile: the learning rate, the count
// of updates (MP-02), the step and the seed of random numbers (DR-03).

#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/cases/devices.h>

#include <array>
#include <cmath>

using namespace sinter;

namespace {

// p, with gradient 1 always, updated by AdamW at the rate given with each step.
Module training() {
  Module module;
  for (const char* name : {"p", "m", "v"}) module.states.push_back({name, {DType::F32, {}}});
  module.states.push_back({"t", {DType::I32, {}}});
  Graph& graph = module.add_graph("step");
  std::array<Value, 3> state;
  for (size_t i = 0; i < 3; ++i)
    state[i] = graph.add_input(module.states[i].name, module.states[i].type);
  const Value t = graph.add_input("t", {DType::I32, {}}) + 1;
  const Value lr = graph.add_input("lr", {DType::F32, {}});
  const Value g = full(graph, {DType::F32, {}}, 1.0);
  const AdamWResult next = adamw(state[0], g, state[1], state[2], t, lr);
  graph.add_output("p", next.p);
  graph.add_output("m", next.m);
  graph.add_output("v", next.v);
  graph.add_output("t", t);
  return module;
}

float after_ten_steps(Session& session, bool ramp) {
  session.set_state("p", Tensor::scalar(1.0f));
  session.set_state("m", Tensor::scalar(0.0f));
  session.set_state("v", Tensor::scalar(0.0f));
  session.set_state("t", Tensor::scalar<int32_t>(0));
  for (int step = 1; step <= 10; ++step)
    session.run("step", {{"lr", Tensor::scalar(ramp ? 1e-3f * static_cast<float>(step) : 1e-3f)}});
  CHECK(session.state("t").at(0) == 10);
  return *session.state("p").as<float>();
}

Module masking() {
  Module module;
  Graph& graph = module.add_graph("step");
  const Value seed = graph.add_input("seed", {DType::U32, {2}});
  const Value step = graph.add_input("step", {DType::U32, {}});
  const Value offset = graph.add_input("offset", {DType::I64, {}});
  const Value ones = full(graph, {DType::F32, {1000}}, 1.0);
  graph.add_output("y", dropout(ones, seed, step, offset, 0.5));
  return module;
}

std::array<Tensor, 3> three_masks(Session& session, uint32_t seed) {
  std::array<Tensor, 3> masks;
  for (uint32_t step = 1; step <= 3; ++step)
    masks[step - 1] = session
                          .run("step", {{"seed", Tensor::from<uint32_t>({2}, {seed, 0u})},
                                        {"step", Tensor::scalar(step)},
                                        {"offset", Tensor::scalar<int64_t>(0)}})
                          .at("y");
  return masks;
}

}  // namespace

TEST_CASE("MP-02: step count and learning rate move on without a compilation") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    auto executable = compile(training(), {.device = device});
    const int compiled = executable->stats().compiled;
    auto session = make_session(executable);
    // A count frozen at 1 would give 0.9825192.
    CHECK(std::abs(after_ten_steps(*session, false) - 0.9900000001) < 1e-6);
    CHECK(std::abs(after_ten_steps(*session, true) - 0.94500000055) < 1e-6);
    CHECK(executable->stats().compiled == compiled);
  }
}

TEST_CASE("DR-03: a new mask every step, the same sequence for the same seed") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    auto executable = compile(masking(), {.device = device});
    auto session = make_session(executable);
    const auto first = three_masks(*session, 7);
    CHECK_FALSE(first[0].same_bits(first[1]));
    CHECK_FALSE(first[1].same_bits(first[2]));
    CHECK_FALSE(first[0].same_bits(first[2]));
    auto restarted = make_session(executable);
    const auto again = three_masks(*restarted, 7);
    const auto other = three_masks(*restarted, 8);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(first[i].same_bits(again[i]));
      CHECK_FALSE(first[i].same_bits(other[i]));
    }
  }
}
