// The Hopper attention templates through NVRTC, which needs no GPU: nothing spills, nothing runs
// serialized.

#include <sinter/codegen/flash_hopper_tiles.h>
#include <sinter/codegen/templates.h>
#include <sinter/runtime/cuda/nvrtc.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace {

using sinter::FlashHopperTiles;

std::string source_of(const FlashHopperTiles& t, int head_dim, int value_dim,
                      const std::string& kernel, const std::string& options) {
  std::string text;
  for (const char* name : {"prelude.cuh", "prelude_common.h", "ptx.cuh", "ptx_hopper.cuh"})
    text += sinter::template_text(name);
  text += fmt::format(
      "using Element = bf16;\nusing BiasElement = float;\n"
      "constexpr bool kDeterministic = true;\nconstexpr int kHeadDim = {}, kValueDim = {}, kTileM "
      "= {}, kTileN = {}, kStages = {}, "
      "kWarps = {}, kSharedBytes = {}, kSectionBytes = 1 << 25, kFeederRegisters = {}, "
      "kConsumerRegisters = {};\nconstexpr bool kMask = false, kBias = false, kReuseQ = {}, "
      "kPingPong = {};\n{}\n",
      head_dim, value_dim, t.tile_m, t.tile_n, t.stages, t.warps(), t.shared_bytes,
      t.feeder_registers, t.consumer_registers, t.reuse_q, t.ping_pong, options);
  for (const char* name : {"flash_params.cuh", "flash_common.cuh", "flash_hopper_common.cuh"})
    text += sinter::template_text(name);
  return text + std::string(sinter::template_text(kernel));
}

constexpr const char* kCausalOnly =
    "constexpr bool kCausal = true, kWindow = false, kSoftcap = false, kKvLength = false, "
    "kDocuments = false, kSlopes = false, kDropout = false;";
constexpr const char* kNoOptions =
    "constexpr bool kCausal = false, kWindow = false, kSoftcap = false, kKvLength = false, "
    "kDocuments = false, kSlopes = false, kDropout = false;";
constexpr const char* kAllOptions =
    "constexpr bool kCausal = true, kWindow = true, kSoftcap = true, kKvLength = true, "
    "kDocuments = true, kSlopes = true, kDropout = true;";

// Messages of ptxas that mean products do not overlap; C7519 alone is harmless.
bool serialized(const std::string& log) {
  for (size_t at = log.find("(C75"); at != std::string::npos; at = log.find("(C75", at + 1))
    if (log.compare(at, 7, "(C7519)") != 0) return true;
  return false;
}
sinter::cuda::CompiledUnit compile(std::string name, std::string source) {
  sinter::cuda::CompileRequest request;
  request.name = std::move(name);
  request.source = std::move(source);
  request.arch = "sm_90a";
  return sinter::cuda::compile(request);
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

TEST_CASE("Hopper attention backward divides heads so that all blocks have work") {
  using sinter::flash_hopper_backward_parts;
  CHECK(flash_hopper_backward_parts(512, 8, 132, true) == 1);   // 3.9 waves
  CHECK(flash_hopper_backward_parts(16, 128, 132, true) == 8);  // 128 blocks, even work
  CHECK(flash_hopper_backward_parts(64, 32, 132, true) == 2);
  CHECK(flash_hopper_backward_parts(1, 1, 132, true) == 1);
  CHECK(flash_hopper_backward_parts(1, 1000, 132, false) > 100);
  CHECK(flash_hopper_backward_parts(0, 4, 132, true) == 1);
}

TEST_CASE("Hopper attention compiles without spills and without serialized products") {
  if (!sinter::cuda::nvrtc_available() || !sinter::cuda::supports_arch("sm_90a")) return;
  for (int size : {64, 128})
    for (const char* options : {kCausalOnly, kNoOptions})
      for (bool backward : {false, true}) {
        CAPTURE(size);
        CAPTURE(options);
        CAPTURE(backward);
        const std::string name = backward ? "flash_hopper_backward" : "flash_hopper_forward";
        const auto tiles = backward ? sinter::flash_hopper_backward_tiles(size, size, 2)
                                    : sinter::flash_hopper_forward_tiles(size, size, 2, false);
        const auto unit = compile(name, source_of(tiles, size, size, name + ".cuh", options));
        CHECK_FALSE(serialized(unit.log));
        REQUIRE(unit.find(name) != nullptr);
        CHECK(unit.find(name)->spill_store_bytes == 0);
        CHECK(unit.find(name)->stack_bytes == 0);
      }
}

TEST_CASE("Hopper attention compiles with every option") {
  if (!sinter::cuda::nvrtc_available() || !sinter::cuda::supports_arch("sm_90a")) return;
  const auto forward = sinter::flash_hopper_forward_tiles(128, 128, 2, true);
  CHECK_FALSE(serialized(
      compile("forward", source_of(forward, 128, 128, "flash_hopper_forward.cuh", kAllOptions))
          .log));
  const auto backward = sinter::flash_hopper_backward_tiles(128, 128, 2);
  CHECK_FALSE(serialized(
      compile("backward", source_of(backward, 128, 128, "flash_hopper_backward.cuh", kAllOptions))
          .log));
}
