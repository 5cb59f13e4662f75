#pragma once
// The driver's functions, found in libcuda at run time. Needs the toolkit's cuda.h; included by
// sources under SINTER_HAVE_CUDA only.

#include <cuda.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace sinter::cuda::detail {

// The header's macros choose the versioned symbol (cuMemAlloc is cuMemAlloc_v2); the list below is
// expanded with them, so that types and symbols agree with the header built against.
#define SINTER_CUDA_FUNCTIONS(X) \
  X(cuCtxSetCurrent)             \
  X(cuCtxSynchronize)            \
  X(cuDeviceGet)                 \
  X(cuDeviceGetAttribute)        \
  X(cuDeviceGetCount)            \
  X(cuDeviceGetName)             \
  X(cuDevicePrimaryCtxRetain)    \
  X(cuDeviceTotalMem)            \
  X(cuDriverGetVersion)          \
  X(cuEventCreate)               \
  X(cuEventDestroy)              \
  X(cuEventQuery)                \
  X(cuEventRecord)               \
  X(cuEventSynchronize)          \
  X(cuFuncGetAttribute)          \
  X(cuFuncSetAttribute)          \
  X(cuGetErrorName)              \
  X(cuGetErrorString)            \
  X(cuGraphAddChildGraphNode)    \
  X(cuGraphAddEmptyNode)         \
  X(cuGraphAddKernelNode)        \
  X(cuGraphAddMemcpyNode)        \
  X(cuGraphAddMemsetNode)        \
  X(cuGraphCreate)               \
  X(cuGraphDestroy)              \
  X(cuGraphExecDestroy)          \
  X(cuGraphInstantiate)          \
  X(cuGraphLaunch)               \
  X(cuGraphUpload)               \
  X(cuInit)                      \
  X(cuLaunchKernel)              \
  X(cuMemAlloc)                  \
  X(cuMemFree)                   \
  X(cuMemFreeHost)               \
  X(cuMemGetInfo)                \
  X(cuMemHostAlloc)              \
  X(cuMemcpyDtoDAsync)           \
  X(cuMemcpyDtoHAsync)           \
  X(cuMemcpyHtoDAsync)           \
  X(cuMemsetD2D8Async)           \
  X(cuMemsetD32Async)            \
  X(cuMemsetD8Async)             \
  X(cuModuleGetFunction)         \
  X(cuModuleLoadDataEx)          \
  X(cuModuleUnload)              \
  X(cuStreamBeginCapture)        \
  X(cuStreamCreate)              \
  X(cuStreamDestroy)             \
  X(cuStreamEndCapture)          \
  X(cuStreamSynchronize)         \
  X(cuStreamWaitEvent)           \
  X(cuTensorMapEncodeTiled)

struct DriverApi {
#define SINTER_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  SINTER_CUDA_FUNCTIONS(SINTER_CUDA_MEMBER)
#undef SINTER_CUDA_MEMBER
  // By its plain name: the header of CUDA 13 would ask for a version that 12.4 drivers lack.
  CUresult (*event_elapsed)(float*, CUevent, CUevent) = nullptr;

  std::string problem;  // why there is no driver; empty once cuInit has succeeded
  int version = 0;      // 0 when libcuda could not be opened
};

// Opens libcuda and calls cuInit, once. Look at `problem` before calling anything.
const DriverApi& driver_state();
// The functions, or DeviceError with the problem.
const DriverApi& driver();

[[noreturn]] void fail(std::string_view call, CUresult result, std::string_view detail = {});

inline void check(CUresult result, std::string_view call) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    fail(call, result);
}

}  // namespace sinter::cuda::detail
