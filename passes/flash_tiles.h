#pragma once
// The tiles of the flash attention templates: which are used for which head size under which limit
// on shared memory, and what a block then takes. The kernels assert the same maps.
//
// clang-format off
//   kernel            template                         blocks
//   Forward           flash_portable_forward.cuh       batch heads |queries|
//   Delta             flash_delta.cuh                  batch heads |queries|
//   BackwardKv        flash_portable_backward_kv.cuh   batch kv_heads |keys|
//   BackwardQ         flash_portable_backward_q.cuh    batch heads |queries|
//   PlainForward      flash_plain.cuh                  batch heads |queries|
//   PlainBackwardKv   flash_plain.cuh                  batch kv_heads |keys|
//   PlainBackwardQ    flash_plain.cuh                  batch heads |queries|
// clang-format on
// The entries are named by flash_entry() (codegen/flash_source.h).
// |queries| = ceil(queries / tile_m), |keys| = ceil(keys / tile_n); times `grid_factor`.

#include <cstddef>

namespace sinter {

enum class FlashKernel {
  Forward,
  Delta,
  BackwardKv,
  BackwardQ,
  PlainForward,
  PlainBackwardKv,
  PlainBackwardQ
};

struct FlashTiles {
  int tile_m = 0;  // queries
  int tile_n = 0;  // keys
  int stages = 0;
  int warps = 0;
  int grid_factor = 1;
  size_t shared_bytes = 0;

  constexpr int threads() const { return 32 * warps; }
  // Whether there is a kernel: false for head sizes beyond 256, other element sizes, or too little
  // shared memory. The plain kernel takes those.
  constexpr bool exists() const { return warps != 0; }
};

// Shared bytes of a block with these tiles, elements of 16 bits.
constexpr size_t flash_shared_bytes(FlashKernel kernel, const FlashTiles& t, int head_dim,
                                    int value_dim) {
  const auto m = static_cast<size_t>(t.tile_m), n = static_cast<size_t>(t.tile_n);
  const auto stages = static_cast<size_t>(t.stages);
  const auto row = static_cast<size_t>((head_dim + 15) / 16 * 16 + (value_dim + 15) / 16 * 16) * 2;
  const size_t head_row = static_cast<size_t>((head_dim + 15) / 16 * 16) * 2;
  switch (kernel) {
    case FlashKernel::Forward:
      return m * head_row + stages * n * row;
    case FlashKernel::BackwardKv:
      return n * row + stages * m * (row + 2 * sizeof(float));
    case FlashKernel::BackwardQ:
      return m * row + stages * n * row;
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
  const int widest = head_dim > value_dim ? head_dim : value_dim;
  const bool large = shared_memory >= size_t{160} * 1024;
  FlashTiles t;
  switch (kernel) {
    case FlashKernel::Forward:
      if (widest <= 64)
        t = {128, 64, large ? 3 : 2, 4};
      else if (widest <= 128)
        t = large ? FlashTiles{128, 32, 2, 4} : FlashTiles{64, 32, 2, 4};
      else
        t = {64, 32, 2, 4};
      break;
    case FlashKernel::BackwardKv:
      if (widest <= 64)
        t = {64, 64, 2, 4};
      else if (widest <= 128)
        t = {32, 128, 2, 8};
      else
        t = {16, 64, 2, 4, 2};
      break;
    case FlashKernel::BackwardQ:
      if (widest <= 64)
        t = {128, 32, 2, 4};
      else if (widest <= 128)
        t = {128, 32, 2, 8};
      else
        t = {64, 16, 2, 4};
      break;
    default:
      break;
  }
  t.shared_bytes = flash_shared_bytes(kernel, t, head_dim, value_dim);
  return t.shared_bytes <= shared_memory ? t : FlashTiles{};
}

}  // namespace sinter
