#pragma once
// What a compiled module takes of a device's memory, known before it runs.

#include <sinter/runtime/executable.h>

#include <string>
#include <vector>

namespace sinter {

struct MemoryNeed {
  int64_t state = 0;      // once: the next value takes over the storage
  int64_t arena = 0;      // the largest of the entry graphs, which share it
  int64_t bindings = 0;   // inputs and outputs of all entry graphs
  int64_t workspace = 0;  // of the device's libraries
  // The largest values, of all entry graphs, largest first: "4096 bytes: %h f32[32,32]
  // model.cpp:9".
  std::vector<std::string> largest;

  int64_t total() const { return state + arena + bindings + workspace; }
};

// Runs the passes alone. Needs no device: with device Interpreter any target can be planned for.
MemoryNeed planned_memory(const Module& module, const CompileOptions& options);

// A plan above what there is; thrown by compile() before any kernel is compiled.
class OutOfMemory : public Error {
 public:
  OutOfMemory(MemoryNeed need, int64_t limit, std::string message)
      : Error(std::move(message)), need_(std::move(need)), limit_(limit) {}
  const MemoryNeed& need() const { return need_; }
  int64_t limit() const { return limit_; }

 private:
  MemoryNeed need_;
  int64_t limit_;
};

// "1.50 GiB", "312 bytes".
std::string byte_text(int64_t bytes);

}  // namespace sinter
