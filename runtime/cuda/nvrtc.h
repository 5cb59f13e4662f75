#pragma once
// NVRTC: CUDA C text to machine code, without a GPU, a driver or a toolkit's headers.
//
// libnvrtc is opened at run time (SINTER_NVRTC, then the loader's search, then the usual toolkit
// folders; .so.13 before .so.12, unless the driver is of CUDA 12). Functions are thread-safe.
//
// Contract: compile() yields a cubin for exactly the architecture asked for, with what ptxas
// reported of each kernel. Source must be self-contained and kernels `extern "C"`. Contraction is
// off unless asked for. The ptxas warnings that mean a kernel will run serialized or starved
// (C7504, C7508, C7510, C7511, C7520) are errors. Failures throw DeviceError with call, kernel,
// architecture, log and the place of the dumped source.

#include <sinter/ir/diagnostic.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {
class DiskCache;
}

namespace sinter::cuda {

// The installed NVRTC does not know the architecture: tests count such a target as skipped.
class UnsupportedArch : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// Whether libnvrtc can be opened; `why` (when given) receives the reason if not.
bool nvrtc_available(std::string* why = nullptr);
// Has NVRTC and cuBLASLt loaded from `path` (as SINTER_NVRTC has it) when they are first needed.
// Throws DeviceError where NVRTC has been loaded before on another's word.
void use_nvrtc(const std::string& path);
// 13000 for 13.0. Throws DeviceError where NVRTC is missing, like all below.
int nvrtc_version();
// Compute capabilities that NVRTC compiles for, ascending: 75, 80, … 120.
std::vector<int> supported_archs();
// Whether `arch` ("sm_90a") is among them.
bool supports_arch(std::string_view arch);

// What ptxas says of one kernel.
struct KernelResources {
  std::string name;
  int registers = 0;
  int64_t shared_bytes = 0;  // static
  int64_t stack_bytes = 0;
  int64_t spill_store_bytes = 0;
  int64_t spill_load_bytes = 0;
};

// The kernels in a log made with -Xptxas=-v, in order.
std::vector<KernelResources> parse_resources(std::string_view log);
// The first line of `log` with a ptxas warning that counts as an error, or empty.
std::string fatal_warning(std::string_view log);

struct CompileRequest {
  std::string name;    // the kernel or unit, for errors
  std::string source;  // the whole text, prelude included
  std::string arch;    // "sm_80", "sm_90a", …
  bool fmad = false;   // allow a*b+c to contract
  // For an architecture that NVRTC does not know, give PTX of the newest virtual one below it,
  // which the driver finishes. Without it, such an architecture throws UnsupportedArch.
  bool allow_ptx = false;
  std::vector<std::string> options;  // further NVRTC options
  std::string dump_path;             // where the source was dumped, for errors; may be empty
};

struct CompiledUnit {
  std::string image;  // cubin, or PTX text when is_ptx
  bool is_ptx = false;
  std::string log;
  std::vector<KernelResources> kernels;  // as far as the log reports them; empty for PTX
  bool from_cache = false;
  std::string reason;  // why it was compiled (compile_reason.h), or ""

  // The entry for `name`, or null.
  const KernelResources* find(std::string_view name) const;
};

// The options that a request is compiled with; part of the cache key.
std::vector<std::string> compile_options(const CompileRequest& request);

// Compiles, or takes the result from `cache` when one is given.
CompiledUnit compile(const CompileRequest& request, DiskCache* cache = nullptr);

// Compiles all, in parallel on the threads of ThreadPool::global(). Equal requests compile once
// where a cache is given. The error thrown is that of the first failing request.
std::vector<CompiledUnit> compile_all(const std::vector<CompileRequest>& requests,
                                      DiskCache* cache = nullptr);

}  // namespace sinter::cuda
