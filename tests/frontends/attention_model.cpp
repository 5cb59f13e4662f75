// A GPT by each choice of attention: the same numbers, and the IR that it is without the pass.

#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/attention.h>
#include <sinter/sinter.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace sinter;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLayers = 2, kHeads = 2, kHeadDim = 16, kWidth = kHeads * kHeadDim, kVocab = 40,
                  kContext = 18;

Value written_attention(const Scope& g, Value x, int64_t batch) {
  const Shape split{batch, kContext, kHeads, kHeadDim};
  std::vector<Value> parts = split_evenly(nn::linear(g / "qkv", x, 3 * kWidth), 3, -1);
  for (Value& part : parts) part = permute(reshape(part, split), {0, 2, 1, 3});
  Value s = matmul(parts[0], parts[1], false, true) / std::sqrt(double{kHeadDim});
  Value lower = tril(full(g.graph(), f32({kContext, kContext}), 1));
  s = masked_fill(s, broadcast_to(eq(lower, 0.0), s.shape()), -kInfinity);
  Value y = permute(matmul(softmax(s), parts[2]), {0, 2, 1, 3});
  return nn::linear(g / "proj", reshape(y, x.shape()), kWidth);
}

// A small GPT, of nn or with attention written out, and what a step of it gives: logits, loss and
// the gradient of each parameter.
std::unique_ptr<Model> gpt_step(bool written, std::string_view dtype) {
  constexpr int64_t kBatch = 2, kRows = kBatch * kContext;
  auto model = std::make_unique<Model>();
  Scope g = model->graph("step", Mode::Training);
  Value ids = g.input("ids", i32({kBatch, kContext})), logits;
  if (written) {
    Value x = nn::embedding(g / "wte", ids, kVocab, kWidth, init::normal(0.3));
    x = x + (g / "wpe").parameter("weight", {kContext, kWidth}, init::normal(0.3));
    x = reshape(x, {kRows, kWidth});
    for (int64_t i = 0; i < kLayers; ++i) {
      Scope block = g / fmt::format("block{}", i);
      x = x + written_attention(block, nn::layer_norm(block / "ln1", x), kBatch);
      Value h = gelu(nn::linear(block / "up", nn::layer_norm(block / "ln2", x), 2 * kWidth));
      x = x + nn::linear(block / "down", h, kWidth);
    }
    logits = nn::linear(g / "head", nn::layer_norm(g / "ln", x), kVocab);
  } else {
    logits = nn::gpt(g, ids,
                     {.layers = kLayers,
                      .heads = kHeads,
                      .width = kWidth,
                      .vocab = kVocab,
                      .context = kContext});
  }
  g.output("logits", logits);
  Value targets = g.input("targets", i32({kBatch, kContext}));
  Value loss = cross_entropy(logits, reshape(targets, {kRows})).loss;
  g.output("loss", loss);
  minimize(loss, g.parameters(), AdamW{});
  g.graph().attributes["keep_gradients"] = true;
  autocast(g, dtype);
  return model;
}

struct Step {
  Bindings results;
  int kernels = 0;  // ops of attention that have one
  int fused = 0;
};
// As the interpreter runs it for Hopper: what has a kernel there, by its composed meaning.
Step run_gpt(const Model& model, AttentionChoice choice) {
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  options.target = "sm_90a";
  choose_attention(options, choice);
  Program program(model, options);
  program.init(5);
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < 2 * kContext; ++i) {
    ids.push_back(static_cast<int32_t>(i * i % kVocab));
    targets.push_back(static_cast<int32_t>((i * i + 7 * i) % kVocab));
  }
  const Shape shape{2, kContext};
  Step out;
  out.results = program.run("step", {{"ids", Tensor::from<int32_t>(shape, ids)},
                                     {"targets", Tensor::from<int32_t>(shape, targets)},
                                     {"lr", Tensor::scalar(0.0F)}});
  for (const Op& op : *program.executable().module().find("step"))
    out.kernels += (op.is("attention") || op.is("attention_backward")) && !op.native().empty();
  for (const Remark& r : program.executable().remarks())
    out.fused += r.pass == "fuse-attention" && r.message.starts_with("fused:");
  return out;
}

// ||a - b|| / ||b||
double distance(const Tensor& a, const Tensor& b) {
  double off = 0, size = 0;
  for (int64_t i = 0; i < b.size(); ++i) {
    off += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
    size += b.at(i) * b.at(i);
  }
  return std::sqrt(off / size);
}

// The module after the pipeline.
std::string lowered(const Model& model, const CompileOptions& options, bool with_pass) {
  std::unique_ptr<Module> module = model.module().clone();
  if (!options.target.empty()) module->target = Target::named(options.target).value();
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

TEST_CASE("attention: flash equals composed in logits, loss and every gradient of a GPT") {
  for (bool written : {true, false})
    for (const char* dtype : {"f32", "bf16"}) {
      CAPTURE(written);
      CAPTURE(std::string(dtype));
      const bool f32 = std::string(dtype) == "f32";
      const std::unique_ptr<Model> model = gpt_step(written, dtype);
      // No kernel of attention makes f32: there the op stands for itself.
      const Step composed = run_gpt(*model, AttentionChoice::Composed);
      const Step flash = run_gpt(*model, f32 ? AttentionChoice::Auto : AttentionChoice::Flash);
      CHECK(composed.fused == 0);
      CHECK(composed.kernels == 0);
      CHECK(flash.fused == (written ? kLayers : 0));
      CHECK(flash.kernels == (f32 ? 0 : 2 * kLayers));
      CHECK(flash.results.size() == 2 + model->parameters().size());
      // In bf16 either way rounds where the other does not: a few of its 8 bits.
      double worst = 0;
      for (const auto& entry : composed.results) {
        const double off = distance(flash.results.at(entry.first), entry.second);
        CHECK_MESSAGE(off <= (f32 ? 1e-5 : 2e-2), entry.first);
        worst = std::max(worst, off);
      }
      MESSAGE(fmt::format("{}, {}: at most {:.2e}", written ? "written out" : "nn", dtype, worst));
    }
}

TEST_CASE("attention: composed leaves the IR as it is without the pass") {
  CompileOptions options;
  choose_attention(options, AttentionChoice::Composed);
  CHECK(options.disabled == std::vector<std::string>{"fuse-attention"});
  const std::unique_ptr<Model> of_nn = gpt_step(false, "f32");
  CHECK(lowered(*of_nn, options, true) == lowered(*of_nn, {}, false));
  // Attention that is written out would not be the same with the pass.
  for (const char* dtype : {"f32", "bf16"})
    for (const char* target : {"host", "sm_90a"}) {
      CAPTURE(std::string(dtype));
      CAPTURE(target);
      const std::unique_ptr<Model> model = gpt_step(true, dtype);
      CompileOptions automatic;
      automatic.target = options.target = target;
      const std::string without = lowered(*model, automatic, false);
      CHECK(lowered(*model, options, true) == without);
      CHECK(lowered(*model, automatic, true) != without);
    }
}
