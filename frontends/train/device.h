#pragma once
// The device that a training program runs on: what was asked for, or what takes its place.

#include <sinter/runtime/executable.h>

#include <cstdio>
#include <functional>
#include <string>

namespace sinter::train {

// The device asked for (auto, cuda, cpu or reference) and what takes its place, best first.
std::vector<DeviceKind> device_choices(const std::string& name);

// Calls `make` for the first device on which it throws no DeviceError. Where that is not the first
// choice, `notes` (not null) is told why and what is used instead.
void on_device(const std::string& name, const std::function<void(DeviceKind)>& make,
               std::FILE* notes);

}  // namespace sinter::train
