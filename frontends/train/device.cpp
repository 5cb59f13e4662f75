#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/train/device.h>

namespace sinter::train {

std::vector<DeviceKind> device_choices(const std::string& name) {
  if (name == "reference") return {DeviceKind::Reference};
  if (name == "cpu") return {DeviceKind::Cpu, DeviceKind::Reference};
  std::vector<DeviceKind> kinds{DeviceKind::Cuda, DeviceKind::Cpu, DeviceKind::Reference};
  // Without a GPU, `auto` means the CPU and is no failure.
  if (name == "auto" && best_device() != DeviceKind::Cuda) kinds.erase(kinds.begin());
  return kinds;
}

void on_device(const std::string& name, const std::function<void(DeviceKind)>& make,
               std::FILE* notes) {
  std::vector<DeviceKind> kinds = device_choices(name);
  for (size_t i = 0;; ++i) try {
      return make(kinds[i]);
    } catch (const DeviceError& e) {
      if (i + 1 == kinds.size()) throw;
      fmt::print(notes, "no {}: {}\nusing {} instead\n", to_string(kinds[i]), e.what(),
                 to_string(kinds[i + 1]));
    }
}

}  // namespace sinter::train
