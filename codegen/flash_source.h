#pragma once
// The texts of the flash attention templates for one instance, and how they are launched. Which
// tiles there are is in flash_tiles.h, what a launch is given in templates/flash_params.cuh.

#include <sinter/ir/type.h>
#include <sinter/passes/flash_tiles.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sinter {

// What is fixed when a kernel is compiled. The portable kernels take bf16 and f16; flash_delta and
// the plain ones every float type.
struct FlashInstance {
  DType element = DType::BF16;
  int head_dim = 0, value_dim = 0;
  bool causal = false, window = false, softcap = false, mask = false;
  std::optional<DType> bias;  // the type of its elements
  bool kv_length = false, documents = false, slopes = false, dropout = false;
};

// The symbol of a kernel, the template's own name for it.
std::string_view flash_entry(FlashKernel kernel);

// The whole unit for NVRTC: prelude, constants, template; the same for Backward and BackwardFinish.
// `deterministic`: of them alone. Where `entry` is given, it becomes the kernel's symbol.
std::string flash_source(FlashKernel kernel, const FlashInstance& instance, FlashTiles tiles,
                         bool deterministic = true, std::string_view entry = {});

// The constants in front of a template.
std::string flash_preamble(const FlashInstance& instance, const FlashTiles& tiles);

// The extent of the grid; 0 where there is nothing to do.
int64_t flash_blocks(FlashKernel kernel, const FlashTiles& tiles, int64_t batch, int64_t heads,
                     int64_t kv_heads, int64_t queries, int64_t keys);

}  // namespace sinter
