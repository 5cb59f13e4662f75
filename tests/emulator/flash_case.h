#pragma once
// Attention kernels, on the emulator or a device, against an f64 reference and the composed path.

#include <sinter/ir/type.h>
#include <sinter/passes/flash_tiles.h>
#include <sinter/tests/emulator/ptx.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace device {
#include <sinter/codegen/templates/flash_params.cuh>
}

namespace sinter::test {

// Compile-time options of an instance, as bits.
enum FlashOption : unsigned {
  kOptCausal = 1,
  kOptWindow = 2,
  kOptSoftcap = 4,
  kOptMask = 8,
  kOptBias = 16,
  kOptKvLength = 32,
  kOptDocuments = 64,
  kOptSlopes = 128,
  kOptDropout = 256,
};

struct FlashSetup {
  DType element = DType::BF16;
  int head_dim = 0, value_dim = 0;
  unsigned options = 0;
  bool deterministic = true;  // the backward kernel's sums, in one order
};

// One kernel, compiled for the emulator.
struct FlashEntry {
  FlashKernel kernel = FlashKernel::Forward;
  void (*run)(device::FlashParams) = nullptr;
  FlashTiles tiles;
};
struct FlashKernels {
  FlashSetup setup;
  FlashEntry forward, delta, backward, backward_end;  // in this order
};

struct FlashShape {
  int batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1;
};
// What a launch is given besides; the instance says which count.
struct FlashValues {
  int window = 0;
  double softcap = 0;
  double p = 0;         // dropout
  int64_t offset = 16;  // of its stream
  bool dlse = false;
  emulator::Order order = emulator::Order::Forward;
};

// Runs the forward kernel, delta and the backward kernels, in this order. `memory`: all that the
// pointers of the parameters point into.
using FlashRunner = std::function<void(const device::FlashParams& params,
                                       const std::vector<emulator::GlobalRange>& memory)>;

// Has the kernels run and checks y, lse and the gradients against f64: f32 to 1e-5, f64 to 1e-12,
// 16 bits to 1.5 times the error of the composed path in the same type. Rows that take no part hold
// NaN. Inputs lie in one packed projection, gradients in one packed gradient.
void check_flash(const FlashSetup& setup, const FlashShape& shape, const FlashValues& values,
                 const FlashRunner& runner);
// On the emulator.
void check_flash(const FlashKernels& kernels, const FlashShape& shape,
                 const FlashValues& values = {});

}  // namespace sinter::test
