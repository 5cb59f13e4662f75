#include <sinter/codegen/flash_hopper_source.h>

#include <sinter/codegen/templates.h>
#include <sinter/ir/diagnostic.h>

#include <fmt/format.h>

namespace sinter {
bool flash_hopper_takes(const FlashInstance& i) {
  return flash_hopper_takes(i.head_dim, i.value_dim, static_cast<int>(size_of(i.element))) &&
         !i.mask && !i.bias;
}
bool flash_hopper_rich(const FlashInstance& i) {
  return i.softcap || i.slopes || i.dropout || i.documents || i.kv_length || i.window;
}

std::string flash_hopper_source(FlashHopperUnit unit, const FlashInstance& instance,
                                const FlashHopperTiles& t, bool deterministic,
                                std::string_view suffix) {
  SINTER_CHECK(flash_hopper_takes(instance) && t.exists(), "no Hopper kernel for this attention");
  FlashTiles tiles;
  tiles.tile_m = t.tile_m;
  tiles.tile_n = t.tile_n;
  tiles.stages = t.stages;
  tiles.warps = t.warps();
  tiles.shared_bytes = t.shared_bytes;
  std::string text;
  for (std::string_view name :
       {"prelude.cuh", "prelude_common.h", "ptx.cuh", "ptx_hopper.cuh", "flash_params.cuh"})
    text += template_text(name);
  text += flash_preamble(instance, tiles);
  text += fmt::format(
      "constexpr int kFeederRegisters = {}, kConsumerRegisters = {}, kQStages = {};\n"
      "constexpr bool kReuseQ = {}, kPingPong = {}, kJoin = {}, kLag = {}, kDeterministic = {};\n",
      t.feeder_registers, t.consumer_registers, t.q_stages, t.reuse_q, t.ping_pong, t.join, t.lag,
      deterministic);
  for (std::string_view name : {"flash_common.cuh", "flash_hopper_common.cuh"})
    text += template_text(name);
  if (!suffix.empty()) {
    for (std::string_view entry : {"forward", "prepare", "backward", "finish"})
      text += fmt::format("#define flash_hopper_{0} flash_hopper_{0}_{1}\n", entry, suffix);
  }
  if (unit == FlashHopperUnit::Backward) text += template_text("flash_hopper_order.cuh");
  text += template_text(unit == FlashHopperUnit::Forward ? "flash_hopper_forward.cuh"
                                                         : "flash_hopper_backward.cuh");
  return text;
}

FlashHopperBox flash_hopper_box(FlashHopperUnit unit, FlashHopperOperand operand,
                                const FlashInstance& i, const FlashHopperTiles& t) {
  using Operand = FlashHopperOperand;
  const bool of_values = operand == Operand::V || operand == Operand::Y;
  const int width = unit == FlashHopperUnit::Backward
                        ? flash_hopper_spread(i.head_dim, i.value_dim)
                        : flash_hopper_width(of_values ? i.value_dim : i.head_dim);
  FlashHopperBox box;
  box.columns = width % 64 == 0 ? 64 : 32;
  box.swizzle = 2 * box.columns;
  box.rows = operand == Operand::K || operand == Operand::V    ? t.tile_n
             : operand == Operand::Q || operand == Operand::Dy ? t.tile_m
                                                               : 64;
  return box;
}

FlashHopperSpace flash_hopper_space(const FlashInstance& i, const FlashHopperTiles& t,
                                    int64_t batch, int64_t heads, int64_t queries) {
  return flash_hopper_space(i.head_dim, i.value_dim, t, static_cast<size_t>(batch),
                            static_cast<size_t>(heads), static_cast<size_t>(queries));
}

}  // namespace sinter
