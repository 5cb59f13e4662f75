// The plain attention kernels: element types, head sizes and options.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/flash_case.h>

using namespace sinter;
using namespace sinter::test;

#define FLASH_NAME plain_f64
#define FLASH_ELEMENT double
#define FLASH_DTYPE F64
#define FLASH_HEAD 20
#define FLASH_VALUE 37
#define FLASH_OPTIONS 511
#include <sinter/tests/templates/flash_plain_instance.h>

#define FLASH_NAME plain_f32
#define FLASH_ELEMENT float
#define FLASH_DTYPE F32
#define FLASH_HEAD 64
#define FLASH_VALUE 64
#define FLASH_OPTIONS kOptCausal
#include <sinter/tests/templates/flash_plain_instance.h>

#define FLASH_NAME plain_f32_masked
#define FLASH_ELEMENT float
#define FLASH_DTYPE F32
#define FLASH_HEAD 7
#define FLASH_VALUE 300
#define FLASH_OPTIONS (kOptMask | kOptBias | kOptWindow)
#include <sinter/tests/templates/flash_plain_instance.h>

#define FLASH_NAME plain_bf16
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 33
#define FLASH_VALUE 64
#define FLASH_OPTIONS (kOptDropout | kOptKvLength)
#include <sinter/tests/templates/flash_plain_instance.h>

#define FLASH_NAME plain_f16
#define FLASH_ELEMENT f16
#define FLASH_DTYPE F16
#define FLASH_HEAD 8
#define FLASH_VALUE 5
#define FLASH_OPTIONS (kOptSoftcap | kOptDocuments)
#include <sinter/tests/templates/flash_plain_instance.h>

TEST_CASE("flash plain: all options in f64") {
  check_flash(plain_f64, {2, 4, 2, 37, 66}, {.window = 30, .softcap = 1.5, .p = 0.2, .dlse = true});
  check_flash(plain_f64, {1, 3, 3, 66, 21},
              {.window = 5, .softcap = 0.5, .p = 0.5, .order = emulator::Order::Reverse});
}

TEST_CASE("flash plain: f32") {
  for (int s : {1, 63, 65}) check_flash(plain_f32, {1, 1, 1, s, s});
  check_flash(plain_f32, {1, 3, 1, 33, 64}, {.dlse = true});
  check_flash(plain_f32_masked, {2, 2, 2, 40, 35}, {.window = 20});
}

TEST_CASE("flash plain: 16 bits") {
  check_flash(plain_bf16, {2, 2, 1, 33, 47}, {.p = 0.25});
  check_flash(plain_f16, {2, 3, 3, 40, 40}, {.softcap = 1.0});
}
