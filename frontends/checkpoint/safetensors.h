#pragma once
// Reading and writing safetensors files: an 8-byte little-endian header length, a JSON header that
// gives each tensor's dtype, shape and byte range, then the data.
//
// Reading is strict: a header that is too long or malformed, keys that repeat, ranges that overlap,
// leave a gap or run past the file, sizes that do not fit dtype and shape, or a dtype that sinter
// does not have: all refused (Error, naming the file and the tensor) before any data is taken.
// Writing goes to a file beside the target that is flushed to disk and renamed over it: a reader
// sees the old file or the new one, whole, and a failure leaves nothing behind.

#include <sinter/runtime/tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter {

using NamedTensor = std::pair<std::string, Tensor>;
using SafetensorsMetadata = std::map<std::string, std::string>;

// An open file: its header, checked; tensors are read on demand. Not thread-safe.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    TensorType type;
    uint64_t begin = 0;  // in the data part
  };

  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  // By name.
  const std::vector<Entry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Null when there is none of that name.
  const Entry* find(std::string_view name) const;

  Tensor read(const Entry& entry) const;
  // Refuses a name that the file does not have.
  Tensor read(std::string_view name) const;

 private:
  void parse_header(const std::string& header, uint64_t data_bytes);

  std::string path_;
  int descriptor_ = -1;
  uint64_t data_offset_ = 0;
  std::vector<Entry> entries_;
  SafetensorsMetadata metadata_;
};

// All tensors, by name.
std::vector<NamedTensor> read_safetensors(const std::string& path);
// One tensor; the TensorLoader for values written `@FILE:NAME`.
Tensor load_safetensors(const std::string& path, const std::string& name);

// Refuses names that are empty, repeat, or are `__metadata__`. The bytes depend on the content
// alone, not on the order given.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace sinter
