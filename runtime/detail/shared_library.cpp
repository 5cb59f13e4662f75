#include <sinter/runtime/detail/shared_library.h>

#include <sinter/runtime/log.h>

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>

namespace sinter::detail {

SharedLibrary::SharedLibrary(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = candidate;
      error_.clear();
      return;
    }
    const char* reason = dlerror();
    error_ += fmt::format("{}{}", error_.empty() ? "" : "; ",
                          reason != nullptr ? reason : candidate.c_str());
  }
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ != nullptr ? dlsym(handle_, name) : nullptr;
}

namespace {

struct Choice {
  std::mutex mutex;
  std::string path;
};
Choice& choice() {
  static Choice made;
  return made;
}

}  // namespace

std::string chosen_toolkit() {
  std::lock_guard lock(choice().mutex);
  return choice().path;
}
void choose_toolkit(const std::string& path) {
  std::lock_guard lock(choice().mutex);
  choice().path = path;
}

std::vector<std::string> toolkit_library_candidates(const std::string& stem,
                                                    const std::vector<int>& versions,
                                                    std::string chosen) {
  std::vector<std::string> names;
  for (int version : versions) names.push_back(fmt::format("{}.so.{}", stem, version));

  std::vector<std::string> candidates;
  const auto add_folder = [&](const std::filesystem::path& folder) {
    std::error_code ignored;
    for (const std::string& name : names) {
      // Absent files are left out, so that the error lists only files that exist but do not load.
      if (std::filesystem::exists(folder / name, ignored)) candidates.push_back(folder / name);
    }
  };

  std::string origin = "CompileOptions::nvrtc";
  if (const char* set = std::getenv("SINTER_NVRTC"); set != nullptr && chosen.empty()) {
    chosen = set;
    origin = "SINTER_NVRTC";
  }
  if (!chosen.empty()) {
    const std::filesystem::path path(chosen);
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      log_warning(fmt::format("{} names {}, which does not exist", origin, chosen));
    } else if (std::filesystem::is_directory(path, ignored)) {
      add_folder(path);
    } else if (path.filename().string().rfind(stem + ".", 0) == 0) {
      candidates.push_back(path);
    } else {
      add_folder(path.parent_path());
    }
  }
  candidates.insert(candidates.end(), names.begin(), names.end());
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != '\0') {
      add_folder(std::filesystem::path(root) / "lib64");
    }
  }
  add_folder("/usr/local/cuda/lib64");
  return candidates;
}

}  // namespace sinter::detail
