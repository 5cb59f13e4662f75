#pragma once
// A library opened at run time. Handles stay open for the life of the process: the libraries opened
// here (driver, NVRTC, cuBLASLt) register callbacks and threads, and are not safe to unload.

#include <string>
#include <vector>

namespace sinter::detail {

class SharedLibrary {
 public:
  SharedLibrary() = default;
  // Opens the first candidate that loads. None: is_open() is false and error() lists every attempt.
  explicit SharedLibrary(const std::vector<std::string>& candidates);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }
  // Address of `name`, or null.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string error_;
};

// What the process asked for instead of SINTER_NVRTC (CompileOptions::nvrtc), or "".
std::string chosen_toolkit();
void choose_toolkit(const std::string& path);

// Where a library of the CUDA toolkit is looked for, in order: `chosen`, or SINTER_NVRTC where that
// is empty (a file of that library, or the folder of any of them), the loader's own search,
// CUDA_HOME/lib64, CUDA_PATH/lib64 and /usr/local/cuda/lib64. `stem` is "libnvrtc" and the like,
// `versions` the major versions in order of preference.
std::vector<std::string> toolkit_library_candidates(const std::string& stem,
                                                    const std::vector<int>& versions,
                                                    std::string chosen = chosen_toolkit());

}  // namespace sinter::detail
