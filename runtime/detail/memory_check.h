#pragma once
// The check of a plan against the device's memory.

#include <sinter/runtime/memory.h>

namespace sinter::detail {

MemoryNeed memory_need(const Module& module, const std::map<std::string, MemoryPlan>& plans);

// Throws OutOfMemory where the plans take more than the options or the device allow.
void check_memory(const Module& module, const std::map<std::string, MemoryPlan>& plans,
                  const CompileOptions& options);

}  // namespace sinter::detail
