#include <sinter/frontends/nn/gpt.h>
#include <sinter/ir/ops.h>

#include <array>
#include <cmath>

namespace sinter::nn {
namespace {

struct Initializers {
  Initializer weight, projection;
};

// Radford et al., 2019: what leads into the residual stream starts smaller the deeper the model.
Initializers initializers(const GptConfig& c) {
  double depth = static_cast<double>(2 * c.layers);
  return {init::normal(0.02), init::normal(0.02 / std::sqrt(depth))};
}

AttentionOptions attention_options(const GptConfig& c, int64_t length, const Initializers& with) {
  bool llama = c.style == GptStyle::Llama;
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .length = length,
          .bias = !llama,
          .rope_base = llama ? c.rope_base : 0,
          .qk_norm = c.qk_norm,
          .norm_eps = c.norm_eps,
          .dropout = c.dropout,
          .weight = with.weight,
          .projection = with.projection};
}

Value gpt2_block(const Scope& g, Value x, int64_t length, const GptConfig& c,
                 const Initializers& with) {
  Value h = layer_norm(g / "ln1", x, c.norm_eps);
  h = attention(g / "attn", h, attention_options(c, length, with));
  x = x + g.dropout(h, c.dropout);
  h = layer_norm(g / "ln2", x, c.norm_eps);
  h = mlp(g / "mlp", h, c.hidden, {.weight = with.weight, .projection = with.projection});
  return x + g.dropout(h, c.dropout);
}

Value llama_block(const Scope& g, Value x, int64_t length, const GptConfig& c,
                  const Initializers& with) {
  Value h = rms_norm(g / "norm1", x, c.norm_eps);
  h = attention(g / "attn", h, attention_options(c, length, with));
  x = x + g.dropout(h, c.dropout);
  h = rms_norm(g / "norm2", x, c.norm_eps);
  h = swiglu(g / "mlp", h, c.hidden, {false, with.weight, with.projection});
  return x + g.dropout(h, c.dropout);
}

Value gpt2_stem(const Scope& g, Value ids, const GptConfig& c, const Initializers& with) {
  int64_t batch = ids.dim(0), length = ids.dim(1);
  Value tokens = embedding(g / "wte", ids, c.vocab, c.width, with.weight);
  Value places = (g / "wpe").parameter("weight", {c.context, c.width}, with.weight);
  if (length != c.context) places = slice_axis(places, 0, 0, length);
  return reshape(tokens + places, {batch * length, c.width});
}

constexpr std::array<std::string_view, 6> kPresetNames{"tiny",      "small",          "tiny-llama",
                                                       "gpt2-124m", "tinyllama-1.1b", "qwen3-0.6b"};

}  // namespace

GptConfig GptConfig::resolved() const {
  GptConfig c = *this;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0 && c.heads > 0) c.head_dim = c.width / c.heads;
  // Two thirds of 4 width, as three matrices then hold what two would, in whole vectors of 32.
  if (c.hidden == 0)
    c.hidden = style == GptStyle::Gpt2 ? 4 * c.width : (8 * c.width / 3 + 31) / 32 * 32;
  return c;
}

void GptConfig::check() const {
  auto positive = [](std::string_view what, int64_t value) {
    if (value <= 0) throw Error(fmt::format("{} must be positive, not {}", what, value));
  };
  positive("layers", layers);
  positive("heads", heads);
  positive("width", width);
  positive("vocab", vocab);
  positive("context", context);
  if (kv_heads < 0 || head_dim < 0 || hidden < 0)
    throw Error("kv-heads, head-dim and hidden must not be negative");
  if (head_dim == 0 && width % heads != 0)
    throw Error(fmt::format("width {} is not divisible by {} heads", width, heads));
  if (kv_heads > 0 && heads % kv_heads != 0)
    throw Error(fmt::format("{} heads are not divisible by {} kv-heads", heads, kv_heads));
  if (style == GptStyle::Llama && resolved().head_dim % 2 != 0)
    throw Error(fmt::format("head-dim {} must be even for rotary positions", resolved().head_dim));
  if (!(dropout >= 0 && dropout < 1))
    throw Error(fmt::format("dropout must lie in [0, 1), not {}", dropout));
}

int64_t GptConfig::parameter_count() const {
  GptConfig c = resolved();
  int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  int64_t attention_weights = c.width * (q + 2 * kv) + q * c.width;
  if (c.style == GptStyle::Gpt2)
    return c.layers * (attention_weights + q + 2 * kv + c.width + 2 * c.width * c.hidden +
                       c.hidden + c.width + 4 * c.width) +
           (c.vocab + c.context + 2) * c.width;
  return c.layers * (attention_weights + 3 * c.width * c.hidden + 2 * c.width +
                     (c.qk_norm ? 2 * c.head_dim : 0)) +
         (c.tied ? 1 : 2) * c.vocab * c.width + c.width;
}

std::span<const std::string_view> gpt_preset_names() {
  return kPresetNames;
}

std::optional<GptConfig> gpt_preset(std::string_view name) {
  if (name == "tiny") return GptConfig{};
  if (name == "small") return GptConfig{.layers = 6, .heads = 6, .width = 384, .context = 256};
  if (name == "tiny-llama")
    return GptConfig{.style = GptStyle::Llama, .kv_heads = 2, .qk_norm = true};
  if (name == "gpt2-124m")
    return GptConfig{.layers = 12, .heads = 12, .width = 768, .vocab = 50257, .context = 1024};
  if (name == "tinyllama-1.1b")
    return GptConfig{.style = GptStyle::Llama,
                     .layers = 22,
                     .heads = 32,
                     .width = 2048,
                     .kv_heads = 4,
                     .hidden = 5632,
                     .vocab = 32000,
                     .context = 2048,
                     .tied = false};
  if (name == "qwen3-0.6b")
    return GptConfig{.style = GptStyle::Llama,
                     .layers = 28,
                     .heads = 16,
                     .width = 1024,
                     .kv_heads = 8,
                     .head_dim = 128,
                     .hidden = 3072,
                     .vocab = 151936,
                     .context = 2048,
                     .rope_base = 1e6,
                     .norm_eps = 1e-6,
                     .qk_norm = true};
  return std::nullopt;
}

Value gpt(const Scope& g, Value ids, const GptConfig& config, Value rows) {
  config.check();
  const GptConfig c = config.resolved();
  if (ids.rank() != 2 || ids.dim(1) > c.context)
    throw Error(fmt::format("gpt: ids ({}) must be [batch, length] with a length of at most {}",
                            ids.type().str(), c.context));
  const bool llama = c.style == GptStyle::Llama;
  const Initializers with = initializers(c);
  int64_t length = ids.dim(1);

  // Activations are rows [batch * length, width] throughout, so that matrix products see matrices.
  Value x;
  if (llama)
    x = reshape(embedding(g / "embed", ids, c.vocab, c.width, with.weight),
                {ids.dim(0) * length, c.width});
  else
    x = gpt2_stem(g, ids, c, with);
  x = g.dropout(x, c.dropout);
  for (int64_t i = 0; i < c.layers; ++i) {
    int64_t group = c.recompute_group;
    std::string segment = group > 0 ? fmt::format("blocks.{}", i / group * group) : "";
    auto recompute = with_recompute(g, std::move(segment));
    Scope block = g / "blocks" / i;
    x = llama ? llama_block(block, x, length, c, with) : gpt2_block(block, x, length, c, with);
  }
  if (rows) x = sinter::embedding(x, rows);
  x = llama ? rms_norm(g / "norm_f", x, c.norm_eps) : layer_norm(g / "ln_f", x, c.norm_eps);
  // The head reads the embedding's rows as its columns.
  std::string_view head = llama ? (c.tied ? "embed" : "head") : "wte";
  Value weight = (g / head).parameter("weight", {c.vocab, c.width}, with.weight);
  return matmul(x, weight, false, true).named("logits");
}

}  // namespace sinter::nn
