// What a run takes of the card is what the plan says; and a vocabulary beyond 2^31 logits.

#include <fmt/format.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/memory.h>
#include <sinter/tests/device_cases.h>
#include <sinter/tests/gpu/support.h>

using namespace sinter;
using namespace sinter::test;

#ifdef SINTER_HAVE_CUDA

namespace {

// Blocks x = x + gelu(x w1) w2 in bf16 on 8192 rows, trained on a sum.
std::unique_ptr<Module> blocks(int count, bool recompute) {
  auto module = std::make_unique<Module>();
  Graph& graph = module->add_graph("step");
  auto bf16 = [](Shape shape) { return TensorType{DType::BF16, std::move(shape)}; };
  Value x = graph.add_input("x", bf16({8192, 1024}));
  std::vector<std::string> wrt;
  for (int i = 0; i < count; ++i) {
    std::string up = fmt::format("up{}", i), down = fmt::format("down{}", i);
    module->states.push_back({up, {DType::F32, {1024, 4096}}});
    module->states.push_back({down, {DType::F32, {4096, 1024}}});
    Value w1 =
        cast(graph.add_input(up, module->states[module->states.size() - 2].type), DType::BF16);
    Value w2 = cast(graph.add_input(down, module->states.back().type), DType::BF16);
    if (recompute) graph.set_current_segment(fmt::format("block{}", i));
    x = x + matmul(gelu(matmul(x, w1)), w2);
    graph.set_current_segment("");
    wrt.insert(wrt.end(), {up, down});
  }
  graph.add_output("l", sum(cast(x, DType::F32)));
  graph.attributes["loss"] = std::string("l");
  graph.attributes["wrt"] = wrt;
  graph.attributes["optimizer"] = std::string("sgd");
  return module;
}

}  // namespace

TEST_CASE("CUDA, RC-01: the measured peak is the plan's") {
  SINTER_NEEDS_GPU();
  // The context, the module loader and cuBLASLt's own memory are there before.
  make_session(compile(*blocks(1, false), options_for(DeviceKind::Cuda)))
      ->run("step", {{"x", Tensor({DType::BF16, {8192, 1024}})}, {"lr", Tensor::scalar(0.0F)}});
  for (bool recompute : {false, true}) {
    CAPTURE(recompute);
    auto module = blocks(24, recompute);
    CompileOptions options = options_for(DeviceKind::Cuda);
    int64_t plan = planned_memory(*module, options).total();
    int64_t measured = taken([&] {
      auto session = make_session(compile(*module, options));
      for (int i = 0; i < 10; ++i)
        session->run("step",
                     {{"x", Tensor({DType::BF16, {8192, 1024}})}, {"lr", Tensor::scalar(0.0F)}});
      return session;
    });
    MESSAGE("plan " << plan << ", measured " << measured);
    CHECK(static_cast<double>(measured) <= 1.05 * static_cast<double>(plan));
    CHECK(static_cast<double>(measured) >= 0.95 * static_cast<double>(plan));
  }
}

TEST_CASE("CUDA: ten steps of a GPT take what its plan says") {
  SINTER_NEEDS_GPU();
  train::TrainConfig config{.model = *nn::gpt_preset("gpt2-124m"), .batch = 8, .dtype = "bf16"};
  CompileOptions options = options_for(DeviceKind::Cuda);
  int64_t plan = planned_memory(train::build_gpt(config)->module(), options).total();
  Tensor ids({DType::I32, {8, 1024}});
  int64_t measured = taken([&] {
    auto trainer = std::make_unique<train::GptTrainer>(config, options);
    trainer->init();
    for (int64_t i = 0; i < 10; ++i) trainer->step({ids, ids}, i, 1e-4);
    return trainer;
  });
  MESSAGE("plan " << plan << ", measured " << measured);
  CHECK(static_cast<double>(measured) <= 1.05 * static_cast<double>(plan));
}

TEST_CASE("CUDA, CE-06: 16385 rows of 131072 logits, the last row right") {
  SINTER_NEEDS_GPU();
  if (cuda::Device::get(0).free_memory() < (int64_t{12} << 30)) SINTER_SKIP("needs 12 GiB free");
  // Zero logits but for the last row, where class 7 has ln 3.
  auto session = session_for(R"(graph @g(%b: f32[1,1]) -> (f32[], f32[131072]) {
  %n = iota {axis = 0} : i32[16385,131072]
  %v = iota {axis = 1} : i32[16385,131072]
  %last = full {value = 16384} : i32[16385,131072]
  %seven = full {value = 7} : i32[16385,131072]
  %is_last = eq %n, %last : bool[16385,131072]
  %is_seven = eq %v, %seven : bool[16385,131072]
  %here = logical_and %is_last, %is_seven : bool[16385,131072]
  %bump = broadcast %b : f32[16385,131072]
  %zero = full {value = 0.0} : f32[16385,131072]
  %raised = where %here, %bump, %zero : f32[16385,131072]
  %z = cast %raised : bf16[16385,131072]
  %t = full {value = 7} : i32[16385]
  %loss, %count = cross_entropy %z, %t {reduction = "sum"} : f32[], i32[]
  %one = full {value = 1.0} : f32[]
  %d = cross_entropy_backward %z, %t, %one {reduction = "sum"} : bf16[16385,131072]
  %row = slice %d {start = [16384, 0], limit = [16385, 131072]} : bf16[1,131072]
  %wide = cast %row : f32[1,131072]
  %flat = reshape %wide : f32[131072]
  return %loss, row = %flat
})",
                             options_for(DeviceKind::Cuda));
  Bindings out = session->run("g", {{"b", Tensor::from<float>({1, 1}, {1.1015625F})}});
  const double sum = 131071 + std::exp(1.1015625);
  CHECK(out.at("loss").at(0) ==
        doctest::Approx(16384 * std::log(131072.0) + std::log(sum) - 1.1015625).epsilon(1e-5));
  CHECK(out.at("row").at(131071) == doctest::Approx(1 / sum).epsilon(0.004));
  CHECK(out.at("row").at(7) == doctest::Approx(std::exp(1.1015625) / sum - 1).epsilon(0.004));
}

#endif
