#include <sinter/codegen/flash_source.h>

#include <sinter/codegen/templates.h>
#include <sinter/ir/diagnostic.h>

#include <fmt/format.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace sinter {
namespace {

struct Template {
  std::string_view entry, file;
  bool fragments;  // needs flash_fragments.cuh
};
Template template_of(FlashKernel kernel) {
  switch (kernel) {
    case FlashKernel::Forward:
      return {"flash_forward", "flash_portable_forward.cuh", true};
    case FlashKernel::Delta:
      return {"flash_delta", "flash_delta.cuh", false};
    case FlashKernel::Backward:
      return {"flash_backward", "flash_portable_backward.cuh", true};
    case FlashKernel::BackwardFinish:
      return {"flash_backward_finish", "flash_portable_backward.cuh", true};
    case FlashKernel::PlainForward:
      return {"flash_plain_forward", "flash_plain.cuh", false};
    case FlashKernel::PlainBackwardKv:
      return {"flash_plain_backward_kv", "flash_plain.cuh", false};
    case FlashKernel::PlainBackwardQ:
      return {"flash_plain_backward_q", "flash_plain.cuh", false};
  }
  SINTER_CHECK(false, "no such attention kernel");
  return {};
}

std::string_view type_name(DType type) {
  switch (type) {
    case DType::BF16:
      return "bf16";
    case DType::F16:
      return "f16";
    case DType::F64:
      return "double";
    default:
      SINTER_CHECK(type == DType::F32, "attention on elements of {}", to_string(type));
      return "float";
  }
}

}  // namespace

std::string flash_preamble(const FlashInstance& i, const FlashTiles& t) {
  std::string text = fmt::format(
      "using Element = {};\nusing BiasElement = {};\n"
      "constexpr int kHeadDim = {}, kValueDim = {};\n"
      "constexpr int kTileM = {}, kTileN = {}, kStages = {}, kWarps = {}, kSharedBytes = {};\n",
      type_name(i.element), type_name(i.bias.value_or(DType::F32)), i.head_dim, i.value_dim,
      t.tile_m, t.tile_n, t.stages, t.warps, t.shared_bytes);
  for (auto [name, on] :
       std::initializer_list<std::pair<std::string_view, bool>>{{"kCausal", i.causal},
                                                                {"kWindow", i.window},
                                                                {"kSoftcap", i.softcap},
                                                                {"kMask", i.mask},
                                                                {"kBias", i.bias.has_value()},
                                                                {"kKvLength", i.kv_length},
                                                                {"kDocuments", i.documents},
                                                                {"kSlopes", i.slopes},
                                                                {"kDropout", i.dropout}})
    text += fmt::format("constexpr bool {} = {};\n", name, on);
  return text;
}

std::string_view flash_entry(FlashKernel kernel) {
  return template_of(kernel).entry;
}

std::string flash_source(FlashKernel kernel, const FlashInstance& instance, FlashTiles tiles,
                         bool deterministic, std::string_view entry) {
  const Template from = template_of(kernel);
  // One unit of text for both kernels of the backward pass.
  if (kernel == FlashKernel::BackwardFinish)
    tiles.shared_bytes =
        flash_shared_bytes(FlashKernel::Backward, tiles, instance.head_dim, instance.value_dim);
  std::string text;
  for (std::string_view name : {"prelude.cuh", "prelude_common.h", "ptx.cuh", "flash_params.cuh"})
    text += template_text(name);
  text += flash_preamble(instance, tiles);
  text += template_text("flash_common.cuh");
  if (from.fragments) {
    text += fmt::format(
        "constexpr int kWarpsM = {}, kTurns = {};\n"
        "constexpr bool kHoldV = {}, kDeterministic = {};\n",
        tiles.warps_m, tiles.turns, tiles.hold_v, deterministic);
    text += template_text("flash_fragments.cuh");
  }
  if (!entry.empty() && entry != from.entry)
    text += fmt::format("#define {} {}\n", from.entry, entry);
  text += template_text(from.file);
  return text;
}

int64_t flash_blocks(FlashKernel kernel, const FlashTiles& tiles, int64_t batch, int64_t heads,
                     int64_t kv_heads, int64_t queries, int64_t keys) {
  const bool by_keys = kernel == FlashKernel::Backward || kernel == FlashKernel::PlainBackwardKv;
  const int64_t rows = by_keys ? (keys + tiles.tile_n - 1) / tiles.tile_n * kv_heads
                               : (queries + tiles.tile_m - 1) / tiles.tile_m * heads;
  return rows * batch;
}

}  // namespace sinter
