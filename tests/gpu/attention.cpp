// Attention as a graph, by each kernel that takes it, against f64 and the composed path.

#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/attention.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/sinter.h>
#include <sinter/tests/gpu/attention_case.h>
#include <sinter/tests/gpu/support.h>

#include <algorithm>
#include <cmath>
#include <map>

using namespace sinter;
using namespace sinter::test;

namespace {

// Each option, and some together, on sequences of about `queries` and `keys` places.
std::vector<AttentionCase> option_cases(int64_t queries, int64_t keys, int64_t dim) {
  const AttentionCase plain{.batch = 2,
                            .heads = 6,
                            .kv_heads = 2,
                            .queries = queries,
                            .keys = keys,
                            .dim = dim,
                            .value_dim = dim};
  std::vector<AttentionCase> cases;
  auto add = [&](const char* name, AttentionAttrs attrs = {}) -> AttentionCase& {
    cases.push_back(plain);
    cases.back().name = name;
    cases.back().attrs = attrs;
    return cases.back();
  };
  const auto length = static_cast<int32_t>(keys);
  const int64_t window = keys / 3;
  add("full");
  add("causal", {.causal = true});
  AttentionCase& more = add("more_queries_than_keys", {.causal = true});
  std::swap(more.queries, more.keys);
  add("window", {.window = window});
  add("causal_window", {.causal = true, .window = window});
  add("window_of_2", {.causal = true, .window = 2}).few_keys = true;
  add("softcap", {.softcap = 0.8});
  add("scale", {.causal = true, .scale = 0.31});
  add("mask").mask = true;
  add("bias").bias = true;
  add("causal_bias", {.causal = true}).bias = true;
  add("lengths").lengths = {length - 1, length / 2};
  add("causal_lengths", {.causal = true}).lengths = {length / 2, 0};
  for (bool causal : {false, true}) {
    AttentionCase& packed = add(causal ? "causal_documents" : "documents", {.causal = causal});
    packed.queries = packed.keys;
    packed.documents = {length / 2, 1, length / 4, 3};
  }
  add("slopes").slopes = true;
  add("causal_slopes", {.causal = true}).slopes = true;
  add("dropout", {.p = 0.2});
  add("causal_dropout", {.causal = true, .p = 0.5});
  AttentionCase& odd = add("odd_heads", {.causal = true, .p = 0.1});
  odd.heads = odd.kv_heads = 5;
  odd.keys = keys - 3;  // rows of dropout's bits begin anywhere
  add("wider_values", {.causal = true}).value_dim = 2 * dim;
  add("narrower_values").value_dim = dim - 8 > 0 ? dim - 8 : 8;
  AttentionCase& all =
      add("all_together", {.causal = true, .window = window, .softcap = 1.5, .p = 0.2});
  all.mask = all.bias = all.slopes = true;
  all.lengths = {length, length / 2};
  AttentionCase& rich = add(
      "many_together", {.causal = true, .scale = 0.2, .window = window, .softcap = 1.5, .p = 0.2});
  rich.slopes = true;
  rich.lengths = {length, length / 2};
  return cases;
}

void check_answer(const AttentionCase& c, const std::array<double, 4>& errors, double limit) {
  CAPTURE(c.name);
  for (size_t i = 0; i < errors.size(); ++i) {
    CAPTURE(kAttentionResults[i]);
    CHECK(errors[i] <= limit);
  }
}

// Lengths around tiles and beyond them, odd head counts, and sizes of heads.
std::vector<AttentionCase> size_cases() {
  std::vector<AttentionCase> cases;
  auto add = [&](const std::string& name, int64_t length, int64_t dim, bool causal) {
    cases.push_back({.name = fmt::format("{}_{}_{}_{}", name, length, dim, causal),
                     .queries = length,
                     .keys = length,
                     .dim = dim,
                     .value_dim = dim,
                     .attrs = {.causal = causal}});
    return &cases.back();
  };
  for (int64_t length : {1, 63, 64, 65, 127, 128, 129, 130, 257, 1000}) {
    AttentionCase* c = add("length", length, 64, true);
    c->few_keys = length == 1;
    c = add("length", length, 128, length % 2 == 0);
    c->heads = c->kv_heads = 7;
    c->few_keys = length == 1;
  }
  add("length", 4096, 64, true);
  add("length", 4096, 128, false)->attrs = {.causal = true, .window = 1000};
  for (int64_t dim : {16, 40, 80, 96, 192, 256}) add("head", 200, dim, true);
  return cases;
}

struct Kind {
  const char* name;
  DType type;
  std::string use;  // a kernel asked for by name
  bool composed = false, unordered = false;
};

CompileOptions options_of(const Kind& kind) {
  CompileOptions options;
  options.device = DeviceKind::Cuda;
  if (kind.composed) choose_attention(options, AttentionChoice::Composed);
  if (kind.use.empty() && !kind.unordered) return options;
  options.pipeline = default_pipeline();
  for (PipelineStep& step : options.pipeline) {
    if (step.pass->name != "native") continue;
    if (!kind.use.empty()) step.options["use"] = kind.use;
    if (kind.unordered) step.options["unordered"] = "attention_backward";
  }
  return options;
}

// The kernel that shall have an op of a case.
std::string kernel_of(const Kind& kind, const AttentionCase& c, bool backward,
                      const std::string& arch) {
  if (kind.composed || !kind.use.empty()) return kind.use;
  const bool hopper =
      arch == "sm_90a" && !c.mask && !c.bias && (!backward || std::max(c.dim, c.value_dim) <= 128);
  return fmt::format("{}{}", hopper ? "hopper" : "portable",
                     backward && kind.unordered ? "_unordered" : "");
}

// Whether the ops of all cases have the kernels that they shall have.
void check_kernels(const Kind& kind, const std::vector<AttentionCase>& cases,
                   const Module& compiled) {
  CAPTURE(kind.name);
  for (const AttentionCase& c : cases) {
    CAPTURE(c.name);
    int ops = 0;
    for (const Op& op : *compiled.find(c.name)) {
      if (!op.is("attention") && !op.is("attention_backward")) continue;
      CHECK(op.native() == kernel_of(kind, c, op.is("attention_backward"), compiled.target.arch));
      ++ops;
    }
    CHECK(ops == (kind.composed ? 0 : 2));
  }
}

std::vector<AttentionCase> device_cases() {
  std::vector<AttentionCase> cases = option_cases(130, 200, 64);
  for (AttentionCase& c : size_cases()) cases.push_back(std::move(c));
  return cases;
}
const Kind kKinds[] = {
    {"f32 composed", DType::F32, "", true},           {"f32 plain", DType::F32, "plain"},
    {"bf16 composed", DType::BF16, "", true},         {"bf16", DType::BF16, ""},
    {"bf16 unordered", DType::BF16, "", false, true}, {"bf16 portable", DType::BF16, "portable"}};

// A GPT of three blocks with dropout; so many of them are a recompute segment.
std::unique_ptr<Model> small_gpt(int64_t recompute_group) {
  nn::GptConfig config{.layers = 3, .heads = 2, .width = 128, .vocab = 64, .context = 96};
  config.dropout = 0.25;
  config.recompute_group = recompute_group;
  auto model = std::make_unique<Model>();
  Scope g = model->graph("step", Mode::Training);
  Value logits = nn::gpt(g, g.input("ids", i32({2, 96})), config);
  Value targets = reshape(g.input("targets", i32({2, 96})), {192});
  Value loss = cross_entropy(logits, targets).loss;
  g.output("loss", loss);
  minimize(loss, g.parameters(), AdamW{});
  g.graph().attributes["keep_gradients"] = true;
  autocast(g, "bf16");
  return model;
}
int forward_kernels(const Module& compiled) {
  int count = 0;
  for (const Op& op : *compiled.find("step")) count += op.is("attention") && !op.native().empty();
  return count;
}
void lower(Module& module, const CompileOptions& options) {
  module.target = Target::named("sm_90a").value();
  PassManager manager;
  manager.disabled = options.disabled;
  manager.run(module, options.pipeline.empty() ? default_pipeline() : options.pipeline);
}

}  // namespace

TEST_CASE("attention as a graph: every option near the f64 reference, interpreted") {
  const std::vector<AttentionCase> cases = option_cases(7, 12, 8);
  Module module;
  for (const AttentionCase& c : cases) add_attention(module, c, DType::F32);
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  auto session = make_session(compile(module, options));
  for (const AttentionCase& c : cases)
    check_answer(c,
                 attention_errors(session->run(c.name, attention_inputs(c, DType::F32)),
                                  attention_answer(c)),
                 1e-5);
}

TEST_CASE("attention as a graph: Hopper's kernels take what they are meant for") {
  const std::vector<AttentionCase> cases = device_cases();
  for (const Kind& kind : kKinds) {
    Module module;
    for (const AttentionCase& c : cases) add_attention(module, c, kind.type);
    lower(module, options_of(kind));
    check_kernels(kind, cases, module);
  }
}

TEST_CASE("attention as a graph: a recomputed block runs its kernel again") {
  CompileOptions options;
  choose_attention(options, AttentionChoice::Flash);
  for (int64_t group : {0, 1}) {
    std::unique_ptr<Module> module = small_gpt(group)->module().clone();
    lower(*module, options);
    CHECK(forward_kernels(*module) == (group > 0 ? 6 : 3));
  }
}

#ifdef SINTER_HAVE_CUDA

namespace {

// The errors of all cases by one kind, each in the order of `cases`.
std::vector<std::array<double, 4>> errors_of(const Kind& kind,
                                             const std::vector<AttentionCase>& cases,
                                             const std::vector<AttentionAnswer>& answers) {
  Module module;
  for (const AttentionCase& c : cases) add_attention(module, c, kind.type);
  auto executable = compile(module, options_of(kind));
  check_kernels(kind, cases, executable->module());
  auto session = make_session(executable);
  std::vector<std::array<double, 4>> errors;
  for (size_t i = 0; i < cases.size(); ++i)
    errors.push_back(attention_errors(
        session->run(cases[i].name, attention_inputs(cases[i], kind.type)), answers[i]));
  return errors;
}

// Its loss and gradients.
Bindings trained(int64_t recompute_group) {
  const std::unique_ptr<Model> model = small_gpt(recompute_group);
  CompileOptions options;
  options.device = DeviceKind::Cuda;
  choose_attention(options, AttentionChoice::Flash);
  Program program(*model, options);
  program.init(3);
  CHECK(forward_kernels(program.executable().module()) == (recompute_group > 0 ? 6 : 3));
  std::vector<int32_t> ids, wanted;
  for (int i = 0; i < 192; ++i) {
    ids.push_back(i * i % 64);
    wanted.push_back((i * i + 3) % 64);
  }
  return program.run("step", {{"ids", Tensor::from<int32_t>({2, 96}, ids)},
                              {"targets", Tensor::from<int32_t>({2, 96}, wanted)},
                              {"lr", Tensor::scalar(0.01F)}});
}

}  // namespace

TEST_CASE("attention on the device: every option and size near f64, by each kernel") {
  SINTER_NEEDS_GPU();
  const std::vector<AttentionCase> cases = device_cases();
  std::vector<AttentionAnswer> answers;
  for (const AttentionCase& c : cases) answers.push_back(attention_answer(c));

  for (const Kind& kind :
       {Kind{"f32 composed", DType::F32, "", true}, Kind{"f32 plain", DType::F32, "plain"}}) {
    const auto errors = errors_of(kind, cases, answers);
    CAPTURE(kind.name);
    for (size_t i = 0; i < cases.size(); ++i) check_answer(cases[i], errors[i], 1e-5);
  }

  const auto composed = errors_of({"bf16 composed", DType::BF16, "", true}, cases, answers);
  for (const Kind& kind :
       {Kind{"bf16", DType::BF16, ""}, Kind{"bf16 portable", DType::BF16, "portable"}}) {
    const auto errors = errors_of(kind, cases, answers);
    CAPTURE(kind.name);
    // The worst ratio of each result, and of those with few keys.
    std::map<std::string, std::pair<double, std::string>> worst;
    for (size_t i = 0; i < cases.size(); ++i) {
      const AttentionCase& c = cases[i];
      CAPTURE(c.name);
      for (size_t r = 0; r < errors[i].size(); ++r) {
        CAPTURE(kAttentionResults[r]);
        const double own = errors[i][r], other = composed[i][r];
        const bool few = c.few_keys && (r == 1 || r == 2);
        // Below a tenth of the rounding of bf16 no ratio means anything.
        CHECK(own <= std::max((few ? 2 : 1.5) * other, 2e-4));
        const double ratio = own / std::max(other, 2e-4);
        auto& entry = worst[fmt::format("{}{}", kAttentionResults[r], few ? ", few keys" : "")];
        if (ratio > entry.first) entry = {ratio, c.name};
      }
    }
    for (const auto& entry : worst)
      MESSAGE(fmt::format("{}: {}: at most {:.2f} of the composed path's error ({})", kind.name,
                          entry.first, entry.second.first, entry.second.second));
  }
}

TEST_CASE("attention on the device: dropout recomputed is the same bits") {
  SINTER_NEEDS_GPU();
  if (cuda::Device::get().info().major < 8) SINTER_SKIP("no kernel before sm_80");
  const Bindings kept = trained(0), again = trained(1);
  REQUIRE(kept.size() == again.size());
  CHECK(kept.size() > 10);
  for (const auto& entry : kept)
    CHECK_MESSAGE(entry.second.same_bits(again.at(entry.first)), entry.first);
}

#endif
