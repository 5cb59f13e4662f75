#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/tensor_map.h>

#include <sinter/runtime/cuda/detail/driver_api.h>

namespace sinter::cuda {

TensorMap encode_tensor_map(DevicePtr base, const TensorMapShape& shape) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  std::array<cuuint64_t, 4> dims{};
  std::array<cuuint64_t, 3> strides{};
  std::array<cuuint32_t, 4> box{}, steps{1, 1, 1, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    dims[i] = static_cast<cuuint64_t>(shape.dims[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    if (i < 3) strides[i] = static_cast<cuuint64_t>(shape.strides[i]);
  }
  const CUtensorMapSwizzle swizzle = shape.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : shape.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                           : CU_TENSOR_MAP_SWIZZLE_32B;
  TensorMap map;
  // 16-bit floats of either kind are moved as they are.
  const CUresult result = detail::driver().cuTensorMapEncodeTiled(
      reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      reinterpret_cast<void*>(base),  // NOLINT(performance-no-int-to-ptr)
      dims.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    detail::fail(
        "cuTensorMapEncodeTiled", result,
        fmt::format("base {:#x}, dims {} {} {} {}, strides {} {} {}, box {} {}", base, dims[0],
                    dims[1], dims[2], dims[3], strides[0], strides[1], strides[2], box[0], box[1]));
  }
  // Drivers up to CUDA 13.1 set a bit for tensors below 128 KiB that breaks them; CUTLASS clears
  // it.
  const uint64_t bytes = 2 * dims[0] * dims[1] * dims[2] * dims[3];
  if (bytes < (128u << 10) && detail::driver().version <= 13010) map.words[1] &= ~(1ull << 21);
  return map;
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
