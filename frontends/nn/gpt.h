#pragma once
// Decoder-only transformers: GPT-2, and the Llama family.

#include <sinter/frontends/nn/layers.h>

#include <optional>
#include <span>

namespace sinter::nn {

enum class GptStyle : uint8_t {
  // Learned positions, LayerNorm, gelu, biases, the head tied to the embedding. Parameters:
  // wte.weight, wpe.weight, blocks.N.{ln1,attn.qkv,attn.proj,ln2,mlp.fc,mlp.proj}.{weight,bias},
  // ln_f.{weight,bias}.
  Gpt2,
  // Rotary positions, RMSNorm, swiglu, no biases, grouped key heads. Parameters: embed.weight,
  // blocks.N.{norm1,attn.qkv,attn.proj,norm2,mlp.gate_up,mlp.down}.weight, norm_f.weight and,
  // unless tied, head.weight.
  Llama,
};

struct GptConfig {
  GptStyle style = GptStyle::Gpt2;
  int64_t layers = 4, heads = 4, width = 128;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: width / heads
  int64_t hidden = 0;    // of the feed-forward part; 0: 4 width, or 8/3 width for Llama
  int64_t vocab = 256, context = 128;
  double dropout =
      0;  // of the embedding, of attention's probabilities, and of what joins the stream
  double rope_base = 10000;  // Llama
  double norm_eps = 1e-5;
  bool tied = true;  // Llama: the head is the embedding
  bool qk_norm = false;
  int64_t recompute_group = 0;  // so many blocks are a recompute segment; 0: none is

  // Throws Error where sizes do not fit together.
  void check() const;
  // The same with every 0 that stands for a default replaced by it.
  GptConfig resolved() const;
  int64_t parameter_count() const;
};

// gpt2-124m, tinyllama-1.1b, qwen3-0.6b, and the small ones tiny, small and tiny-llama; nullopt for
// any other.
std::optional<GptConfig> gpt_preset(std::string_view name);
std::span<const std::string_view> gpt_preset_names();

// Logits [batch * length, vocab] of ids [batch, length], an integer type; length is at most
// config.context. With `rows` [n], only of those rows: [n, vocab]. Weights start at deviation 0.02,
// those that lead into the residual stream at 0.02 / sqrt(2 layers).
Value gpt(const Scope& g, Value ids, const GptConfig& config, Value rows = {});

}  // namespace sinter::nn
