#include <sinter/ir/verifier.h>
#include <sinter/passes/pass.h>

namespace sinter {

// A row: it declares the pass's function too, so that a new pass is its .cpp and one row here.
#define SINTER_PASS(function, ...)           \
  [] {                                       \
    void function(Module&, PassContext&);    \
    return make_pass(function, __VA_ARGS__); \
  }()

namespace {

PassInfo make_pass(PassFunction run, std::string_view name, std::string_view summary,
                   std::string_view options = "",
                   PassInfo::Disabling disabling = PassInfo::Removes) {
  return {name, summary, options, run, disabling};
}

}  // namespace

void run_verify(Module& module, PassContext&) {
  verify(module);
}

const std::vector<PassInfo>& pass_registry() {
  static const std::vector<PassInfo> rows = {
      SINTER_PASS(run_verify, "verify", "checks that the module is well formed"),
      SINTER_PASS(run_canonicalize, "canonicalize",
                  "rewrites to one simpler form, by identities exact for every float"),
      SINTER_PASS(run_inline, "inline", "puts the ops of a graph in place of each call of it"),
      SINTER_PASS(run_fuse_attention, "fuse-attention",
                  "makes softmax(q k^T) v, as people write it, the op attention",
                  "require=fused|native"),
      SINTER_PASS(run_autocast, "autocast", "contractions in bf16, f16 or tf32, and f32 in between",
                  "dtype=TYPE"),
      SINTER_PASS(run_autodiff, "autodiff", "appends the gradients of a loss (reverse mode)",
                  "of=VALUE wrt=VALUE,… prefix=TEXT graph=NAME"),
      SINTER_PASS(run_accumulate, "accumulate",
                  "makes graphs that add their gradients to those of other parts of a batch"),
      SINTER_PASS(run_vjp, "vjp", "appends gradients from given cotangents (reverse mode)",
                  "of=VALUE,… wrt=VALUE,… unused=zeros|refuse graph=NAME"),
      SINTER_PASS(run_jvp, "jvp", "appends derivatives along given tangents (forward mode)",
                  "of=VALUE,… wrt=VALUE,… graph=NAME"),
      SINTER_PASS(run_vmap, "vmap", "batches a graph over a new leading axis",
                  "inputs=INPUT,… size=N graph=NAME"),
      SINTER_PASS(run_optimizer, "optimizer",
                  "appends the update of the parameters that minimize() names"),
      SINTER_PASS(run_round_operands, "round-operands",
                  "casts the operands of contractions that compute in a narrower type", "",
                  PassInfo::Refused),
      SINTER_PASS(run_weight_copies, "weight-copies",
                  "keeps the narrow copies of weights that contractions read as states"),
      SINTER_PASS(run_cse, "cse", "merges equal ops of one segment"),
      SINTER_PASS(run_dce, "dce", "removes ops and sub-graphs that nothing uses"),
      SINTER_PASS(run_recompute, "recompute",
                  "computes forward values again where the backward pass needs them",
                  "budget=BYTES", PassInfo::RunsOff),
      SINTER_PASS(run_native, "native", "hands ops to kernel templates where the target has one",
                  "use=KERNEL skip=OP,… require=OP,… unordered=OP,…"),
      SINTER_PASS(run_expand, "expand",
                  "replaces composite ops by smaller ones, and orders and splits reductions", "",
                  PassInfo::Refused),
      SINTER_PASS(run_align, "align",
                  "pads products of tensor cores to rows that wide loads can read"),
      SINTER_PASS(run_layout, "layout", "says which ops are free views", "", PassInfo::RunsOff),
      SINTER_PASS(run_fuse, "fuse", "makes kernels of ops that can share one", "",
                  PassInfo::RunsOff),
      SINTER_PASS(run_bundle, "bundle", "makes one launch of small kernels that are alike"),
      SINTER_PASS(run_order, "order", "moves ops earlier where that frees memory", "",
                  PassInfo::Refused),
      SINTER_PASS(run_plan_memory, "plan-memory", "gives every value its place in one arena", "",
                  PassInfo::RunsOff),
  };
  return rows;
}

const PassInfo* find_pass(std::string_view name) {
  for (const PassInfo& pass : pass_registry())
    if (pass.name == name) return &pass;
  return nullptr;
}

}  // namespace sinter
