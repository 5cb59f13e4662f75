#pragma once
// The executable of every device that runs kernels.

#include <sinter/runtime/detail/backend.h>

namespace sinter::detail {

class CompiledExecutable final : public Executable {
 public:
  const Module& module() const override { return *compiled.module; }
  const CompileOptions& options() const override { return compile_options; }
  const std::vector<Remark>& remarks() const override { return pass_remarks; }
  const CompileStats& stats() const override { return compile_stats; }
  const TuningRecord& tuning() const override { return record; }
  const std::map<std::string, MemoryPlan>& plans() const override { return compiled.plans; }
  std::string plan_text() const override;

  CompiledModule compiled;
  CompileOptions compile_options;
  std::vector<Remark> pass_remarks;
  CompileStats compile_stats;
  TuningRecord record;
  std::unique_ptr<Backend> backend;  // last: refers to `compiled`
};

}  // namespace sinter::detail
