#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/train/device.h>

namespace sinter::train {
namespace {

// Processor time of a step, the reference against the CPU's compiled kernels, on the model that
// train_gpt takes where there is no compiler: docs/performance.md has the measurement.
constexpr int kReferenceSlowdown = 30;

}  // namespace

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
      if (notes == nullptr) continue;
      fmt::print(notes, "no {}: {}\nusing {} instead\n", to_string(kinds[i]), e.what(),
                 to_string(kinds[i + 1]));
      if (kinds[i + 1] == DeviceKind::Reference)
        fmt::print(
            notes,
            "the reference runs op by op: a small GPT trains about {} times slower than with a "
            "C++ compiler (docs/performance.md)\n",
            kReferenceSlowdown);
    }
}

}  // namespace sinter::train
