#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/nvrtc.h>

#include <sinter/runtime/compile_reason.h>
#include <sinter/runtime/cuda/detail/driver_api.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/detail/shared_library.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/runtime/thread_pool.h>

#include <fmt/format.h>
#include <nvrtc.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

namespace sinter::cuda {
namespace {

#define SINTER_NVRTC_FUNCTIONS(X) \
  X(nvrtcCompileProgram)          \
  X(nvrtcCreateProgram)           \
  X(nvrtcDestroyProgram)          \
  X(nvrtcGetCUBIN)                \
  X(nvrtcGetCUBINSize)            \
  X(nvrtcGetErrorString)          \
  X(nvrtcGetNumSupportedArchs)    \
  X(nvrtcGetPTX)                  \
  X(nvrtcGetPTXSize)              \
  X(nvrtcGetProgramLog)           \
  X(nvrtcGetProgramLogSize)       \
  X(nvrtcGetSupportedArchs)       \
  X(nvrtcVersion)

struct Nvrtc {
#define SINTER_NVRTC_MEMBER(name) decltype(&::name) name = nullptr;
  SINTER_NVRTC_FUNCTIONS(SINTER_NVRTC_MEMBER)
#undef SINTER_NVRTC_MEMBER
  std::string problem;
  int version = 0;
  std::vector<int> archs;
};

Nvrtc open_nvrtc() {
  // A driver of CUDA 12 may refuse code of 13, so it gets the compiler of its own generation where
  // both are installed.
  const int driver_version = detail::driver_state().version;
  const std::vector<int> versions = driver_version > 0 && driver_version < 13000
                                        ? std::vector<int>{12, 13}
                                        : std::vector<int>{13, 12};
  Nvrtc api;
  const sinter::detail::SharedLibrary library(
      sinter::detail::toolkit_library_candidates("libnvrtc", versions));
  if (!library.is_open()) {
    api.problem = fmt::format(
        "NVRTC not found: install the CUDA toolkit's runtime compiler (12.4 to 13), or set "
        "SINTER_NVRTC to the folder of libnvrtc.so ({})",
        library.error());
    return api;
  }
#define SINTER_NVRTC_LOAD(name)                                           \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#name)); \
  if (api.name == nullptr)                                                \
    api.problem = fmt::format("{} lacks {}: CUDA 12.4 or newer is needed", library.path(), #name);
  SINTER_NVRTC_FUNCTIONS(SINTER_NVRTC_LOAD)
#undef SINTER_NVRTC_LOAD
  if (!api.problem.empty()) return api;

  int major = 0;
  int minor = 0;
  int count = 0;
  if (api.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS ||
      api.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS) {
    api.problem = fmt::format("{} does not answer nvrtcVersion", library.path());
    return api;
  }
  api.version = major * 1000 + minor * 10;
  api.archs.resize(static_cast<std::size_t>(count));
  if (api.nvrtcGetSupportedArchs(api.archs.data()) != NVRTC_SUCCESS) api.archs.clear();
  std::sort(api.archs.begin(), api.archs.end());
  return api;
}

std::mutex opening;
bool opened = false;  // guarded by `opening`

const Nvrtc& nvrtc_state() {
  static const Nvrtc api = [] {
    const std::lock_guard lock(opening);
    opened = true;
    return open_nvrtc();
  }();
  return api;
}

const Nvrtc& nvrtc() {
  const Nvrtc& api = nvrtc_state();
  if (!api.problem.empty()) throw DeviceError(api.problem);
  return api;
}

// 90 for "sm_90a"; nullopt when it is no such name.
std::optional<int> capability_of(std::string_view arch) {
  if (arch.substr(0, 3) != "sm_") return std::nullopt;
  int value = 0;
  const char* end = arch.data() + arch.size();
  const auto [rest, error] = std::from_chars(arch.data() + 3, end, value);
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (error != std::errc() || (!suffix.empty() && suffix != "a" && suffix != "f")) {
    return std::nullopt;
  }
  return value;
}

// The NVRTC value of --gpu-architecture: `arch` itself, or a virtual one when it is unknown.
std::string resolve_arch(const CompileRequest& request) {
  const std::optional<int> capability = capability_of(request.arch);
  if (!capability) {
    throw DeviceError(fmt::format("'{}' is no CUDA architecture (sm_80, sm_89, sm_90a, sm_120, …)",
                                  request.arch));
  }
  const std::vector<int> archs = supported_archs();
  if (std::find(archs.begin(), archs.end(), *capability) != archs.end()) return request.arch;
  int newest = 0;
  for (int candidate : archs) {
    if (candidate < *capability) newest = candidate;
  }
  if (!request.allow_ptx || newest == 0) {
    throw UnsupportedArch(
        fmt::format("NVRTC {} cannot compile for {}: it knows compute capabilities {} to {}",
                    version_text(nvrtc_version()), request.arch, archs.empty() ? 0 : archs.front(),
                    archs.empty() ? 0 : archs.back()));
  }
  return fmt::format("compute_{}", newest);
}

class Program {
 public:
  Program(const Nvrtc& api, const CompileRequest& request) : api_(api) {
    const std::string file = request.name + ".cu";
    const nvrtcResult result = api.nvrtcCreateProgram(&program_, request.source.c_str(),
                                                      file.c_str(), 0, nullptr, nullptr);
    if (result != NVRTC_SUCCESS) {
      throw DeviceError(fmt::format("nvrtcCreateProgram failed for '{}': {}", request.name,
                                    api.nvrtcGetErrorString(result)));
    }
  }
  ~Program() { api_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) const {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return api_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::string text = read(api_.nvrtcGetProgramLogSize, api_.nvrtcGetProgramLog);
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
    return text;
  }

  std::string image(bool ptx) const {
    if (!ptx) return read(api_.nvrtcGetCUBINSize, api_.nvrtcGetCUBIN);
    std::string text = read(api_.nvrtcGetPTXSize, api_.nvrtcGetPTX);
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

 private:
  template <typename Size, typename Get>
  std::string read(Size size_of, Get get) const {
    std::size_t size = 0;
    if (size_of(program_, &size) != NVRTC_SUCCESS) return {};
    std::string bytes(size, '\0');
    if (size == 0 || get(program_, bytes.data()) != NVRTC_SUCCESS) return {};
    return bytes;
  }

  const Nvrtc& api_;
  nvrtcProgram program_ = nullptr;
};

CompiledUnit compile_now(const CompileRequest& request, const std::vector<std::string>& options,
                         bool is_ptx) {
  const Nvrtc& api = nvrtc();
  const Program program(api, request);
  const nvrtcResult result = program.compile(options);
  CompiledUnit unit;
  unit.log = program.log();
  const auto failed = [&](std::string_view what) {
    throw DeviceError(fmt::format("nvrtcCompileProgram failed for kernel '{}' on {}: {}{}{}{}{}",
                                  request.name, request.arch, what, unit.log.empty() ? "" : "\n",
                                  unit.log, request.dump_path.empty() ? "" : "\nthe source is in ",
                                  request.dump_path));
  };
  if (result != NVRTC_SUCCESS) failed(api.nvrtcGetErrorString(result));
  if (const std::string warning = fatal_warning(unit.log); !warning.empty()) {
    failed("a ptxas warning that counts as an error: " + warning);
  }
  unit.is_ptx = is_ptx;
  unit.image = program.image(is_ptx);
  if (unit.image.empty()) failed("no code came out");
  unit.kernels = parse_resources(unit.log);
  return unit;
}

// A cached unit is the kind of its image, the image's length, the image and the log.
std::string pack(const CompiledUnit& unit) {
  const uint64_t size = unit.image.size();
  std::string bytes(1, unit.is_ptx ? 'p' : 'c');
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += unit.image;
  bytes += unit.log;
  return bytes;
}

CompiledUnit unpack(std::string_view bytes) {
  uint64_t size = 0;
  SINTER_CHECK(bytes.size() > sizeof size, "a cached unit of {} bytes", bytes.size());
  CompiledUnit unit;
  unit.is_ptx = bytes[0] == 'p';
  std::memcpy(&size, bytes.data() + 1, sizeof size);
  bytes.remove_prefix(1 + sizeof size);
  SINTER_CHECK(size <= bytes.size(), "a cached unit with {} of {} bytes", bytes.size(), size);
  unit.image = bytes.substr(0, size);
  unit.log = bytes.substr(size);
  unit.kernels = parse_resources(unit.log);
  return unit;
}

}  // namespace

bool nvrtc_available(std::string* why) {
  const Nvrtc& api = nvrtc_state();
  if (why != nullptr) *why = api.problem;
  return api.problem.empty();
}

void use_nvrtc(const std::string& path) {
  const std::lock_guard lock(opening);
  const std::string before = sinter::detail::chosen_toolkit();
  if (before == path) return;
  if (opened) {
    throw DeviceError(fmt::format(
        "NVRTC is to be loaded from {}, but this process has loaded it already{}{}: name it before "
        "the first use of CUDA, or in SINTER_NVRTC",
        path, before.empty() ? "" : " from ", before));
  }
  sinter::detail::choose_toolkit(path);
}

int nvrtc_version() {
  return nvrtc().version;
}

std::vector<int> supported_archs() {
  return nvrtc().archs;
}

bool supports_arch(std::string_view arch) {
  const std::vector<int> archs = supported_archs();
  const std::optional<int> capability = capability_of(arch);
  return capability && std::find(archs.begin(), archs.end(), *capability) != archs.end();
}

std::vector<std::string> compile_options(const CompileRequest& request) {
  std::vector<std::string> options = {
      "--gpu-architecture=" + resolve_arch(request), request.fmad ? "--fmad=true" : "--fmad=false",
      "--std=c++17",
      "--minimal",  // without texture, surface and CDP declarations: a third less front end
  };
  if (options[0].find("compute_") == std::string::npos) options.push_back("--ptxas-options=-v");
  // NVRTC's own cache, which only newer ones have, answers without what ptxas said.
  if (nvrtc_version() >= 12090) options.push_back("--no-cache");
  options.insert(options.end(), request.options.begin(), request.options.end());
  return options;
}

CompiledUnit compile(const CompileRequest& request, DiskCache* cache) {
  const std::vector<std::string> options = compile_options(request);
  const bool is_ptx = options[0].find("compute_") != std::string::npos;
  if (cache == nullptr) {
    CompiledUnit unit = compile_now(request, options, is_ptx);
    unit.reason = kCacheNotUsed;
    return unit;
  }

  std::string flags;
  for (const std::string& option : options) flags += option + '\n';
  // NVRTC appends these itself.
  const char* appended = std::getenv("NVRTC_APPEND_FLAGS");
  const CacheKey key = cache_key({"nvrtc", std::to_string(nvrtc_version()), flags,
                                  appended != nullptr ? appended : "", request.source});
  std::string reason;
  const DiskCache::Value bytes = cache->get_or_compile(key, [&](const std::string& fault) {
    std::string made = pack(compile_now(request, options, is_ptx));
    const CompileSettings settings = {{"architecture", options[0].substr(options[0].find('=') + 1)},
                                      {"compiler", "NVRTC " + version_text(nvrtc_version())},
                                      {"options", flags.substr(flags.find('\n') + 1)},
                                      {"NVRTC_APPEND_FLAGS", appended != nullptr ? appended : ""}};
    reason = compile_reason(*cache, "nvrtc", request.source, settings, fault);
    return made;
  });
  CompiledUnit unit = unpack(*bytes);
  unit.from_cache = reason.empty();
  unit.reason = std::move(reason);
  return unit;
}

std::vector<CompiledUnit> compile_all(const std::vector<CompileRequest>& requests,
                                      DiskCache* cache) {
  std::vector<CompiledUnit> units(requests.size());
  std::vector<std::exception_ptr> errors(requests.size());
  // Compile times differ widely, so each thread takes the next request rather than a fixed share.
  std::atomic<std::size_t> next{0};
  ThreadPool& pool = ThreadPool::global();
  pool.parallel_for(0, pool.size(), [&](int64_t, int64_t) {
    for (std::size_t i = next++; i < requests.size(); i = next++) {
      try {
        units[i] = compile(requests[i], cache);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return units;
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
