#pragma once
// The CUDA driver: devices, streams, memory, modules and kernels.
//
// libcuda is opened at run time; a program that uses this header starts on a machine without a
// driver and finds device_count() == 0 there. No CUDA header is needed to include it.
//
// Contract: a Device is the retained primary context of one GPU and lives as long as the process;
// everything else refers to one and must be destroyed before the process exits normally. Calls may
// come from any thread; each makes its device's context current first. Failures throw DeviceError
// with the driver's call, its result and the kernel or module concerned. Destructors never throw.
//
// A build without the CUDA toolkit (SINTER_HAVE_CUDA undefined) has the entry points alone: the
// functions of this header that ask for devices, those of nvrtc.h, and the queries of cublaslt.h.
// They report nothing available, or throw. Code that goes further needs a Device, which cannot be
// had there, and compiles under SINTER_HAVE_CUDA.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// The driver's own handle types (cuda.h declares the same names).
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace sinter::cuda {

// An address in device memory. Eight bytes, and so passed to a kernel as a pointer.
using DevicePtr = uint64_t;

// Number of usable GPUs; 0 without a driver, without a GPU and in a build without CUDA.
int device_count();
// Why device_count() is 0, and what to do about it; empty when there are GPUs.
std::string unavailable_reason();

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  int warp = 0;  // lanes
  int threads_per_block = 0;
  int threads_per_multiprocessor = 0;
  int registers_per_multiprocessor = 0;
  int64_t memory = 0;            // bytes of global memory
  int64_t shared_per_block = 0;  // bytes a block may use after opting in
  int64_t shared_per_multiprocessor = 0;
  int64_t l2 = 0;          // bytes of L2 cache
  int driver_version = 0;  // newest CUDA version the driver supports: 13000 for 13.0

  // What kernels are compiled for: "sm_90a" on Hopper, otherwise "sm_" and the capability.
  std::string arch() const;
};

// "13.0" for 13000.
std::string version_text(int version);

// Advice for a failure that a driver older than the toolkit explains; empty when it does not.
// Versions as in DeviceInfo::driver_version.
std::string version_advice(int driver_version, int toolkit_version);
// Advice for PTX text that is newer than the driver; empty for another image.
std::string ptx_advice(int driver_version, std::string_view image);

DeviceInfo device_info(int ordinal);

class Device {
 public:
  // The device with this ordinal. Throws DeviceError when there is none ("driver library not
  // found: install the NVIDIA driver …").
  static Device& get(int ordinal = 0);

  const DeviceInfo& info() const { return info_; }
  int ordinal() const { return info_.ordinal; }
  CUctx_st* context() const { return context_; }
  void make_current() const;
  // Waits for all work of the device; errors of earlier launches surface here.
  void synchronize() const;
  int64_t free_memory() const;

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

 private:
  explicit Device(int ordinal);
  DeviceInfo info_;
  CUctx_st* context_ = nullptr;
};

namespace detail {
struct Deleter {
  void operator()(CUevent_st* handle) const noexcept;
  void operator()(CUmod_st* handle) const noexcept;
  void operator()(CUstream_st* handle) const noexcept;
  const Device* device = nullptr;
};
}  // namespace detail

// A point in a stream.
class Event {
 public:
  // Without `timing` an event is cheaper to record.
  explicit Event(Device& device, bool timing = true);
  CUevent_st* handle() const { return handle_.get(); }
  void synchronize() const;
  bool done() const;
  // Milliseconds from `start` to this event, both recorded and done.
  double milliseconds_since(const Event& start) const;

 private:
  std::unique_ptr<CUevent_st, detail::Deleter> handle_;
};

// An ordered queue of work, independent of the legacy default stream.
class Stream {
 public:
  explicit Stream(Device& device);
  Device& device() const { return *device_; }
  CUstream_st* handle() const { return handle_.get(); }
  void synchronize() const;
  void record(const Event& event) const;
  void wait(const Event& event) const;

 private:
  Device* device_;
  std::unique_ptr<CUstream_st, detail::Deleter> handle_;
};

// Owned device memory, aligned to 256 bytes at least. Size 0 owns nothing and has address 0.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws DeviceError that states the size and what was free when memory runs out.
  DeviceBuffer(Device& device, std::size_t bytes);
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DevicePtr address() const { return address_; }
  std::size_t size() const { return size_; }
  void reset() noexcept;
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
  }

 private:
  Device* device_ = nullptr;
  DevicePtr address_ = 0;
  std::size_t size_ = 0;
};

// Owned page-locked host memory: copies from and to it are asynchronous.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device& device, std::size_t bytes);
  ~PinnedBuffer() { reset(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void reset() noexcept;
  void swap(PinnedBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Copies in stream order. With pageable host memory the call itself may wait; either way the host
// memory must stay as it is until the stream has passed the copy. 0 bytes: nothing happens.
void copy_to_device(const Stream& stream, DevicePtr destination, const void* source,
                    std::size_t bytes);
void copy_to_host(const Stream& stream, void* destination, DevicePtr source, std::size_t bytes);
void copy_on_device(const Stream& stream, DevicePtr destination, DevicePtr source,
                    std::size_t bytes);
void fill_bytes(const Stream& stream, DevicePtr destination, uint8_t value, std::size_t count);
void fill_words(const Stream& stream, DevicePtr destination, uint32_t value, std::size_t count);
// `rows` rows of `width` bytes, `pitch` bytes apart.
void fill_rows(const Stream& stream, DevicePtr destination, std::size_t pitch, uint8_t value,
               std::size_t width, std::size_t rows);

// Arguments of one launch, by value, in the kernel's parameter order.
class KernelArguments {
 public:
  template <typename T>
  KernelArguments& add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
    add_bytes(&value, sizeof(T));
    return *this;
  }
  void add_bytes(const void* value, std::size_t size);
  // The array that the driver takes; valid until the next add.
  void** pointers();

 private:
  struct alignas(std::max_align_t) Slot {
    unsigned char bytes[16];
  };
  std::vector<Slot> slots_;
  std::vector<std::size_t> starts_;  // index of the first slot of each argument
  std::vector<void*> pointers_;
};

// Grids have one dimension: the y and z limits of 65,535 are never met.
struct LaunchShape {
  int64_t blocks = 1;
  int threads = 1;
  int64_t shared_bytes = 0;  // dynamic shared memory of one block
};

// A kernel of a loaded module. A value; valid while its Module lives.
class Kernel {
 public:
  Kernel() = default;
  const std::string& name() const { return name_; }
  CUfunc_st* handle() const { return handle_; }
  Device& device() const { return *device_; }
  int registers() const;
  int64_t static_shared_bytes() const;
  int64_t local_bytes() const;  // stack and spills of one thread
  int max_threads() const;
  // Needed once for launches with more than 48 KiB of dynamic shared memory.
  void allow_dynamic_shared(int64_t bytes) const;
  void launch(const Stream& stream, const LaunchShape& shape, KernelArguments& arguments) const;

 private:
  friend class Module;
  Kernel(Device* device, CUfunc_st* handle, std::string name)
      : device_(device), handle_(handle), name_(std::move(name)) {}
  int attribute(int which) const;
  Device* device_ = nullptr;
  CUfunc_st* handle_ = nullptr;
  std::string name_;
};

// Loaded device code.
class Module {
 public:
  // `image` is a cubin or PTX text; `name` appears in errors. Loading is complete on return, so
  // that no kernel is loaded while a stream is captured. `toolkit_version` (as nvrtc_version gives
  // it) lets a failure name a driver that is too old.
  Module(Device& device, std::string_view image, std::string name, int toolkit_version = 0);
  // Throws DeviceError when there is no such kernel.
  Kernel kernel(const std::string& name) const;

 private:
  Device* device_;
  std::string name_;
  std::unique_ptr<CUmod_st, detail::Deleter> handle_;
};

}  // namespace sinter::cuda
