#pragma once
// What passes and schedules may know of hardware, so that a plan for any card can be made on any
// machine. The values of a named target are those of a common card of its kind; a compile for a
// card that is there has them from its driver.
//
// In text a module names its target, and gives the values that differ from those of that name:
// `module {target = "sm_90a", multiprocessors = 114}`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sinter {

struct Target {
  std::string arch = "host";               // host, sm_80, sm_86, sm_89, sm_90a, sm_120
  int64_t multiprocessors = 1;             // cores on the host
  int64_t warp = 1;                        // lanes that run in step
  int64_t threads = 1;                     // a block may have
  int64_t threads_per_multiprocessor = 1;  // that may be there at once
  int64_t registers = 0;                   // of a multiprocessor, 32 bits each; 0 on the host
  int64_t shared_memory = 0;               // bytes a block may use, opt-in included; 0 on the host
  int64_t shared_per_multiprocessor = 0;   // bytes that its blocks share; 0 on the host
  int64_t l2 = int64_t{1} << 20;  // bytes of the cache in front of memory; a core's own on the host
  int64_t vector_bytes = 64;      // one lane loads at once; on the host one SIMD register
  int64_t memory = 0;             // bytes of device memory; 0: unknown

  bool is_cuda() const { return arch.starts_with("sm_"); }
  // Threads of a block for kernels that have no reason for another number.
  int64_t block() const { return threads > 4 ? threads / 4 : 1; }

  // nullopt for an unknown name.
  static std::optional<Target> named(std::string_view arch);
  // Whether schedules can be made for these values: a warp has 32 lanes and a block some warps.
  bool usable() const;
  // The values above by their names; null for another name.
  int64_t* find(std::string_view name);

  bool operator==(const Target&) const = default;
};

// What stands after `module`: `{target = "sm_90a"}`.
std::string print(const Target& target);

}  // namespace sinter
