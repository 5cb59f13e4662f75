#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/pass.h>

#include <algorithm>

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
