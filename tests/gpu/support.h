#pragma once
// What the GPU tests share: tensors to the device and back, kernels from text.

#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/tensor.h>
#include <sinter/tests/support.h>

#include <string>
#include <utility>

#define SINTER_NEEDS_GPU() \
  if (::sinter::cuda::device_count() == 0) SINTER_SKIP("no CUDA device")

namespace sinter::test {

// The message of the DeviceError that `f` throws; empty when it throws none.
template <typename F>
std::string device_error(F&& f) {
  try {
    f();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#ifdef SINTER_HAVE_CUDA

// Bytes of the device that what `run` returns keeps taken.
template <typename Run>
int64_t taken(Run&& run) {
  cuda::Device& device = cuda::Device::get();
  device.synchronize();
  int64_t before = device.free_memory();
  auto keeps = run();
  device.synchronize();
  return before - device.free_memory();
}

inline cuda::DeviceBuffer upload(const cuda::Stream& stream, const Tensor& tensor) {
  cuda::DeviceBuffer buffer(stream.device(), static_cast<size_t>(tensor.bytes()));
  cuda::copy_to_device(stream, buffer.address(), tensor.data(), buffer.size());
  stream.synchronize();
  return buffer;
}

inline Tensor download(const cuda::Stream& stream, TensorType type, cuda::DevicePtr address) {
  Tensor tensor{std::move(type)};
  cuda::copy_to_host(stream, tensor.data(), address, static_cast<size_t>(tensor.bytes()));
  stream.synchronize();
  return tensor;
}

// `source` compiled for the device and loaded.
inline cuda::Module load(cuda::Device& device, std::string source,
                         std::string arch = std::string()) {
  cuda::CompileRequest request;
  request.name = "trial";
  request.source = std::move(source);
  request.arch = arch.empty() ? device.info().arch() : std::move(arch);
  request.allow_ptx = true;
  const cuda::CompiledUnit unit = cuda::compile(request);
  return cuda::Module(device, unit.image, request.name, cuda::nvrtc_version());
}

#endif

}  // namespace sinter::test
