// A budget of half the printed activation bytes holds for the plan of whole models.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/passes/pass.h>

#include <string>

using namespace sinter;

namespace {

struct Planned {
  int64_t arena = 0;        // of @step
  int64_t activations = 0;  // as the pass prints them
};

Planned plan(const train::TrainConfig& config) {
  auto module = train::build_gpt(config)->module().clone();
  module->target = *Target::named("sm_90a");
  for (const char* name : {"eval", "sample", "init"})
    if (Graph* graph = module->find(name)) module->erase_graph(*graph);
  PassManager manager;
  manager.run(*module, default_pipeline());
  Planned found;
  found.arena = manager.plans.at("step").arena_bytes;
  const std::string before = "@step: the backward pass reads ";
  for (const Remark& r : manager.remarks())
    if (r.message.starts_with(before))
      found.activations = std::stoll(r.message.substr(before.size()));
  return found;
}

}  // namespace

TEST_CASE("recompute: the plan of a model stays under half its activation bytes") {
  for (nn::GptStyle style : {nn::GptStyle::Gpt2, nn::GptStyle::Llama})
    for (int64_t layers : {4, 12})
      for (const char* dtype : {"f32", "bf16"}) {
        train::TrainConfig config{.model = {.style = style,
                                            .layers = layers,
                                            .heads = 4,
                                            .width = 128,
                                            .vocab = 256,
                                            .context = 128},
                                  .batch = 8,
                                  .dtype = dtype};
        CAPTURE(layers);
        CAPTURE(dtype);
        CAPTURE(static_cast<int>(style));
        Planned whole = plan(config);
        REQUIRE(whole.activations > 0);
        config.recompute = fmt::format("{}", whole.activations / 2);
        Planned half = plan(config);
        CHECK(half.arena <= whole.activations / 2);
      }
}
