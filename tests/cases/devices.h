#pragma once
// The devices that this machine has, for cases that must hold on each.

#include <sinter/runtime/executable.h>

#include <vector>

namespace sinter::test {

inline std::vector<DeviceKind> devices_here() {
  std::vector<DeviceKind> kinds;
  for (const DeviceEntry& device : list_devices())
    if (device.unavailable.empty() && (kinds.empty() || kinds.back() != device.kind))
      kinds.push_back(device.kind);
  return kinds;
}

}  // namespace sinter::test
