// CompileOptions by the choice of attention, and what a GPT's training compiles to by it.

#include <doctest/doctest.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/attention.h>

using namespace sinter;

namespace {

std::unique_ptr<Model> small_model() {
  train::TrainConfig config;
  config.model.layers = 1;
  config.model.heads = 2;
  config.model.width = 8;
  config.model.context = 6;
  config.batch = 2;
  return train::build_gpt(config);
}

// The module after the pipeline.
std::string lowered(const CompileOptions& options, bool with_pass) {
  std::unique_ptr<Module> module = small_model()->module().clone();
  PassManager manager;
  manager.disabled = options.disabled;
  std::vector<PipelineStep> steps =
      options.pipeline.empty() ? default_pipeline() : options.pipeline;
  if (!with_pass)
    std::erase_if(steps, [](const auto& step) { return step.pass->name == "fuse-attention"; });
  manager.run(*module, steps);
  return print(*module);
}

}  // namespace

TEST_CASE("attention: composed leaves the IR as it is without the pass") {
  CompileOptions options;
  choose_attention(options, AttentionChoice::Composed);
  CHECK(options.disabled == std::vector<std::string>{"fuse-attention"});
  CHECK(lowered(options, true) == lowered({}, false));
}

TEST_CASE("attention: flash is refused where the target has no kernel, with the reason") {
  CompileOptions options;
  choose_attention(options, AttentionChoice::Flash);
  CHECK_THROWS_WITH_AS(
      lowered(options, true),
      doctest::Contains("host has no attention kernel for q: f32[2,2,6,4], v: f32[2,2,6,4]"),
      Error);
  options.device = DeviceKind::Reference;
  CHECK_THROWS_WITH_AS(choose_attention(options, AttentionChoice::Flash),
                       doctest::Contains("the device reference runs no kernels"), Error);
}

TEST_CASE("attention: choices have names") {
  CHECK(parse_attention("auto") == AttentionChoice::Auto);
  CHECK(parse_attention("composed") == AttentionChoice::Composed);
  CHECK(parse_attention("flash") == AttentionChoice::Flash);
  CHECK(!parse_attention("Flash"));
  train::TrainConfig config;
  config.attention = "some";
  CHECK_THROWS_WITH_AS(config.check(), doctest::Contains("attention must be auto"), Error);
}
