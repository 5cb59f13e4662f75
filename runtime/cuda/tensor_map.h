#pragma once
// Tensor maps: what the tensor memory accelerator of sm_90 and later is told of a tensor.
//
// Contract: encoding needs the driver's library but no GPU work; the map holds the address, and is
// passed to kernels by value (KernelArguments::add_bytes). Throws DeviceError where the driver
// refuses: base and strides must be multiples of 16 bytes, boxes at most 256 along an axis.

#include <sinter/runtime/cuda/driver.h>

#include <array>

namespace sinter::cuda {

struct alignas(64) TensorMap {
  std::array<uint64_t, 16> words{};
};

// A tensor of rank 4 of 16-bit elements, innermost axis first. Reads outside give zeros.
struct TensorMapShape {
  std::array<int64_t, 4> dims{};
  std::array<int64_t, 3> strides{};  // in bytes, of axes 1 to 3; axis 0 is dense
  std::array<int, 4> box{};
  int swizzle = 128;  // bytes: 128, 64 or 32
};
TensorMap encode_tensor_map(DevicePtr base, const TensorMapShape& shape);

}  // namespace sinter::cuda
