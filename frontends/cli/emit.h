#pragma once
// What sinter-opt prints of the kernels that a module's graphs launch.

#include <sinter/ir/graph.h>

#include <string>

namespace sinter {

// `stage`: kernel (with its schedule), loops, cuda, cpp, or cubin (one line a kernel: registers,
// spills, shared memory). Each distinct kernel once, in order of first launch; only those of
// `graph` unless that is empty. Kernels are made for the module's target. Throws Error for an
// unknown stage, DeviceError when NVRTC is missing or refuses, and when a kernel exceeds the
// target.
std::string emit_kernels(const Module& module, const std::string& stage, const std::string& graph);

}  // namespace sinter
