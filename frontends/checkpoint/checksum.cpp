#include <sinter/frontends/checkpoint/checksum.h>

#include <fmt/format.h>
#include <xxhash.h>

namespace sinter {

std::string checksum(const void* data, size_t bytes) {
  return fmt::format("{:016x}", XXH3_64bits(data, bytes));
}

}  // namespace sinter
