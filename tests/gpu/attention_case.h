#pragma once
// Attention as a graph, in every option: its inputs, and what it must give, in f64.

#include <sinter/ir/graph.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/runtime/executable.h>

#include <array>
#include <string>
#include <vector>

namespace sinter::test {

struct AttentionCase {
  std::string name;  // of its graph
  int64_t batch = 1, heads = 3, kv_heads = 1, queries = 64, keys = 64, dim = 64, value_dim = 64;
  AttentionAttrs attrs = {};
  bool mask = false, bias = false, slopes = false;
  std::vector<int32_t> lengths = {};    // of each sequence, or none
  std::vector<int32_t> documents = {};  // their sizes, in each sequence, or none
  // Most rows see no more than three keys: there the rounding of y, of which backward kernels take
  // the row sums, shows in dq and dk.
  bool few_keys = false;
};

// y, dq, dk, dv.
constexpr std::array<const char*, 4> kAttentionResults = {"y", "dq", "dk", "dv"};
using AttentionAnswer = std::array<std::vector<double>, 4>;

// Adds the graph that computes them, for elements of `type`: attention and its gradients from a
// cotangent dy, with the row statistics kept that kernels of the gradient read.
void add_attention(Module& module, const AttentionCase& c, DType type);
// The graph's inputs. The numbers are those of bf16 whatever the type, so that one answer holds for
// all types.
Bindings attention_inputs(const AttentionCase& c, DType type);
AttentionAnswer attention_answer(const AttentionCase& c);

// ||got - want|| / ||want|| for each result; infinite where something is not finite. dq and dk,
// which are exactly 0 where rows see one key, are measured by a tenth of dv at least.
std::array<double, 4> attention_errors(const Bindings& got, const AttentionAnswer& want);

}  // namespace sinter::test
