// CompileOptions by the choice of attention, and what a GPT's training compiles to by it.

#include <sinter/frontends/train/trainer.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/attention.h>
#include <sinter/sinter.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

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
std::string lowered(const CompileOptions& options) {
  std::unique_ptr<Module> module = small_model()->module().clone();
  PassManager manager;
  manager.disabled = options.disabled;
  std::vector<PipelineStep> steps =
      options.pipeline.empty() ? default_pipeline() : options.pipeline;
  manager.run(*module, steps);
  return print(*module);
}

// A block with attention as people write it, which learns to repeat what stood before.
struct Training {
  std::vector<double> losses;
  bool fused = false;
};
Training train_written(AttentionChoice choice, std::string_view dtype) {
  constexpr int64_t kBatch = 2, kLength = 9, kHeads = 2, kWidth = 8, kHeadDim = kWidth / kHeads;
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value x = g.input("x", f32({kBatch, kLength, kWidth}));
  Value qkv = nn::linear(g / "qkv", x, 3 * kWidth);
  std::vector<Value> parts = split_evenly(qkv, 3, -1);
  for (Value& part : parts) part = reshape(part, {kBatch, kLength, kHeads, kHeadDim});
  Value s = einsum("bqhd,bkhd->bhqk", {parts[0], parts[1]}) / std::sqrt(double{kHeadDim});
  Value mask = triu(full(g.graph(), f32({kLength, kLength}), -1e9), 1);
  Value p = g.dropout(softmax(s + mask), 0.2);
  Value y = reshape(einsum("bhqk,bkhd->bqhd", {p, parts[2]}), {kBatch, kLength, kWidth});
  y = nn::linear(g / "proj", y, kWidth);
  Value loss = mean(square(slice_axis(y, 1, 1, kLength) - slice_axis(x, 1, 0, kLength - 1)));
  g.output("loss", loss);
  minimize(loss, g.parameters(), AdamW{});
  autocast(g, dtype);

  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  choose_attention(options, choice);
  Program program(model, options);
  program.init(3);
  std::vector<double> values(static_cast<size_t>(kBatch * kLength * kWidth));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i * i));
  Bindings in{{"x", Tensor::from_doubles(x.type(), values)}, {"lr", Tensor::scalar(0.02F)}};
  Training out;
  for (int step = 0; step < 5; ++step)
    out.losses.push_back(program.run("step", in).at("loss").at(0));
  for (const Remark& r : program.executable().remarks())
    out.fused = out.fused || (r.pass == "fuse-attention" && r.message.starts_with("fused:"));
  return out;
}

}  // namespace

TEST_CASE("attention: a model trains alike with attention written out and as one op") {
  for (const char* dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    Training composed = train_written(AttentionChoice::Composed, dtype);
    Training fused = train_written(AttentionChoice::Auto, dtype);
    CHECK(!composed.fused);
    CHECK(fused.fused);
    double allowed = std::string(dtype) == "f32" ? 1e-5 : 5e-3;
    for (size_t i = 0; i < fused.losses.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(fused.losses[i] - composed.losses[i]) <= allowed * composed.losses[i]);
    }
    CHECK(fused.losses.back() < fused.losses.front());
  }
}

TEST_CASE("attention: flash is refused where the target has no kernel, with the reason") {
  CompileOptions options;
  choose_attention(options, AttentionChoice::Flash);
  CHECK_THROWS_WITH_AS(
      lowered(options),
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
