// CC-06: a bf16 training step's kernels need no header of the CUDA toolkit.

#include <doctest/doctest.h>
#include <sinter/codegen/loops.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/detail/kernel_table.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <fstream>

using namespace sinter;

TEST_CASE(
    "CC-06: a bf16 training step compiles without headers, and beside those of another "
    "release") {
  train::TrainConfig config{
      .model = {.layers = 1, .heads = 2, .width = 32, .vocab = 64, .context = 16, .dropout = 0.1},
      .batch = 2,
      .clip = 1,
      .dtype = "bf16"};
  auto module = train::build_gpt(config)->module().clone();
  module->target = *Target::named("sm_80");
  PassManager manager;
  manager.run(*module, default_pipeline());
  std::vector<LoopProgram> programs;
  detail::KernelTable table(*module, programs);
  for (Op& op : *module->find("step"))
    if (op.def().has_callee) table.of(op, true);
  std::vector<const LoopProgram*> pointers;
  for (const LoopProgram& p : programs) pointers.push_back(&p);
  REQUIRE(pointers.size() > 10);
  std::string source = print_cuda(pointers);
  CHECK(source.find("#include") == std::string::npos);
  std::string why;
  if (!cuda::nvrtc_available(&why)) SINTER_SKIP("no NVRTC");
  // Headers that would stop the compiler, first on its path.
  test::TemporaryFolder folder;
  for (const char* name : {"cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "stdint.h"})
    std::ofstream(folder.path / name) << "#error another release\n";
  cuda::CompileRequest request;
  request.name = "step";
  request.source = std::move(source);
  request.arch = "sm_80";
  request.options = {"-I" + folder.path.string()};
  CHECK(cuda::compile(request, nullptr).kernels.size() == programs.size());
}
