#pragma once
// The tiles of the Hopper attention kernels (flash_hopper_forward.cuh, flash_hopper_backward.cuh):
// which are used for which head sizes, and what a block then takes. The kernels assert that their
// shared memory fits.

#include <cstddef>

namespace sinter {

struct FlashHopperTiles {
  int tile_m = 0;  // queries
  int tile_n = 0;  // keys
  int stages = 0;
  int q_stages = 1;          // forward: tiles of queries that are there at a time
  int consumers = 0;         // warpgroups that multiply; one more feeds them
  int feeder_registers = 0;  // of a thread, after setmaxnreg
  int consumer_registers = 0;
  bool reuse_q = false;    // forward: O leaves through Q's shared memory
  bool ping_pong = false;  // forward: the consumers issue in turn
  bool join = false;       // forward: an item's last product is issued with the next one's first
  bool lag = false;        // backward: dQ of a step is made in the next one
  size_t shared_bytes = 0;

  constexpr int warps() const { return 4 * (consumers + 1); }
  constexpr int threads() const { return 32 * warps(); }
  // Whether there is a kernel; where not, a portable one takes the call.
  constexpr bool exists() const { return consumers != 0; }
};

// What a block may have on sm_90.
constexpr size_t kHopperSharedBytes = 227 * 1024;

// The width of a tile in shared memory: TMA fills it up with zeros.
constexpr int flash_hopper_width(int size) {
  return size > 192 ? 256 : (size + 31) / 32 * 32;
}
// 16-bit elements, sizes that are multiples of 8 up to 256.
constexpr bool flash_hopper_takes(int head_dim, int value_dim, int element_bytes) {
  return element_bytes == 2 && head_dim >= 8 && value_dim >= 8 && head_dim <= 256 &&
         value_dim <= 256 && head_dim % 8 == 0 && value_dim % 8 == 0;
}

// `rich`: with softcap, slopes, dropout, documents or key lengths, which take registers.
constexpr FlashHopperTiles flash_hopper_forward_tiles(int head_dim, int value_dim,
                                                      int element_bytes, bool rich) {
  if (!flash_hopper_takes(head_dim, value_dim, element_bytes)) return {};
  const auto width = static_cast<size_t>(flash_hopper_width(head_dim));
  const auto value_width = static_cast<size_t>(flash_hopper_width(value_dim));
  const size_t widest = width > value_width ? width : value_width;
  FlashHopperTiles t;
  t.stages = 2;
  t.ping_pong = widest <= 128;
  t.reuse_q = widest > 128 && width == value_width;
  if (widest <= 64 && !rich) {
    t.tile_m = 192;
    t.tile_n = 128;
  } else {
    t.tile_m = 128;
    t.tile_n = widest <= 64 ? 128 : widest <= 128 ? (rich ? 64 : 128) : t.reuse_q ? 64 : 32;
  }
  t.consumers = t.tile_m / 64;
  t.feeder_registers = t.consumers == 3 ? 32 : 24;
  t.consumer_registers = t.consumers == 3 ? 160 : 240;
  const auto m = static_cast<size_t>(t.tile_m), n = static_cast<size_t>(t.tile_n);
  const auto stages = static_cast<size_t>(t.stages);
  // Two tiles of queries where they fit: the next item's is there when this one's ends.
  for (t.q_stages = t.reuse_q ? 1 : 2; t.q_stages > 0; --t.q_stages) {
    const auto q_stages = static_cast<size_t>(t.q_stages);
    const size_t elements = q_stages * m * width + stages * n * (width + value_width) +
                            (t.reuse_q ? 0 : m * value_width);
    // A kilobyte to begin at a multiple of it, the barriers and the items.
    t.shared_bytes = 2 * elements + 1024 + 8 * (2 * q_stages + 4 * stages) + 64 * q_stages;
    if (t.shared_bytes <= kHopperSharedBytes) return t;
  }
  return {};
}

// Both sizes up to 128.
constexpr FlashHopperTiles flash_hopper_backward_tiles(int head_dim, int value_dim,
                                                       int element_bytes) {
  if (!flash_hopper_takes(head_dim, value_dim, element_bytes) || head_dim > 128 || value_dim > 128)
    return {};
  const bool narrow = head_dim <= 64 && value_dim <= 64;
  FlashHopperTiles t;
  t.tile_m = narrow ? 128 : 64;
  t.tile_n = 128;
  t.stages = 2;
  t.consumers = 2;
  t.lag = true;
  t.feeder_registers = 40;
  t.consumer_registers = 232;
  const size_t m = static_cast<size_t>(t.tile_m), n = 128, width = narrow ? 64 : 128;
  t.shared_bytes = 2 * (2 * n * width) + 2 * 2 * (2 * m * width)  // K, V; Q and dY twice
                   + 2 * (2 * n * m) + 4 * m * width              // dS twice; dQ
                   + 2 * (8 * m + 16) + 8 * 16 + 64 + 1024;
  return t;
}
// The blocks of the backward kernel's grid: the parts of a head run at the same time, so that none
// waits for one that has not begun.
constexpr int flash_hopper_backward_blocks(int heads, int parts, int blocks) {
  const int at_once = blocks / parts < heads ? blocks / parts : heads;
  return (at_once > 1 ? at_once : 1) * parts;
}

// Into how many parts (at most `blocks`) the backward kernel divides the key tiles of each of
// `heads` (batch times key heads) heads on `blocks` blocks: the power of two with the least cost,
// and of two that differ by less than 3 % the smaller. A pure function of the shapes. The cost is
// the product of
//   rounds         of heads: blocks / parts heads run at a time;
//   longest part   in key tiles times query tiles: each tile is as long, or as its place under a
//                  diagonal lets it be. There, the tiles of every other of a part's turns all begin
//                  at the same query tiles and sum dQ there one behind another, which costs each
//                  part but the first about 0.6 tiles;
//   memory         each key tile of a part streams its head's Q, dY and sums: heads * key tiles *
//                  queries * (12 * width) bytes in all. Parts of a head walk in step, and all but
//                  the first find them in L2. On an H200 a tile alone takes from memory for half
//                  as long as it computes, beyond what overlaps: 1 + 0.5 / parts.
// Measured (TFLOP/s, in order, by parts; 16k tokens, hidden 2048):
//   size  length  causal 1    2    4    8   all   full 1    2    4    8   all
//     64    1024       282  283  266  218  218      337  421  415  401   401
//     64    4096       329  432  446             273      350  460  528              529
//     64   16384       143  281  503             289      149  298  504              540
//    128    1024       275  329  333  279  279      332  418  460  454   454
//    128    4096       265  447  493             299      295  464  551              561
//    128   16384                      511                                520
constexpr int flash_hopper_backward_parts(int heads, int key_tiles, int blocks, bool causal) {
  if (heads <= 0 || key_tiles <= 0 || blocks <= 0) return 1;
  int best = 1;
  double least = 0;
  for (int parts = 1; parts <= key_tiles && parts <= blocks; parts *= 2) {
    double longest = 0;
    for (int part = 0; part < parts; ++part) {
      double work = 0;
      for (int round = 0; round * parts < key_tiles; ++round) {
        const int tile = round * parts + (round % 2 != 0 ? parts - 1 - part : part);
        if (tile < key_tiles) work += causal ? key_tiles - tile : key_tiles;
      }
      longest = work > longest ? work : longest;
    }
    if (causal) longest += 0.6 * (parts - 1) * ((key_tiles + parts - 1) / parts / 2);
    const int at_once = blocks / parts;
    const double cost = ((heads + at_once - 1) / at_once) * longest * (1 + 0.5 / parts);
    if (parts == 1 || cost < 0.97 * least) {
      best = parts;
      least = cost;
    }
  }
  return best;
}

// The width that the backward kernel fills both head sizes up to.
constexpr int flash_hopper_spread(int head_dim, int value_dim) {
  return head_dim <= 64 && value_dim <= 64 ? 64 : 128;
}

// Bytes of the backward kernels' work space.
struct FlashHopperSpace {
  size_t rows = 0, sums = 0, turns = 0;
};
constexpr FlashHopperSpace flash_hopper_space(int head_dim, int value_dim,
                                              const FlashHopperTiles& t, size_t batch, size_t heads,
                                              size_t queries) {
  const auto tile_m = static_cast<size_t>(t.tile_m);
  const size_t tiles = batch * heads * ((queries + tile_m - 1) / tile_m);
  const auto spread = static_cast<size_t>(flash_hopper_spread(head_dim, value_dim));
  return {tiles * (8 * tile_m + 16), tiles * tile_m * spread * 4, tiles * 4};
}

}  // namespace sinter
