// The order of dQ's sums in the Hopper backward kernel: every query tile gets each of its sums
// once, and blocks that take turns always get on.

#include <sinter/tests/templates/flash_hopper.h>

#include <doctest/doctest.h>

namespace device::hopper_order_causal {
using Element = bf16;
constexpr int kHeadDim = 64, kValueDim = 64, kTileM = 128, kTileN = 128;
constexpr int kWarps = 12;
constexpr bool kCausal = true, kWindow = false, kKvLength = true, kDocuments = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_order.cuh>
}  // namespace device::hopper_order_causal
namespace device::hopper_order_full {
using Element = bf16;
constexpr int kHeadDim = 128, kValueDim = 128, kTileM = 64, kTileN = 128;
constexpr int kWarps = 12;
constexpr bool kCausal = false, kWindow = false, kKvLength = true, kDocuments = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_order.cuh>
}  // namespace device::hopper_order_full
namespace device::hopper_order_window {
using Element = bf16;
constexpr int kHeadDim = 128, kValueDim = 128, kTileM = 64, kTileN = 128;
constexpr int kWarps = 12;
constexpr bool kCausal = false, kWindow = true, kKvLength = false, kDocuments = true;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_order.cuh>
}  // namespace device::hopper_order_window

namespace {

// Of one key tile of a block.
struct Step {
  int64_t query_tile;
  int rank;
};

// Runs the blocks' steps, each when its turn has come. Returns what went wrong, or nothing.
std::string run(const std::vector<std::vector<Step>>& blocks, std::vector<int> expected) {
  std::vector<int> turns(expected.size());
  std::vector<size_t> at(blocks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t b = 0; b < blocks.size(); ++b)
      while (at[b] < blocks[b].size()) {
        const Step& step = blocks[b][at[b]];
        int& turn = turns[static_cast<size_t>(step.query_tile)];
        if (turn > step.rank) return "a sum comes too late";
        if (turn < step.rank) break;
        ++turn;
        ++at[b];
        moved = true;
      }
  }
  for (size_t b = 0; b < blocks.size(); ++b)
    if (at[b] < blocks[b].size()) return "blocks wait for each other";
  return turns == expected ? "" : "a query tile lacks sums";
}

#define CHECK_ORDER(INSTANCE, WINDOW)                                                     \
  do {                                                                                    \
    using namespace device::INSTANCE;                                                     \
    std::mt19937 random(5);                                                               \
    const auto draw = [&](int low, int high) {                                            \
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));    \
    };                                                                                    \
    for (int trial = 0; trial < 150; ++trial) {                                           \
      FlashParams p{};                                                                    \
      p.batch = draw(1, 3);                                                               \
      p.kv_heads = draw(1, 3);                                                            \
      p.heads = p.kv_heads * draw(1, 2);                                                  \
      p.queries = draw(1, 3000);                                                          \
      p.keys = kDocuments ? p.queries : draw(1, 3000);                                    \
      p.window = draw(1, WINDOW);                                                         \
      std::vector<int> length, starts;                                                    \
      for (int b = 0; b < p.batch; ++b) {                                                 \
        length.push_back(draw(0, p.keys));                                                \
        for (int i = 0, at = draw(0, 2); i <= 4; ++i) {                                   \
          starts.push_back(std::min(at, p.keys));                                         \
          at += draw(0, p.keys / 2);                                                      \
        }                                                                                 \
      }                                                                                   \
      p.documents = 4;                                                                    \
      p.kv_length = length.data();                                                        \
      p.cu_lengths = starts.data();                                                       \
      const int grid = draw(1, 12), parts = draw(1, std::min(grid, hopper_key_tiles(p))); \
      CAPTURE(trial);                                                                     \
      CAPTURE(parts);                                                                     \
      std::vector<std::vector<Step>> blocks(static_cast<size_t>(grid));                   \
      for (int block = 0; block < grid; ++block) {                                        \
        device::blockIdx.x = static_cast<unsigned>(block);                                \
        device::gridDim.x = static_cast<unsigned>(grid);                                  \
        hopper_for_each_tile(p, parts, [&](const HopperWork& work) {                      \
          for (HopperSteps at(p, work); at.more(); at.next())                             \
            blocks[static_cast<size_t>(block)].push_back(                                 \
                {hopper_query_tile_index(p, work.batch, at.head, at.tile),                \
                 hopper_rank(p, work, parts, at.tile)});                                  \
        });                                                                               \
      }                                                                                   \
      std::vector<int> expected;                                                          \
      for (int i = 0; i < p.batch * p.heads; ++i)                                         \
        for (int tile = 0; tile < hopper_query_tiles(p); ++tile) {                        \
          const Interval seen =                                                           \
              hopper_tiles_seen(p, i / p.heads, flash_length(p, i / p.heads), tile);      \
          expected.push_back(seen.end - seen.begin);                                      \
        }                                                                                 \
      CHECK(run(blocks, expected) == "");                                                 \
    }                                                                                     \
  } while (false)

}  // namespace

TEST_CASE("Hopper backward: turns come to an end, causal") {
  CHECK_ORDER(hopper_order_causal, 1);
}
TEST_CASE("Hopper backward: turns come to an end, all keys") {
  CHECK_ORDER(hopper_order_full, 1);
}
TEST_CASE("Hopper backward: turns come to an end, window and documents") {
  CHECK_ORDER(hopper_order_window, 900);
}
