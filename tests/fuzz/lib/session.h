#pragma once
// Many random graphs on one device, with what came of them.

#include <sinter/tests/fuzz/lib/compare.h>
#include <sinter/tests/fuzz/lib/generate.h>

#include <filesystem>

namespace sinter::test {

struct FuzzOptions {
  int64_t count = 150;
  uint64_t first_seed = 1;
  DeviceKind device = DeviceKind::Interpreter;
  std::string arch;    // for the interpreter: NVRTC compiles for it, in place of the pass settings
  int64_t batch = 50;  // graphs to a module where a compiler is called
  int64_t most_failures = 10;
  GeneratorOptions generator;
  std::filesystem::path folder = "fuzz";
  std::function<void(const std::string&)> progress;  // failures as they are found
};

struct FuzzResult {
  int64_t graphs = 0, ill = 0, ops = 0, settings = 0;
  double seconds = 0;
  std::vector<std::string> failures;
  std::string summary() const;
};

FuzzResult run_fuzz(const FuzzOptions& options);
// interpreter, cpu, cuda.
bool parse_device(std::string_view name, DeviceKind& device);

}  // namespace sinter::test
