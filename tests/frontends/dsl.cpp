#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/runtime/reference.h>
#include <sinter/sinter.h>
#include <sinter/tests/support.h>

#include <cmath>

using namespace sinter;

namespace {

Tensor seed_of(uint32_t seed) {
  return Tensor::from<uint32_t>({2}, {seed, 0u});
}

// The graph's outputs by name, on the reference; inputs by name.
std::map<std::string, Tensor> run(const Graph& graph, const std::map<std::string, Tensor>& inputs) {
  std::vector<Tensor> in;
  for (Value v : graph.inputs()) in.push_back(inputs.at(v.name()));
  std::vector<Tensor> out = Reference().run(graph, in);
  std::map<std::string, Tensor> named;
  for (size_t i = 0; i < out.size(); ++i) named.emplace(graph.outputs()[i].name, out[i]);
  return named;
}

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("dsl: a parameter is a state, an input of each graph that uses it, and made by init") {
  Model model;
  auto network = [](Scope g, Value x) { return nn::linear(g / "out", x, 3); };
  Scope step = model.graph("step", Mode::Training);
  network(step, step.input("x", f32({4, 2})));
  Scope eval = model.graph("eval");
  eval.output("y", network(eval, eval.input("x", f32({4, 2}))));
  verify(model.module());

  CHECK(model.parameters() == std::vector<std::string>{"out.weight", "out.bias"});
  REQUIRE(model.module().states.size() == 2);
  CHECK(model.module().find_state("out.weight")->type == f32({2, 3}));
  for (const char* name : {"step", "eval"}) {
    Graph& g = *model.module().find(name);
    CHECK(g.find_input("out.weight").type() == f32({2, 3}));
    CHECK(g.find_input("out.bias").type() == f32({3}));
  }
  const Graph& init = *model.module().find("init");
  CHECK(init.outputs().size() == 2);
  auto first = run(
      init,
      {{"seed", seed_of(7)}, {"step", Tensor::scalar(0u)}, {"offset", Tensor::scalar(int64_t{0})}});
  double limit = std::sqrt(6.0 / 5), largest = 0;
  for (double w : first.at("out.weight").to_doubles()) largest = std::max(largest, std::abs(w));
  CHECK(largest <= limit);
  CHECK(largest > limit / 4);
  for (double b : first.at("out.bias").to_doubles()) CHECK(b == 0);
}

TEST_CASE("dsl: a module survives its own text") {
  Model model;
  Scope eval = model.graph("eval");
  nn::GptConfig config{.layers = 2, .heads = 2, .width = 8, .vocab = 11, .context = 4};
  eval.output("logits", nn::gpt(eval, eval.input("ids", i32({2, 4})), config));
  std::string text = print(model.module(), {.locations = true});
  CHECK((print(*parse_module(text, "model.sir"), {.locations = true}) == text));
}

TEST_CASE("dsl: using a parameter twice in a graph reads one input") {
  Model model;
  Scope g = model.graph("eval");
  Value a = g.parameter("w", {2, 2}, init::ones());
  CHECK(a == g.parameter("w", {2, 2}, init::zeros()));
  CHECK(g.parameters().size() == 1);
  CHECK(g.graph().inputs().size() == 1);
}

TEST_CASE("dsl: ops carry the user's file and line") {
  Model model;
  Scope g = model.graph("eval");
  Value x = g.input("x", f32({4, 2}));
  int line = __LINE__ + 1;
  Value sum_op = x + 1.0;
  Value product = matmul(x, x, false, true);
  Value layer = nn::linear(g / "fc", x, 3);
  Value feed_forward = nn::mlp(g / "mlp", x, 8);
  Value number = 2.0 * x;
  CHECK(sum_op.op()->loc().line == line);
  CHECK(sum_op.op()->loc().file_name().ends_with("tests/frontends/dsl.cpp"));
  CHECK(product.op()->loc().line == line + 1);
  CHECK(number.op()->loc().line == line + 4);
  // Every op of a layer carries the place of the layer's call.
  for (Op* op = layer.op(); op != product.op(); op = op->prev()) {
    CHECK(op->loc().line == line + 2);
    CHECK(op->loc().file_name().ends_with("dsl.cpp"));
  }
  for (Op* op = feed_forward.op(); op != layer.op(); op = op->prev())
    CHECK(op->loc().line == line + 3);
  // So do the ops of init that give the layer's weights their first values.
  for (Op& op : *model.module().find("init")) {
    CHECK(op.loc().line >= line + 2);
    CHECK(op.loc().line <= line + 3);
  }
}

TEST_CASE("dsl: after the whole pipeline every launch still names the user's line") {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  const int first = __LINE__;
  Value h = silu(nn::linear(g / "a", g.input("x", f32({8, 4})), 16));
  Value y = nn::linear(g / "b", g.dropout(nn::rms_norm(g / "norm", h), 0.1), 4);
  Value loss = mean(square(y - g.input("t", f32({8, 4})))).named("loss");
  const int last = __LINE__;
  g.output("loss", loss);
  minimize(loss, g.parameters());
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  auto executable = compile(model.module(), options);
  const Graph& step = *executable->module().find("step");
  int updates = 0;
  for (Op& op : step) {
    CHECK_MESSAGE(op.loc().file_name().ends_with("dsl.cpp"), print(op));
    CHECK_MESSAGE(op.loc().line > first, print(op));
    CHECK_MESSAGE(op.loc().line < last, print(op));
    updates += op.is("fusion");
  }
  CHECK(updates >= 3);
  std::string plan = executable->plan_text();
  CHECK(contains(plan, fmt::format("dsl.cpp:{}", first + 1)));
  CHECK(contains(plan, fmt::format("dsl.cpp:{}", first + 2)));
}

TEST_CASE("dsl: mistakes are refused at the user's line") {
  Model model;
  Scope g = model.graph("eval");
  g.parameter("w", {2, 2}, init::zeros());
  Value x = g.input("x", f32({4, 6}));
  std::string error = message_of([&] { g.parameter("w", {2, 3}, init::zeros()); });
  CHECK(contains(error, fmt::format("dsl.cpp:{}: error: parameter 'w' is f32[2,2] already, not "
                                    "f32[2,3]",
                                    __LINE__ - 3)));
  CHECK(contains(message_of([&] { g.input("w", f32({2})); }), "input 'w' is named like a"));
  CHECK(contains(message_of([&] { g.input("x", f32({2})); }), "is f32[4,6] already, not f32[2]"));
  CHECK(contains(message_of([&] { g.parameter("x", {2}, init::ones()); }), "named like an input"));
  CHECK(contains(message_of([&] { g.parameter("a b", {2}, init::ones()); }), "must be letters"));
  CHECK(contains(message_of([&] { g.parameter("v", {2}, init::xavier()); }), "init::xavier"));
  CHECK(contains(message_of([&] { model.graph("eval"); }), "there is a graph @eval already"));
  CHECK(contains(message_of([&] { nn::attention(g, x, {.heads = 4, .length = 2}); }),
                 "width 6 is not divisible by 4 heads"));
  CHECK(contains(message_of([&] { nn::attention(g, x, {.heads = 2}); }), "[batch, length, C]"));
  // What was refused left nothing behind.
  CHECK(model.parameters().size() == 1);
  verify(model.module());
}

TEST_CASE("dsl: dropout acts in training alone, and its sites differ") {
  Model model;
  auto network = [](Scope g, Value x) { return g.dropout(g.dropout(x, 0.5), 0.25); };
  Scope step = model.graph("step", Mode::Training), eval = model.graph("eval");
  TensorType type = f32({2, 64});
  step.output("y", network(step, step.input("x", type)));
  eval.output("y", network(eval, eval.input("x", type)));
  std::map<std::string, Tensor> in{{"x", Tensor::full(type, 1)},
                                   {"seed", seed_of(1)},
                                   {"step", Tensor::scalar(0u)},
                                   {"offset", Tensor::scalar(int64_t{0})}};
  CHECK(eval.graph().size() == 0);
  Tensor y = run(step.graph(), in).at("y");
  int kept = 0;
  for (double v : y.to_doubles()) {
    CHECK((v == 0 || v == doctest::Approx(8.0 / 3)));
    kept += v != 0;
  }
  CHECK(kept > 20);  // 48 expected; one mask alone would keep 64
  CHECK(kept < 80);
}

TEST_CASE("dsl: a recompute segment holds the ops made while its scope lives") {
  Model model;
  Scope g = model.graph("step");
  Value x = g.input("x", f32({4})), inside, after;
  {
    auto segment = with_recompute(g, "block");
    inside = exp(x);
  }
  after = exp(inside);
  CHECK(inside.op()->segment() == "block");
  CHECK(after.op()->segment() == "");
}

TEST_CASE("nn: parameters, names and counts of GPTs") {
  auto build = [](nn::GptConfig config) {
    auto model = std::make_unique<Model>();
    Scope g = model->graph("eval");
    Value rows = g.input("rows", i32({1}));
    Value ids = g.input("ids", i32({2, config.context}));
    Value logits = nn::gpt(g, ids, config);
    CHECK(logits.type() == f32({2 * config.context, config.vocab}));
    Value last = nn::gpt(g, ids, config, rows);
    CHECK(last.type() == f32({1, config.vocab}));
    verify(model->module());
    int64_t count = 0;
    for (const State& s : model->module().states) count += s.type.elements();
    CHECK(count == config.parameter_count());
    return model;
  };
  auto gpt2 = build({.layers = 1, .heads = 2, .width = 8, .vocab = 11, .context = 4});
  CHECK(gpt2->parameters() ==
        std::vector<std::string>{
            "wte.weight", "wpe.weight", "blocks.0.ln1.weight", "blocks.0.ln1.bias",
            "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight",
            "blocks.0.attn.proj.bias", "blocks.0.ln2.weight", "blocks.0.ln2.bias",
            "blocks.0.mlp.fc.weight", "blocks.0.mlp.fc.bias", "blocks.0.mlp.proj.weight",
            "blocks.0.mlp.proj.bias", "ln_f.weight", "ln_f.bias"});
  auto llama = build({.style = nn::GptStyle::Llama,
                      .layers = 1,
                      .heads = 4,
                      .width = 16,
                      .kv_heads = 2,
                      .vocab = 11,
                      .context = 4,
                      .tied = false});
  CHECK(llama->module().find_state("blocks.0.attn.qkv.weight")->type == f32({16, 32}));
  CHECK(llama->is_parameter("head.weight"));
  auto qwen = build({.style = nn::GptStyle::Llama,
                     .layers = 1,
                     .heads = 2,
                     .width = 12,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .vocab = 11,
                     .context = 4,
                     .qk_norm = true});
  CHECK(qwen->module().find_state("blocks.0.attn.q_norm.weight")->type == f32({8}));

  const std::map<std::string_view, int64_t> counts{{"tiny", 842496},
                                                   {"small", 10844160},
                                                   {"tiny-llama", 771456},
                                                   {"gpt2-124m", 124439808},
                                                   {"tinyllama-1.1b", 1100048384},
                                                   {"qwen3-0.6b", 596049920}};
  REQUIRE(nn::gpt_preset_names().size() == counts.size());
  for (std::string_view name : nn::gpt_preset_names()) {
    CAPTURE(name);
    Model model;
    Scope g = model.graph("eval");
    nn::gpt(g, g.input("ids", i32({1, 8})), *nn::gpt_preset(name));
    int64_t count = 0;
    for (const State& s : model.module().states) count += s.type.elements();
    CHECK(count == counts.at(name));
    CHECK(count == nn::gpt_preset(name)->parameter_count());
  }
  CHECK(!nn::gpt_preset("gpt5"));
}
