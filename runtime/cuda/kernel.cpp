#ifdef SINTER_HAVE_CUDA

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/cuda/detail/driver_api.h>
#include <sinter/runtime/cuda/driver.h>

#include <array>
#include <cstring>
#include <limits>

namespace sinter::cuda {

using detail::driver;
using detail::fail;

void KernelArguments::add_bytes(const void* value, std::size_t size) {
  const std::size_t start = slots_.size();
  slots_.resize(start + (size + sizeof(Slot) - 1) / sizeof(Slot));
  if (size > 0) std::memcpy(slots_[start].bytes, value, size);
  starts_.push_back(start);
}

void** KernelArguments::pointers() {
  pointers_.clear();
  for (std::size_t start : starts_) pointers_.push_back(slots_.data() + start);
  return pointers_.data();
}

int Kernel::attribute(int which) const {
  device_->make_current();
  int value = 0;
  const CUresult result =
      driver().cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(which), handle_);
  if (result != CUDA_SUCCESS) {
    fail("cuFuncGetAttribute", result, fmt::format("kernel '{}'", name_));
  }
  return value;
}

int Kernel::registers() const {
  return attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
}
int64_t Kernel::static_shared_bytes() const {
  return attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
}
int64_t Kernel::local_bytes() const {
  return attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
}
int Kernel::max_threads() const {
  return attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
}

void Kernel::allow_dynamic_shared(int64_t bytes) const {
  device_->make_current();
  const CUresult result =
      bytes > std::numeric_limits<int>::max()
          ? CUDA_ERROR_INVALID_VALUE
          : driver().cuFuncSetAttribute(handle_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        static_cast<int>(bytes));
  if (result != CUDA_SUCCESS) {
    fail("cuFuncSetAttribute", result,
         fmt::format("kernel '{}' asks for {} bytes of dynamic shared memory beside {} static; {} "
                     "allows {} in a block",
                     name_, bytes, static_shared_bytes(), device_->info().name,
                     device_->info().shared_per_block));
  }
}

void Kernel::launch(const Stream& stream, const LaunchShape& shape,
                    KernelArguments& arguments) const {
  SINTER_CHECK(shape.blocks > 0 && shape.blocks <= std::numeric_limits<int>::max(),
               "kernel '{}' launched with {} blocks", name_, shape.blocks);
  device_->make_current();
  const CUresult result = driver().cuLaunchKernel(
      handle_, static_cast<unsigned>(shape.blocks), 1, 1, static_cast<unsigned>(shape.threads), 1,
      1, static_cast<unsigned>(shape.shared_bytes), stream.handle(), arguments.pointers(), nullptr);
  if (result != CUDA_SUCCESS) {
    fail("cuLaunchKernel", result,
         fmt::format("kernel '{}', {} blocks of {} threads, {} bytes of dynamic shared memory",
                     name_, shape.blocks, shape.threads, shape.shared_bytes));
  }
}

Module::Module(Device& device, std::string_view image, std::string name, int toolkit_version)
    : device_(&device), name_(std::move(name)) {
  device.make_current();
  // PTX text must end in a zero; a copy costs nothing beside the loading.
  const std::string terminated(image);
  std::array<char, 8192> log{};
  std::array<CUjit_option, 2> options = {CU_JIT_ERROR_LOG_BUFFER,
                                         CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  // The driver takes the size by value, in the pointer's place.
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  CUmodule module = nullptr;
  const CUresult result =
      driver().cuModuleLoadDataEx(&module, terminated.data(), static_cast<unsigned>(options.size()),
                                  options.data(), values.data());
  if (result != CUDA_SUCCESS) {
    std::string text =
        fmt::format("module '{}' on {} ({})", name_, device.info().name, device.info().arch());
    if (log[0] != '\0') text += fmt::format("\n{}", log.data());
    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
      const int driver_version = device.info().driver_version;
      const std::string advice = result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                                     ? ptx_advice(driver_version, image)
                                     : version_advice(driver_version, toolkit_version);
      if (!advice.empty()) text += fmt::format("\n{}", advice);
    }
    fail("cuModuleLoadDataEx", result, text);
  }
  handle_ = {module, detail::Deleter{&device}};
}

Kernel Module::kernel(const std::string& name) const {
  device_->make_current();
  CUfunction function = nullptr;
  const CUresult result = driver().cuModuleGetFunction(&function, handle_.get(), name.c_str());
  if (result != CUDA_SUCCESS) {
    fail("cuModuleGetFunction", result, fmt::format("kernel '{}' of module '{}'", name, name_));
  }
  Kernel kernel(device_, function, name);
  kernel.registers();  // with lazy loading, this is what loads the code
  return kernel;
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
