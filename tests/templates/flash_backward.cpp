// The portable backward kernel: who adds to which sums, and sums that come as they come.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/flash_case.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace sinter;
using namespace sinter::test;

#define FLASH_NAME as_they_come
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 32
#define FLASH_OPTIONS kOptCausal
#define FLASH_DETERMINISTIC false
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME cut_causal
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptCausal | kOptKvLength)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME cut_window
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptWindow | kOptKvLength)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME cut_documents
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptCausal | kOptWindow | kOptDocuments)
#include <sinter/tests/templates/flash_instance.h>

namespace {

// Whether the walks of the key tiles and what the query tiles expect are the same pairs.
#define SAME_PAIRS(name)                                                                   \
  [](const device::FlashParams& p) {                                                       \
    using namespace device::name::backward;                                                \
    const int length = flash_length(p, 0);                                                 \
    const int key_tiles = (p.keys + kTileN - 1) / kTileN;                                  \
    bool same = true;                                                                      \
    for (int n = 0; n < key_tiles; ++n)                                                    \
      for (int m = 0; m < flash_query_tiles(p); ++m) {                                     \
        const device::name::backward::Interval walk = flash_tiles_seeing(p, 0, length, n), \
                                               seen = flash_tiles_seen(p, 0, length, m);   \
        same &= (walk.begin <= m && m < walk.end) == (seen.begin <= n && n < seen.end);    \
      }                                                                                    \
    return same;                                                                           \
  }

constexpr auto kCausalPairs = SAME_PAIRS(cut_causal);
constexpr auto kWindowPairs = SAME_PAIRS(cut_window);
constexpr auto kDocumentPairs = SAME_PAIRS(cut_documents);

}  // namespace

TEST_CASE("flash backward: sums as they come") {
  check_flash(as_they_come, {2, 3, 1, 257, 300}, {.dlse = true});
  check_flash(as_they_come, {1, 2, 2, 300, 130});
}

TEST_CASE("flash backward: a query tile counts on the key tiles that come to it, and on no other") {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    device::FlashParams p{};
    p.queries = 1 + below(900);
    p.keys = 1 + below(900);
    p.window = 1 + below(700);
    const int length = below(p.keys + 2);
    p.kv_length = &length;
    CHECK(kCausalPairs(p));
    CHECK(kWindowPairs(p));
    p.queries = p.keys;
    std::vector<int> starts{below(p.keys)};
    for (int d = 0; d < 4; ++d) starts.push_back(starts.back() + below(p.keys - starts.back() + 1));
    p.cu_lengths = starts.data();
    p.documents = 4;
    CHECK(kDocumentPairs(p));
  }
}
