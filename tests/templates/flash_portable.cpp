// The portable attention kernels: lengths around tiles, head sizes, grouped heads.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/flash_case.h>

using namespace sinter;
using namespace sinter::test;

#define FLASH_NAME full_64
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 64
#define FLASH_VALUE 64
#define FLASH_OPTIONS 0
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME causal_64
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 64
#define FLASH_VALUE 64
#define FLASH_OPTIONS kOptCausal
#include <sinter/tests/templates/flash_instance.h>

TEST_CASE("flash: lengths around a tile") {
  for (int s : {1, 63, 64, 65, 127, 128, 129, 130}) {
    check_flash(full_64, {1, 1, 1, s, s});
    check_flash(causal_64, {1, 1, 1, s, s});
  }
  check_flash(causal_64, {1, 1, 1, 257, 257});
}

TEST_CASE("flash: more keys than queries, and more queries than keys") {
  check_flash(full_64, {1, 1, 1, 5, 257});
  check_flash(full_64, {1, 1, 1, 257, 31});
  check_flash(causal_64, {1, 1, 1, 65, 130});
  check_flash(causal_64, {1, 1, 1, 130, 65});
  check_flash(full_64, {1, 2, 1, 5, 0});
  check_flash(full_64, {1, 2, 1, 0, 5});
}

TEST_CASE("flash: batches, odd heads, shared keys") {
  check_flash(full_64, {2, 3, 3, 33, 40});
  check_flash(causal_64, {2, 6, 2, 66, 66});
  check_flash(causal_64, {1, 5, 1, 17, 80});
}
