#include <fmt/format.h>
#include <sinter/ir/target.h>

#include <algorithm>
#include <array>
#include <bit>

namespace sinter {
namespace {

struct Field {
  std::string_view name;
  int64_t Target::*value;
};

constexpr std::array kFields{
    Field{"multiprocessors", &Target::multiprocessors},
    Field{"warp", &Target::warp},
    Field{"threads", &Target::threads},
    Field{"threads_per_multiprocessor", &Target::threads_per_multiprocessor},
    Field{"registers", &Target::registers},
    Field{"shared_memory", &Target::shared_memory},
    Field{"shared_per_multiprocessor", &Target::shared_per_multiprocessor},
    Field{"l2", &Target::l2},
    Field{"vector_bytes", &Target::vector_bytes},
    Field{"memory", &Target::memory},
};

}  // namespace

std::optional<Target> Target::named(std::string_view arch) {
  if (arch == "host") return Target{};
  // What differs from one architecture to the next, as CUDA's programming guide gives it; and the
  // multiprocessors and L2 of A100, RTX 3090 Ti, RTX 4090, H100 SXM and RTX 5090.
  struct Row {
    std::string_view arch;
    int64_t multiprocessors, threads_per_multiprocessor, shared_kib, l2_mib;
  };
  static constexpr Row kRows[] = {{"sm_80", 108, 2048, 163, 40},
                                  {"sm_86", 84, 1536, 99, 6},
                                  {"sm_89", 128, 1536, 99, 72},
                                  {"sm_90a", 132, 2048, 227, 50},
                                  {"sm_120", 170, 1536, 99, 96}};
  for (const Row& row : kRows) {
    if (row.arch != arch) continue;
    Target t;
    t.arch = arch;
    t.multiprocessors = row.multiprocessors;
    t.warp = 32;
    t.threads = 1024;
    t.threads_per_multiprocessor = row.threads_per_multiprocessor;
    t.registers = 65536;
    t.shared_memory = row.shared_kib * 1024;
    // CUDA keeps one KiB for itself in each block.
    t.shared_per_multiprocessor = t.shared_memory + 1024;
    t.l2 = row.l2_mib << 20;
    t.vector_bytes = 16;
    return t;
  }
  return std::nullopt;
}

int64_t* Target::find(std::string_view name) {
  auto field =
      std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == name; });
  return field == kFields.end() ? nullptr : &(this->*field->value);
}

bool Target::usable() const {
  for (const Field& f : kFields)
    if (this->*f.value < 0) return false;
  if (multiprocessors < 1) return false;
  if (!is_cuda()) return warp == 1 && threads == 1 && vector_bytes == 64;
  return warp == 32 && threads >= 128 && threads <= 1024 &&
         std::has_single_bit(static_cast<uint64_t>(threads)) &&
         threads_per_multiprocessor >= threads && vector_bytes == 16;
}

std::string print(const Target& target) {
  std::string out = fmt::format("{{target = \"{}\"", target.arch);
  std::optional<Target> named = Target::named(target.arch);
  for (const Field& f : kFields)
    if (!named || target.*f.value != (*named).*f.value)
      out += fmt::format(", {} = {}", f.name, target.*f.value);
  return out + "}";
}

}  // namespace sinter
