// The rules of the attention kernels.

#include <sinter/passes/native_attention.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/passes/autocast.h>
#include <sinter/passes/detail/native_rules.h>

#include <algorithm>

namespace sinter {

namespace {

using Reason = std::optional<std::string>;

// What no kernel takes.
Reason declines_any(const AttentionCall& c, const Target&) {
  if (c.batch * c.heads * c.queries == 0 || c.keys == 0 || c.head_dim == 0 || c.value_dim == 0)
    return "there is nothing to do";
  if (c.queries > INT32_MAX / 2 || c.keys > INT32_MAX / 2) return "the sequences are too long";
  if (c.backward) {
    if (!c.has("y") || !c.has("lse")) return "y and lse of the forward op are missing";
    if (c.has("bias") && !c.op.result(3).uses().empty()) return "it makes no gradient of a bias";
  }
  return std::nullopt;
}

Reason declines_hopper(const Op& op, const Target& target) {
  if (target.arch != "sm_90a") return fmt::format("{} is not Hopper", target.arch);
  AttentionCall c(op);
  if (Reason reason = declines_any(c, target)) return reason;
  if (c.has("mask")) return "it takes no mask";
  if (c.has("bias")) return "it takes no bias";
  // Tiles and heads are counted in 16 bits.
  if (std::max(c.queries, c.keys) > int64_t{1} << 22) return "the sequences are too long";
  if (c.heads >= int64_t{1} << 16) return "there are too many heads";
  FlashHopperTiles tiles = c.hopper_tiles();
  if (!tiles.exists())
    return fmt::format("it has no tiles for {} and head sizes {} and {}", to_string(c.element),
                       c.head_dim, c.value_dim);
  if (static_cast<int64_t>(tiles.shared_bytes) > target.shared_memory)
    return fmt::format("it wants {} bytes of shared memory of {}", tiles.shared_bytes,
                       target.shared_memory);
  return std::nullopt;
}

// Why there are no tiles for one of these kernels of 16-bit elements.
Reason lacks_tiles(const AttentionCall& c, std::initializer_list<FlashKernel> kernels,
                   const Target& target) {
  auto tiles = [&](FlashKernel kernel, int64_t shared) {
    return flash_tiles(kernel, static_cast<int>(c.head_dim), static_cast<int>(c.value_dim), 2,
                       static_cast<size_t>(std::max<int64_t>(shared, 0)));
  };
  constexpr int64_t kKib = 1024, kMost = 256 * kKib;
  int64_t needed = 0;
  for (FlashKernel kernel : kernels) {
    if (tiles(kernel, target.shared_memory).exists()) continue;
    if (!tiles(kernel, kMost).exists())
      return fmt::format("head sizes {} and {} are no multiples of 8 up to 256", c.head_dim,
                         c.value_dim);
    int64_t limit = kKib;
    while (!tiles(kernel, limit).exists()) limit += kKib;
    needed = std::max(needed, static_cast<int64_t>(tiles(kernel, limit).shared_bytes));
  }
  if (needed == 0) return std::nullopt;
  return fmt::format(
      "for head sizes {} and {} the smallest tiles take {} bytes of shared memory, a block has {}",
      c.head_dim, c.value_dim, needed, target.shared_memory);
}

Reason declines_portable(const Op& op, const Target& target) {
  AttentionCall c(op);
  if (Reason reason = declines_any(c, target)) return reason;
  if (size_of(c.element) != 2)
    return fmt::format("elements are {}, not bf16 or f16", to_string(c.element));
  return lacks_tiles(c, {c.backward ? FlashKernel::Backward : FlashKernel::Forward}, target);
}

Reason declines_plain(const Op& op, const Target& target) {
  AttentionCall c(op);
  if (Reason reason = declines_any(c, target)) return reason;
  if (c.head_dim > 256 || c.value_dim > 256) return "head sizes are above 256";
  return std::nullopt;
}

// Products by a library are faster, as long as their matrices fit.
Reason plain_is_slower(const Op& op, const Target& target) {
  AttentionCall c(op);
  double scores = 4.0 * static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries) *
                  static_cast<double>(c.keys);
  int64_t memory = target.memory > 0 ? target.memory : int64_t{16} << 30;
  if (scores < static_cast<double>(memory) / 8) return "matrices of scores fit, and are faster";
  return std::nullopt;
}

// 16-byte accesses.
bool takes_strides(const Op& op, bool is_result, size_t index, int64_t offset,
                   const std::vector<int64_t>& strides) {
  std::string_view name = is_result ? "" : op.def().operands[index].name;
  bool tensor = is_result
                    ? index != 1 || op.is("attention_backward")
                    : name == "q" || name == "k" || name == "v" || name == "y" || name == "dy";
  if (op.is("attention") && is_result) tensor = index == 0;
  if (op.is("attention_backward") && is_result) tensor = index < 3;
  if (!tensor) return false;
  DType type = is_result ? op.result(index).dtype() : op.operand(index).dtype();
  const Shape& shape = is_result ? op.result(index).shape() : op.operand(index).shape();
  int64_t unit = std::max<int64_t>(16 / size_of(type), 1);
  if (strides.size() != 4 || (shape[3] != 1 && strides[3] != 1) || offset % unit != 0) return false;
  for (size_t i = 0; i < 3; ++i)
    if (shape[i] != 1 && strides[i] % unit != 0) return false;
  return true;
}
bool takes_any_rows(const Op& op, bool is_result, size_t index, int64_t,
                    const std::vector<int64_t>& strides) {
  // The plain kernels read single elements.
  std::vector<int64_t> aligned = strides;
  for (size_t i = 0; i + 1 < aligned.size(); ++i) aligned[i] = 0;
  return takes_strides(op, is_result, index, 0, aligned);
}

int64_t hopper_scratch(const Op& op, const Target&) {
  AttentionCall c(op);
  return c.backward ? attention_hopper_scratch(c).bytes : 0;
}
int64_t portable_scratch(const Op& op, const Target& target) {
  AttentionCall c(op);
  return c.backward ? attention_portable_scratch(c, target).bytes : 0;
}
int64_t plain_scratch(const Op& op, const Target&) {
  AttentionCall c(op);
  return c.backward ? attention_delta_bytes(c) : 0;
}

}  // namespace

AttentionCall::AttentionCall(const Op& of)
    : op(of),
      backward(of.is("attention_backward")),
      element(of.operand(0).dtype()),
      batch(of.operand(0).dim(0)),
      heads(of.operand(0).dim(1)),
      kv_heads(of.operand(1).dim(1)),
      queries(of.operand(0).dim(2)),
      keys(of.operand(1).dim(2)),
      head_dim(of.operand(0).dim(3)),
      value_dim(of.operand(2).dim(3)) {}

Value AttentionCall::operand(std::string_view name) const {
  const auto& specs = op.def().operands;
  for (size_t i = 0; i < specs.size() && i < op.operands().size(); ++i)
    if (specs[i].name == name) return op.operand(i);
  return {};
}

bool AttentionCall::rich() const {
  const auto& a = op.attrs<AttentionAttrs>();
  return a.softcap > 0 || a.p > 0 || a.window > 0 || has("slopes") || has("boundaries") ||
         has("kv_length");
}

FlashTiles AttentionCall::tiles(FlashKernel kernel, const Target& target) const {
  return flash_tiles(kernel, static_cast<int>(head_dim), static_cast<int>(value_dim),
                     static_cast<int>(size_of(element)),
                     static_cast<size_t>(std::max<int64_t>(target.shared_memory, 0)));
}

FlashHopperTiles AttentionCall::hopper_tiles() const {
  auto d = static_cast<int>(head_dim), dv = static_cast<int>(value_dim);
  auto bytes = static_cast<int>(size_of(element));
  return backward ? flash_hopper_backward_tiles(d, dv, bytes)
                  : flash_hopper_forward_tiles(d, dv, bytes, rich());
}

namespace {
// The next place for so many bytes.
int64_t take(int64_t& bytes, size_t wanted) {
  int64_t at = bytes;
  bytes += static_cast<int64_t>((wanted + 255) / 256 * 256);
  return at;
}
}  // namespace

HopperScratch attention_hopper_scratch(const AttentionCall& c) {
  FlashHopperSpace space = flash_hopper_space(
      static_cast<int>(c.head_dim), static_cast<int>(c.value_dim), c.hopper_tiles(),
      static_cast<size_t>(c.batch), static_cast<size_t>(c.heads), static_cast<size_t>(c.queries));
  HopperScratch s;
  s.rows = take(s.bytes, space.rows);
  s.sums = take(s.bytes, space.sums);
  s.turns = take(s.bytes, space.turns);
  return s;
}

PortableScratch attention_portable_scratch(const AttentionCall& c, const Target& target) {
  FlashSpace space = flash_space(c.tiles(FlashKernel::Backward, target),
                                 static_cast<int>(c.head_dim), static_cast<size_t>(c.batch),
                                 static_cast<size_t>(c.heads), static_cast<size_t>(c.queries));
  PortableScratch s;
  take(s.bytes, static_cast<size_t>(attention_delta_bytes(c)));
  s.sums = take(s.bytes, space.sums);
  s.turns = take(s.bytes, space.turns);
  return s;
}

int64_t attention_delta_bytes(const AttentionCall& c) {
  return c.batch * c.heads * c.queries * size_of(compute_type(c.element));
}

bool has_native_attention(const Op& op, const Target& target,
                          const std::function<bool(Value)>& learned, std::string* why) {
  auto decline = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return false;
  };
  if (!target.is_cuda()) return decline(fmt::format("{} is no CUDA target", target.arch));
  AttentionCall c(op);
  if (Reason reason = declines_any(c, target)) return decline(*reason);
  for (std::string_view name : {"bias", "slopes"})
    if (Value v = c.operand(name); v && learned(v))
      return decline(fmt::format("{} learned, and no kernel makes {} gradient",
                                 name == "bias" ? "the bias is" : "the slopes are",
                                 name == "bias" ? "its" : "their"));
  // f32 becomes the type of the graph's mixed precision later.
  int64_t bytes = size_of(c.element);
  const AttrMap& attributes = op.graph().attributes;
  if (auto cast = attributes.find(kAutocastAttribute);
      c.element == DType::F32 && cast != attributes.end()) {
    const auto* type = std::get_if<std::string>(&cast->second);
    if (type != nullptr && (*type == "bf16" || *type == "f16")) bytes = 2;
  }
  if (bytes != 2) return decline(fmt::format("elements are {}", to_string(c.element)));
  Reason reason = lacks_tiles(c, {FlashKernel::Forward, FlashKernel::Backward}, target);
  return reason ? decline(*reason) : true;
}

void detail::add_attention_rules(std::vector<NativeRule>& rules) {
  for (std::string_view op : {"attention", "attention_backward"}) {
    if (op == "attention_backward")
      rules.push_back(
          {op, "hopper_unordered", declines_hopper, hopper_scratch, takes_strides, nullptr, true});
    rules.push_back({op, "hopper", declines_hopper, hopper_scratch, takes_strides});
    if (op == "attention_backward")
      rules.push_back({op, "portable_unordered", declines_portable, portable_scratch, takes_strides,
                       nullptr, true});
    rules.push_back({op, "portable", declines_portable, portable_scratch, takes_strides});
    rules.push_back({op, "plain", declines_plain, plain_scratch, takes_any_rows, plain_is_slower});
  }
}

}  // namespace sinter
