#pragma once
// Why something was compiled although there is a cache.
//
// A cache keys on everything that determines an artefact, so that a miss says nothing of its cause.
// Beside each artefact lies a small entry under the key of its source alone; it says with what that
// source was compiled last, and the next miss is explained by what has changed since.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter {

class DiskCache;

// What beside the source determines an artefact, by name: {"architecture", "sm_90a"}.
using CompileSettings = std::vector<std::pair<std::string, std::string>>;

// One unit that was compiled: a translation unit with some kernels.
struct CompiledFor {
  std::string unit;
  std::vector<std::string> kernels;  // symbols
  // "new source", "compiler NVRTC 12.9 instead of NVRTC 12.8", "its cache entry is damaged", …
  std::string reason;
};

// The reason for a compile, and notes for the next one what it was done with. `fault` is what was
// wrong with the entry that was found, or "".
std::string compile_reason(DiskCache& cache, std::string_view kind, std::string_view source,
                           const CompileSettings& settings, const std::string& fault);
// The reason where no cache is asked.
inline constexpr std::string_view kCacheNotUsed = "the cache is not used";

}  // namespace sinter
