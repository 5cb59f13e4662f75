#include <sinter/ir/verifier.h>
#include <sinter/passes/pass.h>
#include <sinter/passes/passes.h>

namespace sinter {

const std::vector<PassInfo>& pass_registry() {
  static const std::vector<PassInfo> rows = {
      {"verify", "checks that the module is well formed", "", run_verify},
      {"canonicalize", "rewrites to one simpler form, by identities exact for every float", "",
       run_canonicalize},
      {"autodiff", "appends the gradients of a loss (reverse mode)",
       "of=VALUE wrt=VALUE,… graph=NAME", run_autodiff},
      {"optimizer", "appends the update of the parameters that minimize() names", "",
       run_optimizer},
      {"cse", "merges equal ops of one segment", "", run_cse},
      {"dce", "removes ops and sub-graphs that nothing uses", "", run_dce},
      {"recompute", "computes the values of a segment again where the backward pass needs them", "",
       run_recompute, PassInfo::RunsOff},
      {"expand", "replaces composite ops by smaller ones, and orders and splits reductions", "",
       run_expand, PassInfo::Refused},
      {"fuse", "makes kernels of ops that can share one", "", run_fuse, PassInfo::RunsOff},
      {"layout", "says which ops are free views", "", run_layout, PassInfo::RunsOff},
      {"order", "moves ops earlier where that frees memory", "", run_order, PassInfo::Refused},
      {"plan-memory", "gives every value its place in one arena", "", run_plan_memory,
       PassInfo::RunsOff},
  };
  return rows;
}

void run_verify(Module& module, PassContext&) {
  verify(module);
}

const PassInfo* find_pass(std::string_view name) {
  for (const PassInfo& pass : pass_registry())
    if (pass.name == name) return &pass;
  return nullptr;
}

}  // namespace sinter
