#pragma once
// The texts of the Hopper attention templates for one instance, and how they are launched.
//
// flash_hopper_forward: grid min(blocks, items) of threads() threads, tiles.shared_bytes of dynamic
// shared memory; items = batch * heads * ceil(queries / tile_m), blocks the multiprocessors. It
// takes the maps of q, k, v and y (128 bytes each, by value), then FlashParams.
//
// The backward unit has three entries, launched one after another:
//   flash_hopper_prepare   grid batch * heads * ceil(queries / tile_m), 256 threads: FlashParams,
//                          float* rows, float* sums, u32* turns
//   flash_hopper_backward  grid flash_hopper_backward_blocks, threads(), shared_bytes: maps of
//                          q, k, v, dy, dk, dv, FlashParams, rows, sums, turns, i32 parts
//   flash_hopper_finish    grid and threads as prepare: FlashParams, sums
// parts: flash_hopper_backward_parts of batch * kv_heads heads; all blocks must be resident when it
// is more than 1. rows, sums and turns are work space that needs no clearing. All extents are at
// least 1.
//
// A tensor map is of rank 4: {width, rows, heads, batch} elements of 16 bits, strides in bytes of
// rows, heads and batch, a box of {columns, rows, 1, 1}, no interleave, zeros outside.

#include <sinter/codegen/flash_source.h>
#include <sinter/passes/flash_hopper_tiles.h>

namespace sinter {

enum class FlashHopperUnit { Forward, Backward };

// The whole unit for NVRTC. `suffix` is appended to the names of its entries.
std::string flash_hopper_source(FlashHopperUnit unit, const FlashInstance& instance,
                                const FlashHopperTiles& tiles, bool deterministic = true,
                                std::string_view suffix = {});

// Whether the templates carry out an instance: 16-bit elements, no mask, no bias.
bool flash_hopper_takes(const FlashInstance& instance);
// Whether options take so many registers that the forward kernel wants smaller tiles.
bool flash_hopper_rich(const FlashInstance& instance);

enum class FlashHopperOperand { Q, K, V, Y, Dy, Dk, Dv };
// The box of an operand's map, and the bytes of its swizzle (128, 64).
struct FlashHopperBox {
  int columns = 0, rows = 0, swizzle = 0;
};
FlashHopperBox flash_hopper_box(FlashHopperUnit unit, FlashHopperOperand operand,
                                const FlashInstance& instance, const FlashHopperTiles& tiles);

FlashHopperSpace flash_hopper_space(const FlashInstance& instance, const FlashHopperTiles& tiles,
                                    int64_t batch, int64_t heads, int64_t queries);

}  // namespace sinter
