// Generated CUDA C compiles for every target, without spills; no GPU is needed.

#include <doctest/doctest.h>
#include <sinter/codegen/templates.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/tests/codegen/exact_cases.h>
#include <sinter/tests/support.h>

using namespace sinter;
using namespace sinter::test;

namespace {

// A function of each kind of every type in the table.
LoopProgram every_intrinsic(std::string_view arch, DType type) {
  return elementwise("every_" + std::string(to_string(type)), arch, 1000, {type, type, type},
                     {type}, [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
                       Var sum = v[0];
                       for (int f = static_cast<int>(Fn::Add); f < static_cast<int>(Fn::Select);
                            ++f) {
                         const Intrinsic& row = intrinsic(static_cast<Fn>(f));
                         const bool defined = type == DType::F64   ? row.f64 != nullptr
                                              : type == DType::F32 ? row.f32 != nullptr
                                                                   : row.integer != nullptr;
                         if (!defined) continue;
                         std::vector<Var> args(v.begin(), v.begin() + row.arity);
                         args[0] = sum;
                         const Var r = b.let(row.fn, args);
                         sum = row.gives_bool ? b.let(Fn::Select, {r, sum, v[2]}) : r;
                       }
                       return std::vector<Var>{sum};
                     });
}

}  // namespace

TEST_CASE("generated CUDA: every kind of kernel compiles for every target, without spills") {
  std::string why;
  if (!cuda::nvrtc_available(&why)) SINTER_SKIP("no NVRTC");
  std::vector<cuda::CompileRequest> requests;
  bool skipped = false;
  size_t kernels = 0;
  for (const char* arch : kCudaTargets) {
    if (!cuda::supports_arch(arch)) {
      skipped = true;
      continue;
    }
    std::vector<LoopProgram> programs = {vector_add(arch, DType::F32, 1001),
                                         row_softmax(arch, DType::BF16, 3, 129),
                                         column_sum(arch, 50, 45)};
    LoopProgram gated = vector_add(arch, DType::F32, 1001);
    gated.symbol += "_gated";
    gated.gated = true;
    programs.push_back(std::move(gated));
    for (ExactCase& t : exact_cases(arch)) programs.push_back(std::move(t.program));
    for (DType type : {DType::F64, DType::F32, DType::I32, DType::I64, DType::U32, DType::Bool})
      programs.push_back(every_intrinsic(arch, type));
    for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                       DType::U32, DType::Bool})
      for (int width : {1, 2, 4, 8, 16}) programs.push_back(vectors(arch, type, width));
    kernels = programs.size();
    std::vector<const LoopProgram*> pointers;
    for (const LoopProgram& p : programs) pointers.push_back(&p);
    cuda::CompileRequest request;
    request.name = "generated";
    request.source = print_cuda(pointers);
    request.arch = arch;
    requests.push_back(std::move(request));
  }
  for (const cuda::CompiledUnit& unit : cuda::compile_all(requests)) {
    CHECK(unit.kernels.size() == kernels);
    for (const cuda::KernelResources& kernel : unit.kernels) {
      CAPTURE(kernel.name);
      CHECK(kernel.spill_store_bytes == 0);
      // Register arrays must not end up in memory. (pow, sin and cos of f64 use a stack of their
      // own.)
      if (kernel.name.rfind("every_", 0) != 0) CHECK(kernel.stack_bytes == 0);
    }
  }
  if (skipped) SINTER_SKIP("a target that the installed NVRTC lacks");
}

TEST_CASE("generated CUDA: the gate and the copy behind it compile") {
  std::string why;
  if (!cuda::nvrtc_available(&why)) SINTER_SKIP("no NVRTC");
  cuda::CompileRequest request;
  request.name = "state";
  request.source = template_text("state.cuh");
  request.arch = "sm_80";
  CHECK(cuda::compile(request, nullptr).kernels.size() == 2);
}
