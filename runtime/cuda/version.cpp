#include <sinter/runtime/cuda/driver.h>

#include <fmt/format.h>

#include <string_view>

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

std::string ptx_advice(int driver_version, std::string_view image) {
  const size_t at = image.find(".version ");
  if (image.starts_with("\x7f"
                        "ELF") ||
      at == std::string_view::npos)
    return {};
  std::string_view text = image.substr(at + 9);
  text = text.substr(0, text.find_first_not_of("0123456789."));
  return fmt::format(
      "the PTX is of version {0}, which the NVIDIA driver, of CUDA {1}, does not know: update the "
      "driver, or set SINTER_NVRTC to the folder of a CUDA {1} toolkit's libraries",
      text, version_text(driver_version));
}

}  // namespace sinter::cuda
