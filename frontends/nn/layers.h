#pragma once
// Layers: functions of a scope, which names their parameters, and their inputs.
//
// Rows are what a layer works on: x [..., C]. Ops carry the place of the layer's call.

#include <sinter/frontends/dsl/model.h>
#include <sinter/ir/ops/conv.h>

namespace sinter::nn {

struct LinearOptions {
  bool bias = true;
  Initializer weight = init::xavier();
};
// x weight + bias, with `weight` [C, outputs] and `bias` [outputs].
Value linear(const Scope& g, Value x, int64_t outputs, const LinearOptions& options = {},
             SourceLocation loc = SourceLocation::here());

struct Conv2dOptions {
  ConvAttrs window;  // stride, padding, dilation, groups
  bool bias = true;
  Initializer
      weight;  // none: normal, of deviation sqrt(2 / inputs of one output) (He et al., 2015)
};
// The convolution of x [N, C, H, W] with `weight` [channels, C / groups, kernel…], plus `bias`
// [channels].
Value conv2d(const Scope& g, Value x, int64_t channels, std::vector<int64_t> kernel,
             const Conv2dOptions& options = {}, SourceLocation loc = SourceLocation::here());

// With `weight` and `bias` [C].
Value layer_norm(const Scope& g, Value x, double eps = 1e-5,
                 SourceLocation loc = SourceLocation::here());
// With `weight` [C].
Value rms_norm(const Scope& g, Value x, double eps = 1e-5,
               SourceLocation loc = SourceLocation::here());
// The rows `ids` of `weight` [rows, width]: ids.shape + [width].
Value embedding(const Scope& g, Value ids, int64_t rows, int64_t width,
                const Initializer& weight = init::normal(0.02),
                SourceLocation loc = SourceLocation::here());

struct FeedForwardOptions {
  bool bias = true;
  Initializer weight = init::normal(0.02);
  Initializer projection = init::normal(0.02);  // of the layer that leads back
  double dropout = 0;                           // of the hidden values
};
// proj(gelu(fc(x))), gelu in its tanh form; `fc` is C to hidden, `proj` hidden to C.
Value mlp(const Scope& g, Value x, int64_t hidden, const FeedForwardOptions& options = {},
          SourceLocation loc = SourceLocation::here());
// down(silu(gate) * up), gate and up being the halves of gate_up(x) [..., 2 hidden].
Value swiglu(const Scope& g, Value x, int64_t hidden,
             const FeedForwardOptions& options = {.bias = false},
             SourceLocation loc = SourceLocation::here());

struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  // 0: as many as heads; else a divisor of heads
  int64_t head_dim = 0;  // 0: C / heads
  // Rows of one sequence, when x is [rows, C]; 0: x is [batch, length, C].
  int64_t length = 0;
  bool causal = true;
  bool bias = true;
  double rope_base = 0;  // 0: no rotary embedding
  bool qk_norm = false;  // an rms_norm of each head's queries and keys, `q_norm` and `k_norm`
  double norm_eps = 1e-5;
  double dropout = 0;  // of the probabilities
  Initializer weight = init::normal(0.02);
  Initializer projection = init::normal(0.02);
};
// Multi-head self-attention: proj(attention(qkv(x))). `qkv` gives heads * head_dim queries, then
// kv_heads * head_dim keys, then as many values; heads are consecutive chunks of head_dim.
Value attention(const Scope& g, Value x, const AttentionOptions& options,
                SourceLocation loc = SourceLocation::here());

}  // namespace sinter::nn
