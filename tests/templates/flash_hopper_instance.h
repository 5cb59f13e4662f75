// What an instance of a Hopper template includes behind its constants, inside of its namespace; so
// without a guard.

constexpr bool kMask = false, kBias = false;
using BiasElement = float;
// clang-format off
#include <sinter/codegen/templates/flash_params.cuh>
#include <sinter/codegen/templates/flash_common.cuh>
#include <sinter/codegen/templates/flash_hopper_common.cuh>
// clang-format on
