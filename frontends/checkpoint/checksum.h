#pragma once
// A checksum that tells whether bytes are those that were written; no protection against forgery.

#include <cstddef>
#include <string>

namespace sinter {

// XXH3 in 64 bits, as 16 hexadecimal digits.
std::string checksum(const void* data, size_t bytes);

}  // namespace sinter
