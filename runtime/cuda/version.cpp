#include <sinter/runtime/cuda/driver.h>

#include <fmt/format.h>

// What is known of devices without asking the driver: built with and without CUDA.

namespace sinter::cuda {

std::string DeviceInfo::arch() const {
  // The "a" variant unlocks wgmma and setmaxnreg, which exist on this one architecture only.
  return fmt::format("sm_{}{}{}", major, minor, major == 9 && minor == 0 ? "a" : "");
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string version_advice(int driver_version, int toolkit_version) {
  if (toolkit_version == 0 || driver_version >= toolkit_version) return {};
  return fmt::format(
      "the NVIDIA driver supports CUDA up to {0}, but the code was compiled by CUDA {1}: update "
      "the "
      "driver, or set SINTER_NVRTC to the folder of a CUDA {0} toolkit's libraries",
      version_text(driver_version), version_text(toolkit_version));
}

}  // namespace sinter::cuda
