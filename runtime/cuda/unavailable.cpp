#ifndef SINTER_HAVE_CUDA

// The entry points of the CUDA runtime in a build without the toolkit: no device, and errors that
// say what to do.

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/cuda/cublaslt.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/cuda/nvrtc.h>

namespace sinter::cuda {
namespace {

constexpr const char* kNoDriver =
    "driver library not found: this sinter was built without CUDA; install the NVIDIA driver and "
    "the CUDA toolkit (12.4 to 13) and build again, or run with --device=cpu";
constexpr const char* kNoCompiler =
    "NVRTC not found: this sinter was built without CUDA; install the CUDA toolkit (12.4 to 13) "
    "and build again";
constexpr const char* kNoCublas =
    "cuBLASLt not found: this sinter was built without CUDA; install the CUDA toolkit (12.4 to 13) "
    "and build again";

}  // namespace

int device_count() {
  return 0;
}
std::string unavailable_reason() {
  return kNoDriver;
}
DeviceInfo device_info(int) {
  throw DeviceError(kNoDriver);
}
Device& Device::get(int) {
  throw DeviceError(kNoDriver);
}
int64_t Device::free_memory() const {
  throw DeviceError(kNoDriver);
}

bool nvrtc_available(std::string* why) {
  if (why != nullptr) *why = kNoCompiler;
  return false;
}
void use_nvrtc(const std::string&) {}
int nvrtc_version() {
  throw DeviceError(kNoCompiler);
}
std::vector<int> supported_archs() {
  throw DeviceError(kNoCompiler);
}
bool supports_arch(std::string_view) {
  throw DeviceError(kNoCompiler);
}
std::vector<std::string> compile_options(const CompileRequest&) {
  throw DeviceError(kNoCompiler);
}
CompiledUnit compile(const CompileRequest&, DiskCache*) {
  throw DeviceError(kNoCompiler);
}
std::vector<CompiledUnit> compile_all(const std::vector<CompileRequest>&, DiskCache*) {
  throw DeviceError(kNoCompiler);
}

bool cublaslt_available(std::string* why) {
  if (why != nullptr) *why = kNoCublas;
  return false;
}
std::size_t cublaslt_version() {
  throw DeviceError(kNoCublas);
}

}  // namespace sinter::cuda

#endif  // !SINTER_HAVE_CUDA
