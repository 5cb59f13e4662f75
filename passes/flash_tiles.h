#pragma once
// The tiles of the flash attention templates: which are used for which head size under which limit
// on shared memory, and what a block then takes. The kernels assert the same maps.
//
// clang-format off
//   kernel            template                         blocks
//   Forward           flash_portable_forward.cuh       batch heads |queries|
//   Delta             flash_delta.cuh                  batch heads |queries|
//   Backward          flash_portable_backward.cuh      batch kv_heads |keys|
//   BackwardFinish    flash_portable_backward.cuh      batch heads |queries|
//   PlainForward      flash_plain.cuh                  batch heads |queries|
//   PlainBackwardKv   flash_plain.cuh                  batch kv_heads |keys|
//   PlainBackwardQ    flash_plain.cuh                  batch heads |queries|
// clang-format on
// The entries are named by flash_entry() (codegen/flash_source.h).
// |queries| = ceil(queries / tile_m), |keys| = ceil(keys / tile_n).

#include <cstddef>
#include <cstdint>

namespace sinter {

enum class FlashKernel {
  Forward,
  Delta,
  Backward,
  BackwardFinish,
  PlainForward,
  PlainBackwardKv,
  PlainBackwardQ
};

struct FlashTiles {
  int tile_m = 0;  // queries
  int tile_n = 0;  // keys
  int stages = 0;
  int warps = 0;
  int warps_m = 1;      // Backward: of them side by side, over queries and columns
  bool hold_v = false;  // Backward: V in registers
  int turns = 1;        // Backward: how many steps' turns are passed on at a time
  size_t shared_bytes = 0;

  constexpr int threads() const { return 32 * warps; }
  // Whether there is a kernel: false for head sizes beyond 256, other element sizes, or too little
  // shared memory. The plain kernel takes those.
  constexpr bool exists() const { return warps != 0; }
};

// What the kernels fill a head size up to: columns are dealt to warps by sixteens.
constexpr int flash_width(const FlashTiles& t, int size) {
  const int rows = (16 * t.warps + t.tile_m - 1) / t.tile_m;
  const int unit = 16 * (rows > t.warps_m ? rows : t.warps_m);
  return (size + unit - 1) / unit * unit;
}

// Shared bytes of a block with these tiles, elements of 16 bits.
constexpr size_t flash_shared_bytes(FlashKernel kernel, const FlashTiles& t, int head_dim,
                                    int value_dim) {
  const auto m = static_cast<size_t>(t.tile_m), n = static_cast<size_t>(t.tile_n);
  const auto stages = static_cast<size_t>(t.stages), warps_m = static_cast<size_t>(t.warps_m);
  const size_t head_row = static_cast<size_t>(flash_width(t, head_dim)) * 2;
  const size_t value_row = static_cast<size_t>(flash_width(t, value_dim)) * 2;
  switch (kernel) {
    case FlashKernel::Forward:
      return m * head_row + stages * n * (head_row + value_row);
    case FlashKernel::Backward:
      return n * head_row + (t.hold_v ? 0 : n * value_row) +
             stages * m * (head_row + value_row + 2 * sizeof(float)) +
             2 * n * m * (t.warps_m > 1 ? 2 : 1) + n * warps_m + 16 * static_cast<size_t>(t.turns);
    case FlashKernel::BackwardFinish:
      return m * head_row;
    default:
      return 0;
  }
}

// `shared_memory`: what a block may have, 163 KiB on sm_80, 99 KiB on sm_86, sm_89 and sm_120, 227
// KiB on sm_90.
constexpr FlashTiles flash_tiles(FlashKernel kernel, int head_dim, int value_dim, int element_bytes,
                                 size_t shared_memory) {
  if (kernel == FlashKernel::Delta) return {64, 64, 1, 8};
  if (kernel == FlashKernel::PlainForward || kernel == FlashKernel::PlainBackwardKv ||
      kernel == FlashKernel::PlainBackwardQ)
    return {4, 4, 1, 4};
  if (element_bytes != 2 || head_dim < 8 || value_dim < 8 || head_dim > 256 || value_dim > 256 ||
      head_dim % 8 != 0 || value_dim % 8 != 0)
    return {};
  // The first that fits. The order is that of their speed on an H200; under a limit of 99 KiB too.
  constexpr FlashTiles kForward64[] = {{128, 64, 3, 4}, {128, 64, 2, 4}};
  constexpr FlashTiles kForward128[] = {{128, 64, 2, 4}, {64, 32, 2, 4}};
  constexpr FlashTiles kForward256[] = {{64, 32, 2, 4}};
  constexpr FlashTiles kBackward64[] = {
      {128, 128, 2, 8, 2}, {64, 128, 2, 8, 2, true, 2}, {64, 64, 2, 4, 2}};
  constexpr FlashTiles kBackward128[] = {
      {64, 128, 2, 8, 2, false, 2}, {64, 128, 1, 8, 1, true, 2}, {32, 64, 2, 4, 2}};
  constexpr FlashTiles kBackward256[] = {{64, 64, 2, 8, 2}, {64, 64, 1, 8, 2}, {32, 32, 1, 4, 2}};
  const bool forward = kernel == FlashKernel::Forward;
  const auto first_fit = [&](const auto& list) {
    for (FlashTiles tiles : list) {
      tiles.shared_bytes =
          flash_shared_bytes(forward ? kernel : FlashKernel::Backward, tiles, head_dim, value_dim);
      if (tiles.shared_bytes > shared_memory) continue;
      tiles.shared_bytes = flash_shared_bytes(kernel, tiles, head_dim, value_dim);
      return tiles;
    }
    return FlashTiles{};
  };
  const int widest = head_dim > value_dim ? head_dim : value_dim;
  if (widest <= 64) return forward ? first_fit(kForward64) : first_fit(kBackward64);
  if (widest <= 128) return forward ? first_fit(kForward128) : first_fit(kBackward128);
  return forward ? first_fit(kForward256) : first_fit(kBackward256);
}

// How many of `heads` (batch times key heads) heads the backward kernel's grid goes through at a
// time: as many as have a block for each multiprocessor.
constexpr int flash_section(const FlashTiles& t, int64_t heads, int64_t keys,
                            int64_t multiprocessors) {
  const int64_t tiles = keys > 0 ? (keys + t.tile_n - 1) / t.tile_n : 1;
  const int64_t section = (multiprocessors + tiles - 1) / tiles;
  return static_cast<int>(section < 1 ? 1 : section < heads ? section : heads > 0 ? heads : 1);
}

// Bytes of the backward kernel's work space, besides delta.
struct FlashSpace {
  size_t sums = 0, turns = 0;
};
constexpr FlashSpace flash_space(const FlashTiles& t, int head_dim, size_t batch, size_t heads,
                                 size_t queries) {
  const auto tile_m = static_cast<size_t>(t.tile_m);
  const size_t tiles = batch * heads * ((queries + tile_m - 1) / tile_m);
  return {tiles * tile_m * static_cast<size_t>(flash_width(t, head_dim)) * 4, tiles * 4};
}

}  // namespace sinter
