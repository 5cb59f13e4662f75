#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/driver.h>

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/cuda/detail/driver_api.h>
#include <sinter/runtime/detail/shared_library.h>

#include <array>
#include <cstring>
#include <mutex>

namespace sinter::cuda {
namespace detail {
namespace {

#define SINTER_CUDA_TEXT_(name) #name
#define SINTER_CUDA_TEXT(name) SINTER_CUDA_TEXT_(name)

DriverApi open_driver() {
  DriverApi api;
  const sinter::detail::SharedLibrary library({"libcuda.so.1"});
  if (!library.is_open()) {
    api.problem = fmt::format(
        "driver library not found: install the NVIDIA driver, or run with --device=cpu ({})",
        library.error());
    return api;
  }
  std::string missing;
#define SINTER_CUDA_LOAD(name)                                                             \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(SINTER_CUDA_TEXT(name))); \
  if (api.name == nullptr)                                                                 \
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", SINTER_CUDA_TEXT(name));
  SINTER_CUDA_FUNCTIONS(SINTER_CUDA_LOAD)
#undef SINTER_CUDA_LOAD
  api.event_elapsed =
      reinterpret_cast<decltype(api.event_elapsed)>(library.symbol("cuEventElapsedTime"));
  if (api.event_elapsed == nullptr) missing += " cuEventElapsedTime";

  if (api.cuDriverGetVersion != nullptr) api.cuDriverGetVersion(&api.version);
  if (!missing.empty()) {
    api.problem = fmt::format(
        "the NVIDIA driver supports CUDA {}, and sinter needs 12.4 or newer: update the driver "
        "(it lacks {})",
        version_text(api.version), missing);
    return api;
  }
  if (const CUresult result = api.cuInit(0); result != CUDA_SUCCESS) {
    const char* name = nullptr;
    const char* text = nullptr;
    api.cuGetErrorName(result, &name);
    api.cuGetErrorString(result, &text);
    api.problem = fmt::format(
        "the NVIDIA driver does not start: cuInit gave {} ({}); see what nvidia-smi says",
        name != nullptr ? name : "an unknown error", text != nullptr ? text : "no description");
  }
  return api;
}

}  // namespace

const DriverApi& driver_state() {
  static const DriverApi api = open_driver();
  return api;
}

const DriverApi& driver() {
  const DriverApi& api = driver_state();
  if (!api.problem.empty()) throw DeviceError(api.problem);
  return api;
}

void fail(std::string_view call, CUresult result, std::string_view detail) {
  const DriverApi& api = driver_state();
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.cuGetErrorName != nullptr) api.cuGetErrorName(result, &name);
  if (api.cuGetErrorString != nullptr) api.cuGetErrorString(result, &text);
  throw DeviceError(fmt::format(
      "{} failed: {} ({}){}{}", call, name != nullptr ? name : fmt::format("error {}", int(result)),
      text != nullptr ? text : "no description", detail.empty() ? "" : ": ", detail));
}

void Deleter::operator()(CUevent_st* handle) const noexcept {
  const DriverApi& api = driver_state();
  api.cuCtxSetCurrent(device->context());
  api.cuEventDestroy(handle);
}

void Deleter::operator()(CUmod_st* handle) const noexcept {
  const DriverApi& api = driver_state();
  api.cuCtxSetCurrent(device->context());
  api.cuModuleUnload(handle);
}

void Deleter::operator()(CUstream_st* handle) const noexcept {
  const DriverApi& api = driver_state();
  api.cuCtxSetCurrent(device->context());
  api.cuStreamDestroy(handle);
}

}  // namespace detail

using detail::check;
using detail::driver;
using detail::fail;

int device_count() {
  const detail::DriverApi& api = detail::driver_state();
  int count = 0;
  if (!api.problem.empty() || api.cuDeviceGetCount(&count) != CUDA_SUCCESS) return 0;
  return count;
}

std::string unavailable_reason() {
  const detail::DriverApi& api = detail::driver_state();
  if (!api.problem.empty()) return api.problem;
  if (device_count() > 0) return {};
  return "the NVIDIA driver lists no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES";
}

DeviceInfo device_info(int ordinal) {
  const detail::DriverApi& api = driver();
  const int count = device_count();
  if (count == 0) throw DeviceError(unavailable_reason());
  if (ordinal < 0 || ordinal >= count) {
    throw DeviceError(
        fmt::format("no CUDA device {}: the driver lists {} (0 to {})", ordinal, count, count - 1));
  }
  CUdevice device = 0;
  check(api.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(api.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  DeviceInfo info;
  info.ordinal = ordinal;
  std::array<char, 256> name{};
  check(api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device),
        "cuDeviceGetName");
  info.name = name.data();
  info.major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  info.minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.warp = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  info.threads_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  info.threads_per_multiprocessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  info.registers_per_multiprocessor =
      attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  info.shared_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  info.shared_per_multiprocessor =
      attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  info.l2 = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  std::size_t memory = 0;
  check(api.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem");
  info.memory = static_cast<int64_t>(memory);
  info.driver_version = api.version;
  return info;
}

Device::Device(int ordinal) : info_(device_info(ordinal)) {
  const detail::DriverApi& api = driver();
  CUdevice device = 0;
  check(api.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(api.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  make_current();
}

Device& Device::get(int ordinal) {
  // Never destroyed: at exit the driver may be gone before static destructors run.
  static std::mutex& mutex = *new std::mutex;
  static auto& devices = *new std::vector<std::unique_ptr<Device>>;
  std::lock_guard lock(mutex);
  for (const std::unique_ptr<Device>& device : devices) {
    if (device->ordinal() == ordinal) return *device;
  }
  devices.push_back(std::unique_ptr<Device>(new Device(ordinal)));
  return *devices.back();
}

void Device::make_current() const {
  check(driver().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

void Device::synchronize() const {
  make_current();
  check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
}

int64_t Device::free_memory() const {
  make_current();
  std::size_t free = 0;
  std::size_t total = 0;
  check(driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return static_cast<int64_t>(free);
}

Event::Event(Device& device, bool timing) {
  device.make_current();
  CUevent event = nullptr;
  check(driver().cuEventCreate(&event, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  handle_ = {event, detail::Deleter{&device}};
}

void Event::synchronize() const {
  check(driver().cuEventSynchronize(handle()), "cuEventSynchronize");
}

bool Event::done() const {
  const CUresult result = driver().cuEventQuery(handle());
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuEventQuery");
  return true;
}

double Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check(driver().event_elapsed(&milliseconds, start.handle(), handle()), "cuEventElapsedTime");
  return milliseconds;
}

Stream::Stream(Device& device) : device_(&device) {
  device.make_current();
  CUstream stream = nullptr;
  check(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  handle_ = {stream, detail::Deleter{&device}};
}

void Stream::synchronize() const {
  device_->make_current();
  check(driver().cuStreamSynchronize(handle()), "cuStreamSynchronize");
}

void Stream::record(const Event& event) const {
  device_->make_current();
  check(driver().cuEventRecord(event.handle(), handle()), "cuEventRecord");
}

void Stream::wait(const Event& event) const {
  device_->make_current();
  check(driver().cuStreamWaitEvent(handle(), event.handle(), 0), "cuStreamWaitEvent");
}

DeviceBuffer::DeviceBuffer(Device& device, std::size_t bytes) : device_(&device), size_(bytes) {
  if (bytes == 0) return;
  device.make_current();
  CUdeviceptr address = 0;
  if (const CUresult result = driver().cuMemAlloc(&address, bytes); result != CUDA_SUCCESS) {
    fail("cuMemAlloc", result,
         result == CUDA_ERROR_OUT_OF_MEMORY
             ? fmt::format("{} bytes asked for, {} of {} free on {}", bytes, device.free_memory(),
                           device.info().memory, device.info().name)
             : fmt::format("{} bytes asked for", bytes));
  }
  address_ = address;
}

void DeviceBuffer::reset() noexcept {
  if (address_ != 0) {
    const detail::DriverApi& api = detail::driver_state();
    api.cuCtxSetCurrent(device_->context());
    api.cuMemFree(address_);
  }
  address_ = 0;
  size_ = 0;
}

PinnedBuffer::PinnedBuffer(Device& device, std::size_t bytes) : device_(&device), size_(bytes) {
  if (bytes == 0) return;
  device.make_current();
  const CUresult result = driver().cuMemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) {
    fail("cuMemHostAlloc", result, fmt::format("{} bytes asked for", bytes));
  }
}

void PinnedBuffer::reset() noexcept {
  if (data_ != nullptr) {
    const detail::DriverApi& api = detail::driver_state();
    api.cuCtxSetCurrent(device_->context());
    api.cuMemFreeHost(data_);
  }
  data_ = nullptr;
  size_ = 0;
}

void copy_to_device(const Stream& stream, DevicePtr destination, const void* source,
                    std::size_t bytes) {
  if (bytes == 0) return;
  stream.device().make_current();
  check(driver().cuMemcpyHtoDAsync(destination, source, bytes, stream.handle()),
        "cuMemcpyHtoDAsync");
}

void copy_to_host(const Stream& stream, void* destination, DevicePtr source, std::size_t bytes) {
  if (bytes == 0) return;
  stream.device().make_current();
  check(driver().cuMemcpyDtoHAsync(destination, source, bytes, stream.handle()),
        "cuMemcpyDtoHAsync");
}

void copy_on_device(const Stream& stream, DevicePtr destination, DevicePtr source,
                    std::size_t bytes) {
  if (bytes == 0) return;
  stream.device().make_current();
  check(driver().cuMemcpyDtoDAsync(destination, source, bytes, stream.handle()),
        "cuMemcpyDtoDAsync");
}

void fill_bytes(const Stream& stream, DevicePtr destination, uint8_t value, std::size_t count) {
  if (count == 0) return;
  stream.device().make_current();
  check(driver().cuMemsetD8Async(destination, value, count, stream.handle()), "cuMemsetD8Async");
}

void fill_words(const Stream& stream, DevicePtr destination, uint32_t value, std::size_t count) {
  if (count == 0) return;
  stream.device().make_current();
  check(driver().cuMemsetD32Async(destination, value, count, stream.handle()), "cuMemsetD32Async");
}

void fill_rows(const Stream& stream, DevicePtr destination, std::size_t pitch, uint8_t value,
               std::size_t width, std::size_t rows) {
  if (width == 0 || rows == 0) return;
  stream.device().make_current();
  check(driver().cuMemsetD2D8Async(destination, pitch, value, width, rows, stream.handle()),
        "cuMemsetD2D8Async");
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
