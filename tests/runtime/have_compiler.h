#pragma once
// Whether this machine has a C++ compiler for host kernels; tests of what it makes need one.

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/host_compiler.h>

namespace sinter::test {

inline bool have_compiler() {
  try {
    HostCompiler compiler;
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

}  // namespace sinter::test
