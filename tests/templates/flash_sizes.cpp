// The portable attention kernels: head sizes, also of two widths, and the tiles for little shared
// memory.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/flash_case.h>

using namespace sinter;
using namespace sinter::test;

#define FLASH_NAME small_8
#define FLASH_ELEMENT f16
#define FLASH_DTYPE F16
#define FLASH_HEAD 8
#define FLASH_VALUE 16
#define FLASH_OPTIONS kOptCausal
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME odd_40
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 40
#define FLASH_VALUE 24
#define FLASH_OPTIONS kOptCausal
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME capped_64
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 64
#define FLASH_VALUE 56
#define FLASH_OPTIONS kOptCausal
#define FLASH_SHARED (99 * 1024)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME odd_72
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 72
#define FLASH_VALUE 72
#define FLASH_OPTIONS 0
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME usual_128
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 128
#define FLASH_VALUE 128
#define FLASH_OPTIONS kOptCausal
#include <sinter/tests/templates/flash_instance.h>

// As on sm_89.
#define FLASH_NAME capped_128
#define FLASH_ELEMENT f16
#define FLASH_DTYPE F16
#define FLASH_HEAD 128
#define FLASH_VALUE 96
#define FLASH_OPTIONS kOptCausal
#define FLASH_SHARED (99 * 1024)
#include <sinter/tests/templates/flash_instance.h>

// As on sm_80.
#define FLASH_NAME wide_248
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 248
#define FLASH_VALUE 248
#define FLASH_OPTIONS kOptCausal
#define FLASH_SHARED (163 * 1024)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME wide_256
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 200
#define FLASH_VALUE 256
#define FLASH_OPTIONS (kOptCausal | kOptDropout)
#define FLASH_SHARED (99 * 1024)
#include <sinter/tests/templates/flash_instance.h>

TEST_CASE("flash: head sizes") {
  check_flash(small_8, {1, 3, 3, 129, 129});
  check_flash(odd_40, {1, 3, 1, 130, 130});
  check_flash(odd_72, {1, 2, 2, 65, 130});
  check_flash(usual_128, {1, 2, 1, 130, 130});
  check_flash(capped_128, {1, 2, 2, 65, 97}, {.dlse = true});
  check_flash(wide_248, {1, 1, 1, 65, 72});
  check_flash(wide_256, {1, 2, 1, 40, 72}, {.p = 0.1});
  check_flash(capped_64, {1, 6, 3, 130, 150});
}

TEST_CASE("flash: the order of the threads changes nothing") {
  for (emulator::Order order : {emulator::Order::Reverse, emulator::Order::Shuffled}) {
    check_flash(odd_40, {1, 2, 1, 65, 65}, {.order = order});
    check_flash(usual_128, {1, 1, 1, 130, 130}, {.order = order});
    check_flash(wide_256, {1, 1, 1, 40, 72}, {.p = 0.5, .order = order});
  }
}
