// Attention at the limits of a card: little shared memory (SH-10), more heads than a grid axis
// holds (SH-03), and the same bits in every run (AT-10).

#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/flash_tiles.h>
#include <sinter/runtime/attention.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/sinter.h>
#include <sinter/tests/gpu/attention_case.h>
#include <sinter/tests/gpu/support.h>

#include <algorithm>

using namespace sinter;
using namespace sinter::test;

namespace {

CompileOptions options_for(DeviceKind device, AttentionChoice choice, int64_t shared_memory = 0) {
  CompileOptions options;
  options.device = device;
  if (device == DeviceKind::Interpreter) options.target = "sm_90a";
  options.shared_memory = shared_memory;
  choose_attention(options, choice);
  return options;
}
// Asks for the kernel of this name.
void use_kernel(CompileOptions& options, const char* name) {
  if (options.pipeline.empty()) options.pipeline = default_pipeline();
  for (PipelineStep& step : options.pipeline)
    if (step.pass->name == "native") step.options["use"] = name;
}

std::array<double, 4> run_case(const AttentionCase& c, DType type, const CompileOptions& options,
                               const AttentionAnswer& answer,
                               std::vector<std::string>* kernels = nullptr) {
  Module module;
  add_attention(module, c, type);
  auto session = make_session(compile(module, options));
  if (kernels != nullptr)
    for (const Op& op : *session->executable().module().find(c.name))
      if (op.is("attention") || op.is("attention_backward")) kernels->push_back(op.native());
  return attention_errors(session->run(c.name, attention_inputs(c, type)), answer);
}

// bf16 keeps 8 bits; the largest of some thousand elements has lost some of them.
double allowed(DType type) {
  return type == DType::F32 ? 1e-5 : 1e-2;
}
void check_errors(const std::array<double, 4>& errors, DType type) {
  for (size_t i = 0; i < errors.size(); ++i) {
    CAPTURE(kAttentionResults[i]);
    CHECK(errors[i] <= allowed(type));
  }
}

// What the smallest tiles of the portable kernels for heads of 256 take.
size_t smallest_tiles() {
  size_t needed = 0;
  for (FlashKernel kernel : {FlashKernel::Forward, FlashKernel::Backward}) {
    size_t limit = 1024;
    while (!flash_tiles(kernel, 256, 256, 2, limit).exists()) limit += 1024;
    needed = std::max(needed, flash_tiles(kernel, 256, 256, 2, limit).shared_bytes);
  }
  return needed;
}

// Heads of 256 where a block has less shared memory than any tiles take, 64 KiB, and 99.
void check_little_shared_memory(DeviceKind device) {
  const AttentionCase c{.name = "wide",
                        .heads = 2,
                        .queries = 37,
                        .keys = 70,
                        .dim = 256,
                        .value_dim = 256,
                        .attrs = {.causal = true}};
  const AttentionAnswer answer = attention_answer(c);
  for (int64_t kib : {20, 64, 99})
    for (DType type : {DType::F32, DType::BF16}) {
      CAPTURE(kib);
      CAPTURE(to_string(type));
      const int64_t cap = kib << 10;
      std::vector<std::string> kernels;
      check_errors(
          run_case(c, type, options_for(device, AttentionChoice::Auto, cap), answer, &kernels),
          type);
      const bool fits = type == DType::BF16 && static_cast<int64_t>(smallest_tiles()) <= cap;
      CHECK(kernels == std::vector<std::string>(fits ? 2 : 0, "portable"));

      const CompileOptions flash = options_for(device, AttentionChoice::Flash, cap);
      if (fits) {
        check_errors(run_case(c, type, flash, answer), type);
        continue;
      }
      std::string message;
      try {
        run_case(c, type, flash, answer);
      } catch (const Error& error) {
        message = error.what();
      }
      CAPTURE(message);
      CHECK(
          contains(message, "attention kernel for q: " + TensorType{type, {1, 2, 37, 256}}.str()));
      if (type == DType::BF16) {
        CHECK(contains(message, fmt::format("the smallest tiles take {} bytes", smallest_tiles())));
        CHECK(contains(message, fmt::format("a block has {}", cap)));
      }
      CHECK(contains(message, "Where none is required (attention auto) it is composed"));
    }
}

// 70,001 heads, of one sequence or one of each of so many.
AttentionCase many_heads(bool sequences, int64_t dim) {
  return {.name = sequences ? "sequences" : "heads",
          .batch = sequences ? 70'001 : 1,
          .heads = sequences ? 1 : 70'001,
          .kv_heads = sequences ? 1 : 70'001,
          .queries = 2,
          .keys = 3,
          .dim = dim,
          .value_dim = dim,
          .attrs = {.causal = true}};
}

}  // namespace

TEST_CASE("SH-10: attention where shared memory is little, scheduled for Hopper") {
  check_little_shared_memory(DeviceKind::Interpreter);
}

TEST_CASE("SH-03: attention of 70,001 heads, scheduled for Hopper") {
  for (bool sequences : {false, true}) {
    CAPTURE(sequences);
    const DType type = sequences ? DType::BF16 : DType::F32;
    CompileOptions options = options_for(DeviceKind::Interpreter, AttentionChoice::Auto);
    // Hopper's kernels have room for 64 queries of each head.
    if (sequences) use_kernel(options, "portable");
    const AttentionCase c = many_heads(sequences, 8);
    check_errors(run_case(c, type, options, attention_answer(c)), type);
  }
}

#ifdef SINTER_HAVE_CUDA

TEST_CASE("SH-10 on the device: attention where shared memory is little") {
  SINTER_NEEDS_GPU();
  if (cuda::Device::get().info().major < 8) SINTER_SKIP("no kernel before sm_80");
  check_little_shared_memory(DeviceKind::Cuda);
}

TEST_CASE("SH-03 on the device: attention of 70,001 heads, by each kernel") {
  SINTER_NEEDS_GPU();
  const bool has_kernels = cuda::Device::get().info().major >= 8;
  for (bool sequences : {false, true}) {
    CAPTURE(sequences);
    const AttentionCase c = many_heads(sequences, 16);
    const AttentionAnswer answer = attention_answer(c);
    for (DType type : {DType::F32, DType::BF16})
      for (const char* kernel : {"", "portable", "plain"}) {
        if (std::string(kernel) == "portable" && (type == DType::F32 || !has_kernels)) continue;
        CAPTURE(to_string(type));
        CAPTURE(std::string(kernel));
        CompileOptions options = options_for(DeviceKind::Cuda, AttentionChoice::Auto);
        if (*kernel != '\0') use_kernel(options, kernel);
        check_errors(run_case(c, type, options, answer), type);
      }
    const CompileOptions composed = options_for(DeviceKind::Cuda, AttentionChoice::Composed);
    check_errors(run_case(c, DType::BF16, composed, answer), DType::BF16);
  }
}

TEST_CASE("AT-10 on the device: gradients in bf16 are the same bits in every run") {
  SINTER_NEEDS_GPU();
  if (cuda::Device::get().info().major < 8) SINTER_SKIP("no kernel before sm_80");
  for (int64_t dim : {64, 128, 256})
    for (const char* kernel : {"", "portable"}) {
      CAPTURE(dim);
      CAPTURE(std::string(kernel));
      const AttentionCase c{.name = "attention",
                            .batch = 2,
                            .heads = 8,
                            .kv_heads = 2,
                            .queries = 1000,
                            .keys = 1000,
                            .dim = dim,
                            .value_dim = dim,
                            .attrs = {.causal = true}};
      Module module;
      add_attention(module, c, DType::BF16);
      CompileOptions options = options_for(DeviceKind::Cuda, AttentionChoice::Flash);
      if (*kernel != '\0') use_kernel(options, kernel);
      auto session = make_session(compile(module, options));
      const Bindings in = attention_inputs(c, DType::BF16);
      const Bindings first = session->run(c.name, in);
      CHECK(first.size() == 4);
      for (int run = 1; run < 30; ++run)
        for (const auto& entry : session->run(c.name, in))
          CHECK_MESSAGE(entry.second.same_bits(first.at(entry.first)), entry.first);
    }
}

TEST_CASE("AT-10 on the device: an embedding's gradient in bf16 is the same bits in every run") {
  SINTER_NEEDS_GPU();
  constexpr int64_t kPlaces = 8000, kRows = 50, kWidth = 64;
  Module module;
  Graph& graph = module.add_graph("g");
  Value table = graph.add_input("table", {DType::BF16, {kRows, kWidth}}),
        ids = graph.add_input("ids", {DType::I32, {kPlaces}}),
        dy = graph.add_input("dy", {DType::BF16, {kPlaces, kWidth}}), y = embedding(table, ids);
  graph.add_output("d_table", vjp(graph, {&y, 1}, {&dy, 1}, {&table, 1})[0]);
  std::vector<int32_t> rows;
  std::vector<double> values;
  for (int64_t i = 0; i < kPlaces; ++i) rows.push_back(static_cast<int32_t>(i * i % kRows));
  for (int64_t i = 0; i < kPlaces * kWidth; ++i)
    values.push_back(static_cast<double>(i * 7919 % 4093) / 4093 - 0.5);
  Bindings in{{"ids", Tensor::from<int32_t>({kPlaces}, rows)},
              {"dy", Tensor::from_doubles({DType::BF16, {kPlaces, kWidth}}, values)}};
  CompileOptions options;
  options.device = DeviceKind::Cuda;
  auto session = make_session(compile(module, options));
  in["table"] = Tensor::full({DType::BF16, {kRows, kWidth}}, 1);
  const Bindings first = session->run("g", in);
  for (int run = 1; run < 30; ++run)
    CHECK(session->run("g", in).at("d_table").same_bits(first.at("d_table")));
}

#endif
