// The portable attention kernels: every option by itself, and several together.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/flash_case.h>

using namespace sinter;
using namespace sinter::test;

#define FLASH_NAME window
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptWindow | kOptSoftcap)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME causal_window
#define FLASH_ELEMENT f16
#define FLASH_DTYPE F16
#define FLASH_HEAD 16
#define FLASH_VALUE 32
#define FLASH_OPTIONS (kOptCausal | kOptWindow | kOptSlopes)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME masked
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 32
#define FLASH_VALUE 16
#define FLASH_OPTIONS kOptMask
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME biased
#define FLASH_ELEMENT f16
#define FLASH_DTYPE F16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS kOptBias
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME lengths
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptCausal | kOptKvLength)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME packed_documents
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS (kOptCausal | kOptDocuments)
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME dropped
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 16
#define FLASH_VALUE 16
#define FLASH_OPTIONS kOptDropout
#include <sinter/tests/templates/flash_instance.h>

#define FLASH_NAME everything
#define FLASH_ELEMENT bf16
#define FLASH_DTYPE BF16
#define FLASH_HEAD 24
#define FLASH_VALUE 40
#define FLASH_OPTIONS 511
#include <sinter/tests/templates/flash_instance.h>

TEST_CASE("flash: windows, softcap and slopes") {
  check_flash(window, {1, 3, 3, 129, 257}, {.window = 40, .softcap = 0.7});
  check_flash(window, {1, 2, 1, 130, 65}, {.window = 10, .softcap = 2.0});
  check_flash(causal_window, {1, 3, 3, 129, 257}, {.window = 70});
  check_flash(causal_window, {2, 2, 1, 257, 127}, {.window = 1});
}

TEST_CASE("flash: masks and biases") {
  check_flash(masked, {2, 2, 1, 65, 130});
  check_flash(masked, {1, 1, 1, 130, 63}, {.dlse = true});
  check_flash(biased, {2, 3, 1, 65, 129});
}

TEST_CASE("flash: lengths and documents") {
  check_flash(lengths, {2, 2, 2, 127, 130});
  check_flash(lengths, {2, 1, 1, 130, 65}, {.dlse = true});
  check_flash(packed_documents, {2, 2, 1, 130, 130});
  check_flash(packed_documents, {2, 2, 1, 257, 65});
}

TEST_CASE("flash: dropout has the op's bits") {
  check_flash(dropped, {2, 2, 1, 65, 136}, {.p = 0.25});
  check_flash(dropped, {1, 2, 1, 65, 136}, {.p = 0.25, .offset = 3});
  check_flash(dropped, {1, 3, 3, 33, 67}, {.p = 0.5});
  check_flash(dropped, {1, 1, 1, 16, 16}, {.p = 1.0});
}

TEST_CASE("flash: all options at once, in every order of the threads") {
  for (emulator::Order order :
       {emulator::Order::Forward, emulator::Order::Reverse, emulator::Order::Shuffled})
    check_flash(everything, {2, 4, 2, 97, 160},
                {.window = 60, .softcap = 1.5, .p = 0.2, .dlse = true, .order = order});
}
