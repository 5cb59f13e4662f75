// One instance of the attention kernels on the emulator; included once for each, no guard:
//   FLASH_NAME, FLASH_ELEMENT (bf16), FLASH_DTYPE (BF16), FLASH_HEAD, FLASH_VALUE, FLASH_OPTIONS;
//   FLASH_SHARED, the limit on shared memory (default: of sm_90); FLASH_DETERMINISTIC (true)
// It defines `const FlashKernels FLASH_NAME`.

#ifndef FLASH_SHARED
#define FLASH_SHARED (227 * 1024)
#endif

#ifndef FLASH_DETERMINISTIC
#define FLASH_DETERMINISTIC true
#endif

#define FLASH_PREAMBLE(kernel)                                                               \
  using Element = FLASH_ELEMENT;                                                             \
  using BiasElement = float;                                                                 \
  constexpr int kHeadDim = FLASH_HEAD, kValueDim = FLASH_VALUE;                              \
  constexpr ::sinter::FlashTiles kTiles = ::sinter::flash_tiles(                             \
      ::sinter::FlashKernel::kernel, kHeadDim, kValueDim, sizeof(Element), FLASH_SHARED);    \
  constexpr int kTileM = kTiles.tile_m, kTileN = kTiles.tile_n, kStages = kTiles.stages;     \
  constexpr int kWarps = kTiles.warps, kSharedBytes = static_cast<int>(kTiles.shared_bytes); \
  constexpr int kWarpsM = kTiles.warps_m, kTurns = kTiles.turns;                             \
  constexpr bool kHoldV = kTiles.hold_v, kDeterministic = FLASH_DETERMINISTIC;               \
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
namespace forward {
FLASH_PREAMBLE(Forward);
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_fragments.cuh>
#include <sinter/codegen/templates/flash_portable_forward.cuh>
}  // namespace forward
namespace delta {
FLASH_PREAMBLE(Delta);
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_delta.cuh>
}  // namespace delta
namespace backward {
FLASH_PREAMBLE(Backward);
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_fragments.cuh>
#include <sinter/codegen/templates/flash_portable_backward.cuh>
}  // namespace backward
}  // namespace FLASH_NAME
}  // namespace device

namespace {
const sinter::test::FlashKernels FLASH_NAME{
    {sinter::DType::FLASH_DTYPE, FLASH_HEAD, FLASH_VALUE, FLASH_OPTIONS,
     device::FLASH_NAME::backward::kDeterministic},
    {sinter::FlashKernel::Forward, device::FLASH_NAME::forward::flash_forward,
     device::FLASH_NAME::forward::kTiles},
    {sinter::FlashKernel::Delta, device::FLASH_NAME::delta::flash_delta,
     device::FLASH_NAME::delta::kTiles},
    {sinter::FlashKernel::Backward, device::FLASH_NAME::backward::flash_backward,
     device::FLASH_NAME::backward::kTiles},
    {sinter::FlashKernel::BackwardFinish, device::FLASH_NAME::backward::flash_backward_finish,
     device::FLASH_NAME::backward::kTiles}};
}

#undef FLASH_PREAMBLE
#undef FLASH_NAME
#undef FLASH_ELEMENT
#undef FLASH_DTYPE
#undef FLASH_HEAD
#undef FLASH_VALUE
#undef FLASH_OPTIONS
#undef FLASH_SHARED
#undef FLASH_DETERMINISTIC
