#pragma once
// The passes' functions, for the registry. What each one does stands at the head of its .cpp.

namespace sinter {

class Module;
class PassContext;

void run_verify(Module& module, PassContext& context);
void run_canonicalize(Module& module, PassContext& context);
void run_autodiff(Module& module, PassContext& context);
void run_optimizer(Module& module, PassContext& context);
void run_cse(Module& module, PassContext& context);
void run_dce(Module& module, PassContext& context);
void run_recompute(Module& module, PassContext& context);
void run_expand(Module& module, PassContext& context);
void run_fuse(Module& module, PassContext& context);
void run_layout(Module& module, PassContext& context);
void run_order(Module& module, PassContext& context);
void run_plan_memory(Module& module, PassContext& context);

}  // namespace sinter
