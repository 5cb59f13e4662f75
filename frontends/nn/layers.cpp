#include <sinter/frontends/nn/layers.h>
#include <sinter/ir/ops.h>

#include <cmath>

namespace sinter::nn {
namespace {

// Operators take their place from the calling code; within a layer that is the layer's caller.
Operand at(Value v, const SourceLocation& loc) {
  return {v, loc.file ? loc.file->c_str() : "", loc.line};
}

void require_rows(std::string_view layer, Value x, const SourceLocation& loc) {
  if (!x) throw Error(Diagnostic{loc, fmt::format("{}: no input", layer)});
  if (x.rank() < 1)
    throw Error(Diagnostic{loc, fmt::format("{}: x ({}) has no axis", layer, x.type().str())});
}

}  // namespace

Value linear(const Scope& g, Value x, int64_t outputs, const LinearOptions& options,
             SourceLocation loc) {
  require_rows("linear", x, loc);
  Value weight = g.parameter("weight", {x.dim(-1), outputs}, options.weight, loc);
  Value y = matmul(x, weight, false, false, loc);
  if (!options.bias) return y;
  return at(y, loc) + at(g.parameter("bias", {outputs}, init::zeros(), loc), loc);
}

Value conv2d(const Scope& g, Value x, int64_t channels, std::vector<int64_t> kernel,
             const Conv2dOptions& options, SourceLocation loc) {
  if (!x) throw Error(Diagnostic{loc, "conv2d: no input"});
  if (x.rank() != 4 || kernel.size() != 2 || options.window.groups < 1)
    throw Error(Diagnostic{loc, fmt::format("conv2d: takes [N, C, H, W], a kernel of 2 extents and "
                                            "groups, got {} and {} extents",
                                            x.type().str(), kernel.size())});
  Shape shape{channels, x.dim(1) / options.window.groups, kernel[0], kernel[1]};
  Initializer weight = options.weight;
  if (!weight) {
    auto inputs = static_cast<double>(shape[1] * shape[2] * shape[3]);
    weight = init::normal(std::sqrt(2.0 / inputs));
  }
  Value w = g.parameter("weight", shape, weight, loc), bias;
  if (options.bias) bias = g.parameter("bias", {channels}, init::zeros(), loc);
  return sinter::conv2d(x, w, bias, options.window, std::move(loc));
}

Value layer_norm(const Scope& g, Value x, double eps, SourceLocation loc) {
  require_rows("layer_norm", x, loc);
  Value weight = g.parameter("weight", {x.dim(-1)}, init::ones(), loc);
  Value bias = g.parameter("bias", {x.dim(-1)}, init::zeros(), loc);
  return sinter::layer_norm(x, weight, bias, eps, std::move(loc));
}

Value rms_norm(const Scope& g, Value x, double eps, SourceLocation loc) {
  require_rows("rms_norm", x, loc);
  Value weight = g.parameter("weight", {x.dim(-1)}, init::ones(), loc);
  return sinter::rms_norm(x, weight, eps, std::move(loc));
}

Value embedding(const Scope& g, Value ids, int64_t rows, int64_t width, const Initializer& weight,
                SourceLocation loc) {
  Value table = g.parameter("weight", {rows, width}, weight, loc);
  return sinter::embedding(table, ids, std::move(loc));
}

Value mlp(const Scope& g, Value x, int64_t hidden, const FeedForwardOptions& options,
          SourceLocation loc) {
  require_rows("mlp", x, loc);
  Value h = linear(g / "fc", x, hidden, {options.bias, options.weight}, loc);
  h = g.dropout(gelu(h, "tanh", loc), options.dropout, loc);
  return linear(g / "proj", h, x.dim(-1), {options.bias, options.projection}, loc);
}

Value swiglu(const Scope& g, Value x, int64_t hidden, const FeedForwardOptions& options,
             SourceLocation loc) {
  require_rows("swiglu", x, loc);
  Value both = linear(g / "gate_up", x, 2 * hidden, {options.bias, options.weight}, loc);
  Value gate = slice_axis(both, -1, 0, hidden, 1, loc);
  Value up = slice_axis(both, -1, hidden, 2 * hidden, 1, loc);
  Value h = g.dropout(at(silu(gate, loc), loc) * at(up, loc), options.dropout, loc);
  return linear(g / "down", h, x.dim(-1), {options.bias, options.projection}, loc);
}

Value attention(const Scope& g, Value x, const AttentionOptions& o, SourceLocation loc) {
  require_rows("attention", x, loc);
  auto fail = [&](const std::string& why) -> void {
    throw Error(Diagnostic{loc, fmt::format("attention: {}", why)});
  };
  if (x.rank() != (o.length > 0 ? 2 : 3))
    fail(fmt::format("x ({}) must be {}", x.type().str(),
                     o.length > 0 ? "[rows, C] where a length is given" : "[batch, length, C]"));
  int64_t width = x.dim(-1), length = o.length > 0 ? o.length : x.dim(1);
  int64_t rows = num_elements(x.shape()) / std::max<int64_t>(width, 1);
  int64_t kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  if (o.heads <= 0 || o.heads % kv_heads != 0)
    fail(fmt::format("{} heads are no multiple of {} key and value heads", o.heads, kv_heads));
  if (o.head_dim <= 0 && width % o.heads != 0)
    fail(fmt::format("width {} is not divisible by {} heads", width, o.heads));
  int64_t head_dim = o.head_dim > 0 ? o.head_dim : width / o.heads;
  if (length <= 0 || rows % length != 0)
    fail(fmt::format("{} rows are no whole number of sequences of {}", rows, length));
  int64_t batch = rows / length, q_width = o.heads * head_dim, kv_width = kv_heads * head_dim;

  Value qkv = linear(g / "qkv", x, q_width + 2 * kv_width, {o.bias, o.weight}, loc);
  int64_t start = 0;
  auto take = [&](int64_t heads) {
    int64_t end = start + heads * head_dim;
    Value part = slice_axis(qkv, -1, start, end, 1, loc);
    start = end;
    return reshape(part, {batch, length, heads, head_dim}, loc);
  };
  Value q = take(o.heads), k = take(kv_heads), v = take(kv_heads);
  if (o.qk_norm) {
    q = rms_norm(g / "q_norm", q, o.norm_eps, loc);
    k = rms_norm(g / "k_norm", k, o.norm_eps, loc);
  }
  q = permute(q, {0, 2, 1, 3}, loc);
  k = permute(k, {0, 2, 1, 3}, loc);
  v = permute(v, {0, 2, 1, 3}, loc);
  if (o.rope_base > 0) {
    Value first = full(g.graph(), {DType::I32, {}}, 0, loc);
    q = rope(q, first, {.base = o.rope_base}, loc);
    k = rope(k, first, {.base = o.rope_base}, loc);
  }
  AttentionOperands operands{.q = q, .k = k, .v = v};
  AttentionAttrs attrs{.causal = o.causal};
  if (g.training() && o.dropout > 0) {
    attrs.p = o.dropout;
    Scope::Stream random = g.stream({q.dtype(), {batch, o.heads, length, length}}, loc);
    operands.seed = random.seed;
    operands.step = random.step;
    operands.offset = random.offset;
  }
  Value y = sinter::attention(operands, attrs, loc).y.named(g.name());
  Shape joined = x.shape();
  joined.back() = q_width;
  y = reshape(permute(y, {0, 2, 1, 3}, loc), std::move(joined), loc);
  return linear(g / "proj", y, width, {o.bias, o.projection}, loc);
}

}  // namespace sinter::nn
