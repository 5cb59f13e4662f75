#pragma once
// Passes: module to module, one .cpp and one row in registry.cpp each.

#include <sinter/ir/graph.h>
#include <sinter/passes/plan.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

// What a pass says: why it declined, what it decided.
struct Remark {
  std::string pass;
  SourceLocation location;
  std::string message;
  // `FILE:LINE:COL: remark: [pass] message`.
  std::string str() const;
};

// Options in the text form `autodiff{of=l wrt=w,x}`: key to value.
using PassOptions = std::map<std::string, std::string, std::less<>>;

class PassContext {
 public:
  PassContext(std::string_view pass, const PassOptions& options, std::vector<Remark>& remarks,
              std::map<std::string, MemoryPlan>& plan_map)
      : plans(plan_map), pass_(pass), options_(options), remarks_(remarks) {}
  std::string_view option(std::string_view key, std::string_view otherwise = {}) const;
  bool has_option(std::string_view key) const;
  void remark(const SourceLocation& location, std::string message);
  // By graph name; written by plan-memory.
  std::map<std::string, MemoryPlan>& plans;

 private:
  std::string pass_;
  const PassOptions& options_;
  std::vector<Remark>& remarks_;
};

using PassFunction = void (*)(Module&, PassContext&);

// One row of the registry.
struct PassInfo {
  std::string_view name;     // kebab-case
  std::string_view summary;  // one line
  std::string_view options;  // "of=VALUE wrt=VALUE,…", or ""
  PassFunction run = nullptr;
  // What --disable=NAME does: null removes the pass; for layout, recompute, fuse and plan-memory
  // the pass runs with option `off`; expand and order cannot be switched off.
  enum Disabling : uint8_t { Removes, RunsOff, Refused } disabling = Removes;
};

const std::vector<PassInfo>& pass_registry();
const PassInfo* find_pass(std::string_view name);

struct PipelineStep {
  const PassInfo* pass;
  PassOptions options;
};
// `canonicalize,autodiff{of=l wrt=w},cse`; throws Error naming an unknown pass or option text.
std::vector<PipelineStep> parse_pipeline(std::string_view text);
// The whole pipeline, in order; one readable function.
std::vector<PipelineStep> default_pipeline();
// What follows the last of `done` in the default pipeline (all of it when none occurs there).
std::vector<PipelineStep> rest_of_pipeline(const std::vector<PipelineStep>& done);

class PassManager {
 public:
  std::vector<std::string> disabled;     // pass names
  std::vector<std::string> print_after;  // pass names, or "all"; only changed modules print
  bool verify_each = true;
  bool locations = false;
  // NN-pass.sir after each pass when not empty; a file that cannot be written is a remark.
  std::string dump_dir;
  // Receives the text asked for by print_after.
  std::function<void(const std::string&)> on_print;

  // Throws what a pass throws. A broken invariant, or a module that a pass leaves ill-formed, is an
  // InternalError that names the pass and a reproducer (IR with locations and the rest of the
  // pipeline) in dump_dir, if there is one, or in the temporary directory. A user's Error passes
  // through; its reproducer is written to dump_dir alone.
  void run(Module& module, const std::vector<PipelineStep>& steps);

  const std::vector<Remark>& remarks() const { return remarks_; }
  struct Timing {
    std::string pass;
    double seconds;
  };
  const std::vector<Timing>& timings() const { return timings_; }
  std::map<std::string, MemoryPlan> plans;  // by graph name

 private:
  std::vector<Remark> remarks_;
  std::vector<Timing> timings_;
  int count_ = 0;
};

}  // namespace sinter
