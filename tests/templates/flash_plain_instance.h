// One instance of the plain attention kernels on the emulator; included once for each, no guard:
//   FLASH_NAME, FLASH_ELEMENT (bf16), FLASH_DTYPE (BF16), FLASH_HEAD, FLASH_VALUE, FLASH_OPTIONS;
//   FLASH_SHARED, the limit on shared memory (default: of sm_90)
// It defines `const FlashKernels FLASH_NAME`.

#ifndef FLASH_SHARED
#define FLASH_SHARED (227 * 1024)
#endif

#define FLASH_PREAMBLE(kernel)                                                               \
  using Element = FLASH_ELEMENT;                                                             \
  using BiasElement = float;                                                                 \
  constexpr int kHeadDim = FLASH_HEAD, kValueDim = FLASH_VALUE;                              \
  constexpr ::sinter::FlashTiles kTiles = ::sinter::flash_tiles(                             \
      ::sinter::FlashKernel::kernel, kHeadDim, kValueDim, sizeof(Element), FLASH_SHARED);    \
  constexpr int kTileM = kTiles.tile_m, kTileN = kTiles.tile_n, kStages = kTiles.stages;     \
  constexpr int kWarps = kTiles.warps, kSharedBytes = static_cast<int>(kTiles.shared_bytes); \
  constexpr bool kCausal = (FLASH_OPTIONS & ::sinter::test::kOptCausal) != 0;                \
  constexpr bool kWindow = (FLASH_OPTIONS & ::sinter::test::kOptWindow) != 0;                \
  constexpr bool kSoftcap = (FLASH_OPTIONS & ::sinter::test::kOptSoftcap) != 0;              \
  constexpr bool kMask = (FLASH_OPTIONS & ::sinter::test::kOptMask) != 0;                    \
  constexpr bool kBias = (FLASH_OPTIONS & ::sinter::test::kOptBias) != 0;                    \
  constexpr bool kKvLength = (FLASH_OPTIONS & ::sinter::test::kOptKvLength) != 0;            \
  constexpr bool kDocuments = (FLASH_OPTIONS & ::sinter::test::kOptDocuments) != 0;          \
  constexpr bool kSlopes = (FLASH_OPTIONS & ::sinter::test::kOptSlopes) != 0;                \
  constexpr bool kDropout = (FLASH_OPTIONS & ::sinter::test::kOptDropout) != 0

namespace device {
namespace FLASH_NAME {
namespace delta {
FLASH_PREAMBLE(Delta);
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_delta.cuh>
}  // namespace delta
namespace plain {
FLASH_PREAMBLE(PlainForward);
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_plain.cuh>
}  // namespace plain
}  // namespace FLASH_NAME
}  // namespace device

namespace {
const sinter::test::FlashKernels FLASH_NAME{
    {sinter::DType::FLASH_DTYPE, FLASH_HEAD, FLASH_VALUE, FLASH_OPTIONS},
    {sinter::FlashKernel::PlainForward, device::FLASH_NAME::plain::flash_plain_forward,
     device::FLASH_NAME::plain::kTiles},
    {sinter::FlashKernel::Delta, device::FLASH_NAME::delta::flash_delta,
     device::FLASH_NAME::delta::kTiles},
    {sinter::FlashKernel::PlainBackwardKv, device::FLASH_NAME::plain::flash_plain_backward_kv,
     device::FLASH_NAME::plain::kTiles},
    {sinter::FlashKernel::PlainBackwardQ, device::FLASH_NAME::plain::flash_plain_backward_q,
     device::FLASH_NAME::plain::kTiles}};
}

#undef FLASH_PREAMBLE
#undef FLASH_NAME
#undef FLASH_ELEMENT
#undef FLASH_DTYPE
#undef FLASH_HEAD
#undef FLASH_VALUE
#undef FLASH_OPTIONS
#undef FLASH_SHARED
