#include <doctest/doctest.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/detail/recomputation.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <cmath>

using namespace sinter;

namespace {

constexpr int kBlocks = 24;
constexpr int64_t kRows = 8192, kWidth = 1024, kHidden = 4096;

// x = x + gelu(x w1) w2, `kBlocks` times, each a segment.
std::unique_ptr<Module> blocks() {
  auto module = std::make_unique<Module>();
  module->target = *Target::named("sm_90a");
  Graph& graph = module->add_graph("step");
  auto bf16 = [](Shape shape) { return TensorType{DType::BF16, std::move(shape)}; };
  Value x = graph.add_input("x", bf16({kRows, kWidth}));
  std::vector<std::string> wrt;
  for (int i = 0; i < kBlocks; ++i) {
    for (int k : {1, 2}) wrt.push_back(fmt::format("w{}.{}", k, i));
    Value w1 = graph.add_input(wrt[wrt.size() - 2], bf16({kWidth, kHidden}));
    Value w2 = graph.add_input(wrt.back(), bf16({kHidden, kWidth}));
    graph.set_current_segment(fmt::format("block{}", i));
    x = x + matmul(gelu(matmul(x, w1)), w2);
    graph.set_current_segment("");
  }
  graph.add_output("l", sum(cast(x, DType::F32)));
  graph.attributes["loss"] = std::string("l");
  graph.attributes["wrt"] = wrt;
  return module;
}

int64_t arena(bool with_recompute, std::vector<std::string> disabled = {}) {
  auto module = blocks();
  PassManager manager;
  manager.disabled = std::move(disabled);
  if (!with_recompute) manager.disabled.push_back("recompute");
  manager.run(*module, default_pipeline());
  return manager.plans.at("step").arena_bytes;
}

}  // namespace

TEST_CASE("recompute: RC-01 one block's inner activations in place of all") {
  const int64_t inner = kRows * kHidden * 2, stream = kRows * kWidth * 2;
  int64_t off = arena(false), on = arena(true);
  CAPTURE(off);
  CAPTURE(on);
  // Off: every block keeps what gelu reads, and its input. On: the inputs, and one block's inside
  // with the gradients that flow through it.
  CHECK(off > kBlocks * (inner + stream));
  CHECK(on < kBlocks * stream + 6 * inner);
}

TEST_CASE("recompute: the peak falls without fusion too") {
  const int64_t inner = kRows * kHidden * 2;
  CHECK(arena(true, {"fuse"}) < arena(false, {"fuse"}) - (kBlocks - 4) * inner);
}

namespace {

// A chain of equal blocks, `group` of them a segment (0: none), trained on a sum.
std::unique_ptr<Module> chain(int count, int64_t group, int64_t budget = -1) {
  auto module = std::make_unique<Module>();
  module->target = *Target::named("sm_90a");
  Graph& graph = module->add_graph("step");
  auto f32 = [](Shape shape) { return TensorType{DType::F32, std::move(shape)}; };
  Value x = graph.add_input("x", f32({512, 64}));
  std::vector<std::string> wrt;
  for (int i = 0; i < count; ++i) {
    wrt.push_back(fmt::format("u{}", i));
    Value w1 = graph.add_input(wrt.back(), f32({64, 256}));
    wrt.push_back(fmt::format("v{}", i));
    Value w2 = graph.add_input(wrt.back(), f32({256, 64}));
    if (group > 0) graph.set_current_segment(fmt::format("s{}", i / group));
    x = x + matmul(gelu(matmul(x, w1)), w2);
    graph.set_current_segment("");
  }
  graph.add_output("l", sum(x));
  graph.attributes["loss"] = std::string("l");
  graph.attributes["wrt"] = wrt;
  if (budget >= 0) graph.attributes["recompute_budget"] = budget;
  return module;
}

struct Measured {
  double flops = 0;
  int64_t arena = 0, activations = 0;
};
Measured measure(Module& module) {
  Measured m;
  PassManager manager;
  std::vector<PipelineStep> steps = default_pipeline();
  auto expand = std::find_if(steps.begin(), steps.end(),
                             [](const PipelineStep& s) { return s.pass->name == "expand"; });
  manager.run(module, {steps.begin(), expand});
  for (Op& op : *module.find("step")) m.flops += op.def().cost(op).flops;
  m.activations = detail::activation_bytes(*module.find("step"));
  manager.run(module, {expand, steps.end()});
  m.arena = manager.plans.at("step").arena_bytes;
  return m;
}

}  // namespace

TEST_CASE("recompute: segments of the root of a chain keep its root, for a third more work") {
  std::vector<double> per_root;
  for (int count : {16, 64, 256}) {
    CAPTURE(count);
    auto root = static_cast<int64_t>(std::lround(std::sqrt(count)));
    Measured plain = measure(*chain(count, 0)), less = measure(*chain(count, root));
    CHECK(less.flops / plain.flops <= 1.34);
    per_root.push_back(static_cast<double>(less.arena) / static_cast<double>(root));
    MESSAGE(count << " blocks: " << plain.arena << " to " << less.arena << " bytes, "
                  << less.flops / plain.flops << " times the work");
  }
  for (double bytes : per_root) CHECK(bytes == doctest::Approx(per_root[1]).epsilon(0.1));
}

TEST_CASE("recompute: half the activation bytes as a budget") {
  int64_t all = 0;
  Measured plain;
  {
    auto module = chain(24, 0);
    plain = measure(*module);
    all = plain.activations;
  }
  for (int64_t budget : {all / 2, all / 4}) {
    CAPTURE(budget);
    Measured less = measure(*chain(24, 0, budget));
    MESSAGE(budget << ": " << plain.arena << " to " << less.arena << " bytes, "
                   << less.flops / plain.flops << " times the work");
    CHECK(less.arena <= budget);
  }
  CHECK_THROWS_WITH_AS(measure(*chain(24, 0, 10)), doctest::Contains("is the least"), Error);
}
