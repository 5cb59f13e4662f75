// What compiling costs: against the depth of a model (CC-09), with large constants (CC-10), and as
// values change from step to step (CC-01).

#include <sinter/codegen/loops.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/detail/compiled_executable.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <ctime>
#include <filesystem>

using namespace sinter;

namespace {

// Of this process, on all its threads: a busy machine does not count.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Compiled {
  std::shared_ptr<const Executable> executable;
  double seconds = 0;
};
// For a card that is not here, up to what would go to NVRTC.
Compiled compile_for_card(const Module& module, CompileOptions options = {}) {
  options.device = DeviceKind::Interpreter;
  options.target = "sm_90a";
  double start = cpu_seconds();
  Compiled compiled{compile(module, options)};
  compiled.seconds = cpu_seconds() - start;
  return compiled;
}

const std::vector<LoopProgram>& kernels_of(const Compiled& compiled) {
  return static_cast<const detail::CompiledExecutable&>(*compiled.executable).compiled.kernels;
}

Compiled compile_blocks(int64_t layers, nn::GptStyle style, const CompileOptions& options = {}) {
  train::TrainConfig config;
  config.model = {.style = style, .layers = layers, .heads = 2, .width = 16, .vocab = 32};
  config.model.context = 16;
  config.model.dropout = 0.1;
  config.batch = 2;
  return compile_for_card(train::build_gpt(config)->module(), options);
}

}  // namespace

TEST_CASE("CC-09: equal blocks share their kernels, and compile time grows at most linearly") {
  for (nn::GptStyle style : {nn::GptStyle::Gpt2, nn::GptStyle::Llama}) {
    Compiled one = compile_blocks(1, style), twelve = compile_blocks(12, style);
    Compiled two_dozen = compile_blocks(24, style), four = compile_blocks(48, style);
    int kernels = twelve.executable->stats().kernels;
    CHECK(one.executable->stats().kernels <= kernels);
    CHECK(kernels < 120);
    CHECK(two_dozen.executable->stats().kernels == kernels);
    CHECK(four.executable->stats().kernels == kernels);
    for (const LoopProgram& kernel : kernels_of(four)) CHECK(!print_cuda(kernel).empty());
    MESSAGE("12, 24, 48 blocks: " << twelve.seconds << ", " << two_dozen.seconds << ", "
                                  << four.seconds << " s");
    // Twice the blocks; the rest of the factor is for caches of the processor that no longer hold
    // all.
    CHECK(two_dozen.seconds < 2 * 1.6 * twelve.seconds + 0.1);
    CHECK(four.seconds < 2 * 1.6 * two_dozen.seconds + 0.1);

    // The table of phases: every pass and what follows, in order.
    const auto& phases = four.executable->stats().phases;
    REQUIRE(phases.size() > 5);
    CHECK(phases.front().first == "verify");
    CHECK(phases.back().first == "compile");
    double total = 0;
    for (const auto& [name, seconds] : phases) total += seconds;
    CHECK(total <= four.executable->stats().seconds);
    CHECK(total > 0.8 * four.executable->stats().seconds);
  }
}

TEST_CASE("portable: under a cap on shared memory kernels are made as for a smaller card") {
  CompileOptions options;
  options.shared_memory = 99 << 10;
  for (nn::GptStyle style : {nn::GptStyle::Gpt2, nn::GptStyle::Llama}) {
    Compiled compiled = compile_blocks(1, style, options);
    CHECK(compiled.executable->module().target.shared_memory == 99 << 10);
    CHECK(kernels_of(compiled).size() > 10);
    for (const LoopProgram& kernel : kernels_of(compiled))
      CHECK(kernel.shared_bytes <= options.shared_memory);
  }
  setenv("SINTER_SHARED_MEMORY", "50000", 1);
  Compiled small = compile_blocks(1, nn::GptStyle::Gpt2);
  setenv("SINTER_SHARED_MEMORY", "some", 1);
  CHECK_THROWS_AS(compile_blocks(1, nn::GptStyle::Gpt2), Error);
  unsetenv("SINTER_SHARED_MEMORY");
  CHECK(small.executable->module().target.shared_memory == 50000);
  CHECK(small.executable->plan_text().find("50000 bytes of shared memory") != std::string::npos);
}

TEST_CASE("CC-10: large constants are neither evaluated nor written out") {
  Module module;
  Graph& graph = module.add_graph("sums");
  Value ramp = iota(graph, {DType::F32, {4096, 4096}}, 1);
  graph.add_output("a", sum(ramp + full(graph, {DType::F32, {4096, 4096}}, 0.5)));
  int64_t n = 16384;
  Value row = iota(graph, {DType::I32, {n, n}}, 0), column = iota(graph, {DType::I32, {n, n}}, 1);
  graph.add_output("mask",
                   sum(where(le(column, row), full(graph, {DType::F32, {n, n}}, 1.0), 0.0), {1}));
  Compiled compiled = compile_for_card(module);
  CHECK(compiled.seconds < 1);
  for (const LoopProgram& kernel : kernels_of(compiled)) CHECK(print_cuda(kernel).size() < 50'000);
  CHECK(compiled.executable->plans().at("sums").arena_bytes < (1 << 20));
}

TEST_CASE("CC-01: 100 steps, a new learning rate each, two lengths in turn: two compilations") {
  const test::TemporaryFolder folder;
  CompileOptions options;
  options.cache_dir = folder.path;
  bool have_cpu = false;
  for (const DeviceEntry& d : list_devices())
    have_cpu = have_cpu || (d.kind == DeviceKind::Cpu && d.unavailable.empty());
  if (!have_cpu) SINTER_SKIP("no C++ compiler");
  std::vector<std::unique_ptr<Program>> programs;
  for (int64_t length : {64, 128}) {
    Model model;
    Scope step = model.graph("step", Mode::Training);
    Value x = step.input("x", f32({length, 8}));
    Value loss = mean(square(step.dropout(nn::linear(step / "out", x, 8), 0.1) - x));
    step.output("loss", loss);
    minimize(loss, step.parameters());
    programs.push_back(std::make_unique<Program>(model, options));
    programs.back()->init(1);
  }
  for (const auto& program : programs) {
    const CompileStats& stats = program->executable().stats();
    CHECK(stats.compiled > 0);
    CHECK(!stats.reasons.empty());
    for (const CompiledFor& unit : stats.reasons) CHECK(unit.reason == "new source");
  }
  uint64_t before = DiskCache::of(folder.path).stats().compiles;
  for (int i = 0; i < 100; ++i) {
    int64_t length = i % 2 == 0 ? 64 : 128;
    programs[static_cast<size_t>(i % 2)]->run(
        "step", {{"x", fill(f32({length, 8}), i)},
                 {"lr", Tensor::scalar(1e-3f / (1.0f + static_cast<float>(i)))}});
  }
  CHECK(DiskCache::of(folder.path).stats().compiles == before);
}
