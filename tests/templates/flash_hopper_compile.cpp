// The Hopper attention templates through NVRTC, which needs no GPU: nothing spills, nothing runs
// serialized.

#include <sinter/codegen/flash_hopper_source.h>
#include <sinter/runtime/cuda/nvrtc.h>

#include <doctest/doctest.h>

namespace {

using sinter::FlashHopperUnit;
using sinter::FlashInstance;

FlashInstance instance_of(int size, bool causal) {
  FlashInstance instance;
  instance.head_dim = instance.value_dim = size;
  instance.causal = causal;
  return instance;
}
sinter::FlashHopperTiles tiles_of(FlashHopperUnit unit, const FlashInstance& i) {
  return unit == FlashHopperUnit::Backward
             ? sinter::flash_hopper_backward_tiles(i.head_dim, i.value_dim, 2)
             : sinter::flash_hopper_forward_tiles(i.head_dim, i.value_dim, 2,
                                                  sinter::flash_hopper_rich(i));
}

// Messages of ptxas that mean products do not overlap; C7519 alone is harmless.
bool serialized(const std::string& log) {
  for (size_t at = log.find("(C75"); at != std::string::npos; at = log.find("(C75", at + 1))
    if (log.compare(at, 7, "(C7519)") != 0) return true;
  return false;
}
sinter::cuda::CompiledUnit compile(FlashHopperUnit unit, const FlashInstance& instance,
                                   const sinter::FlashHopperTiles& tiles) {
  sinter::cuda::CompileRequest request;
  request.name = "flash_hopper";
  request.source = sinter::flash_hopper_source(unit, instance, tiles, true, "x");
  request.arch = "sm_90a";
  return sinter::cuda::compile(request);
}
sinter::cuda::CompiledUnit compile(FlashHopperUnit unit, const FlashInstance& instance) {
  return compile(unit, instance, tiles_of(unit, instance));
}

}  // namespace

TEST_CASE("Hopper attention tiles fit, and odd sizes are declined") {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8)
    for (int value_dim = 8; value_dim <= 256; value_dim += 8)
      for (bool rich : {false, true})
        CHECK(sinter::flash_hopper_forward_tiles(head_dim, value_dim, 2, rich).exists());
  CHECK(sinter::flash_hopper_backward_tiles(128, 40, 2).exists());
  CHECK_FALSE(sinter::flash_hopper_backward_tiles(136, 64, 2).exists());
  CHECK_FALSE(sinter::flash_hopper_forward_tiles(64, 64, 4, false).exists());
  CHECK_FALSE(sinter::flash_hopper_forward_tiles(60, 64, 2, false).exists());
  CHECK_FALSE(sinter::flash_hopper_forward_tiles(264, 64, 2, false).exists());
}

TEST_CASE("Hopper attention backward divides heads so that blocks share and have even work") {
  using sinter::flash_hopper_backward_parts;
  // 16k tokens, hidden 2048: what was fastest, or within 2 % of it.
  CHECK(flash_hopper_backward_parts(512, 8, 132, true) == 2);
  CHECK(flash_hopper_backward_parts(128, 32, 132, true) == 4);
  CHECK(flash_hopper_backward_parts(256, 8, 132, true) == 2);
  CHECK(flash_hopper_backward_parts(64, 32, 132, true) == 4);
  CHECK(flash_hopper_backward_parts(16, 128, 132, true) == 8);  // 128 blocks, even work
  CHECK(flash_hopper_backward_parts(128, 32, 132, false) >= 4);
  CHECK(flash_hopper_backward_parts(64, 32, 132, false) >= 4);
  CHECK(flash_hopper_backward_parts(32, 128, 132, false) >= 4);
  // 32 heads on 8 key heads.
  CHECK(flash_hopper_backward_parts(64, 16, 132, true) == 4);
  CHECK(flash_hopper_backward_parts(16, 64, 132, true) == 8);
  CHECK(flash_hopper_backward_parts(1, 1, 132, true) == 1);
  CHECK(flash_hopper_backward_parts(1, 1000, 132, false) == 128);
  CHECK(flash_hopper_backward_parts(0, 4, 132, true) == 1);
  CHECK(flash_hopper_backward_parts(4, 8, 1, true) == 1);
}

TEST_CASE("Hopper attention backward runs the parts of a head at the same time") {
  using sinter::flash_hopper_backward_blocks;
  CHECK(flash_hopper_backward_blocks(512, 1, 132) == 132);
  CHECK(flash_hopper_backward_blocks(512, 8, 132) == 128);
  CHECK(flash_hopper_backward_blocks(3, 8, 132) == 24);
  CHECK(flash_hopper_backward_blocks(100, 4, 114) == 112);
}

TEST_CASE("nvrtc: Hopper attention compiles without spills and without serialized products") {
  if (!sinter::cuda::nvrtc_available() || !sinter::cuda::supports_arch("sm_90a")) return;
  for (int size : {64, 128})
    for (bool causal : {false, true})
      for (FlashHopperUnit unit : {FlashHopperUnit::Forward, FlashHopperUnit::Backward}) {
        CAPTURE(size);
        CAPTURE(causal);
        const auto compiled = compile(unit, instance_of(size, causal));
        CHECK_FALSE(serialized(compiled.log));
        CHECK(compiled.kernels.size() == (unit == FlashHopperUnit::Forward ? 1 : 3));
        for (const auto& kernel : compiled.kernels) {
          CAPTURE(kernel.name);
          CHECK(kernel.spill_store_bytes == 0);
          CHECK(kernel.stack_bytes == 0);
        }
        const char* name =
            unit == FlashHopperUnit::Forward ? "flash_hopper_forward_x" : "flash_hopper_backward_x";
        CHECK(compiled.find(name) != nullptr);
      }
}

TEST_CASE("nvrtc: Hopper attention, items joined, compiles without spills") {
  if (!sinter::cuda::nvrtc_available() || !sinter::cuda::supports_arch("sm_90a")) return;
  for (int size : {64, 128}) {
    const FlashInstance instance = instance_of(size, true);
    sinter::FlashHopperTiles tiles = tiles_of(FlashHopperUnit::Forward, instance);
    tiles.join = true;
    const auto compiled = compile(FlashHopperUnit::Forward, instance, tiles);
    CHECK_FALSE(serialized(compiled.log));
    CHECK(compiled.kernels.at(0).spill_store_bytes == 0);
  }
}

TEST_CASE("nvrtc: Hopper attention compiles with every option") {
  if (!sinter::cuda::nvrtc_available() || !sinter::cuda::supports_arch("sm_90a")) return;
  FlashInstance instance = instance_of(128, true);
  instance.window = instance.softcap = instance.kv_length = instance.documents = instance.slopes =
      instance.dropout = true;
  CHECK_FALSE(serialized(compile(FlashHopperUnit::Forward, instance).log));
  CHECK_FALSE(serialized(compile(FlashHopperUnit::Backward, instance).log));
}

TEST_CASE("Hopper attention's boxes and work space") {
  using sinter::FlashHopperOperand;
  const FlashInstance instance = instance_of(96, true);
  const auto tiles = tiles_of(FlashHopperUnit::Forward, instance);
  const auto box = [&](FlashHopperUnit unit, FlashHopperOperand operand) {
    return sinter::flash_hopper_box(unit, operand, instance, tiles_of(unit, instance));
  };
  CHECK(tiles.tile_n == 128);
  CHECK(box(FlashHopperUnit::Forward, FlashHopperOperand::K).columns == 32);
  CHECK(box(FlashHopperUnit::Forward, FlashHopperOperand::K).rows == 128);
  CHECK(box(FlashHopperUnit::Forward, FlashHopperOperand::Y).rows == 64);
  CHECK(box(FlashHopperUnit::Backward, FlashHopperOperand::Dk).columns == 64);
  CHECK(box(FlashHopperUnit::Backward, FlashHopperOperand::Dy).rows == 64);
  const auto space =
      sinter::flash_hopper_space(instance, tiles_of(FlashHopperUnit::Backward, instance), 2, 3, 65);
  CHECK(space.rows == 12 * (64 * 8 + 16));
  CHECK(space.sums == 12 * 64 * 128 * 4);
  CHECK(space.turns == 12 * 4);
}
