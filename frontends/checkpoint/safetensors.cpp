#include <sinter/frontends/checkpoint/safetensors.h>

#include <fcntl.h>
#include <sinter/ir/diagnostic.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

namespace sinter {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct DTypeName {
  DType type;
  std::string_view name;
};
constexpr std::array kDTypeNames{DTypeName{DType::F64, "F64"},   DTypeName{DType::F32, "F32"},
                                 DTypeName{DType::BF16, "BF16"}, DTypeName{DType::F16, "F16"},
                                 DTypeName{DType::I32, "I32"},   DTypeName{DType::I64, "I64"},
                                 DTypeName{DType::U32, "U32"},   DTypeName{DType::Bool, "BOOL"}};

std::string_view file_name_of(DType type) {
  for (const DTypeName& entry : kDTypeNames)
    if (entry.type == type) return entry.name;
  return "";
}

std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeName& entry : kDTypeNames)
    if (entry.name == name) return entry.type;
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& path, std::string_view message) {
  throw Error(fmt::format("{}: {}", path, message));
}

// Reads exactly `count` bytes; false at the end of the file or on an error (errno says which).
bool read_exactly(int descriptor, void* target, uint64_t count, uint64_t offset) {
  auto* bytes = static_cast<char*>(target);
  while (count > 0) {
    errno = 0;
    const ssize_t n =
        pread(descriptor, bytes, std::min<uint64_t>(count, 1u << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    offset += static_cast<uint64_t>(n);
    count -= static_cast<uint64_t>(n);
  }
  return true;
}

uint64_t from_little_endian(const unsigned char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

// The header as JSON. nlohmann keeps the last of repeated keys: they are refused here.
json parse_json(const std::string& path, const std::string& header) {
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      auto key = parsed.get<std::string>();
      if (!keys.back().insert(key).second && repeated.empty()) repeated = key;
    }
    return true;
  };
  json result;
  try {
    result = json::parse(header, watch);
  } catch (const json::exception& e) {
    refuse(path, fmt::format("bad header: {}", e.what()));
  }
  if (!repeated.empty()) refuse(path, fmt::format("bad header: key '{}' repeats", repeated));
  if (!result.is_object()) refuse(path, "bad header: not a JSON object");
  return result;
}

// A value of the header that must be a non-negative integer.
uint64_t as_count(const std::string& path, const std::string& name, const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
    refuse(path, fmt::format("tensor '{}': {} is not a size", name, value.dump()));
  return value.get<uint64_t>();
}

// The file that becomes `path` when it is whole; removed if that does not happen.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path) : path_(path) {
    static std::atomic<unsigned> serial{0};
    do {  // a name may be taken by what a killed process of the same number left
      temporary_ = fmt::format("{}.tmp-{}-{}", path, getpid(), serial++);
      descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail("create");
  }
  ~PendingFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, uint64_t count) {
    const auto* bytes = static_cast<const char*>(data);
    while (count > 0) {
      const ssize_t n = ::write(descriptor_, bytes, std::min<uint64_t>(count, 1u << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      bytes += n;
      count -= static_cast<uint64_t>(n);
    }
  }

  void publish() {
    if (fsync(descriptor_) != 0) fail("flush");
    if (close(std::exchange(descriptor_, -1)) != 0) fail("close");
    if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
    temporary_.clear();
    // The rename itself lasts once the folder is on disk; some file systems cannot be asked.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int handle = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle >= 0) {
      fsync(handle);
      close(handle);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) {
    throw Error(fmt::format("{}: cannot {} it: {}", path_, what, std::strerror(errno)));
  }

  std::string path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) refuse(path_, fmt::format("cannot open it: {}", std::strerror(errno)));
  try {
    struct stat info {};
    if (fstat(descriptor_, &info) != 0 || !S_ISREG(info.st_mode)) refuse(path_, "not a file");
    const auto size = static_cast<uint64_t>(info.st_size);
    unsigned char prefix[8];
    if (size < sizeof prefix || !read_exactly(descriptor_, prefix, sizeof prefix, 0))
      refuse(path_, "too short for a safetensors file");
    const uint64_t length = from_little_endian(prefix);
    if (length > kMaxHeader)
      refuse(path_, fmt::format("bad header: its length {} is beyond {}", length, kMaxHeader));
    if (length > size - sizeof prefix)
      refuse(path_, fmt::format("bad header: its length {} is beyond the end of the file", length));
    std::string header(length, '\0');
    if (!read_exactly(descriptor_, header.data(), length, sizeof prefix))
      refuse(path_, fmt::format("cannot read it: {}", std::strerror(errno)));
    if (!header.starts_with('{')) refuse(path_, "bad header: it does not begin with '{'");
    data_offset_ = sizeof prefix + length;
    parse_header(header, size - data_offset_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_offset_(other.data_offset_),
      entries_(std::move(other.entries_)),
      metadata_(std::move(other.metadata_)) {}

void SafetensorsFile::parse_header(const std::string& header, uint64_t data_bytes) {
  struct Range {
    uint64_t begin, end;
    size_t entry;
  };
  const json root = parse_json(path_, header);
  std::vector<Range> ranges;
  for (const auto& item : root.items()) {
    const std::string& name = item.key();
    const json& value = item.value();
    if (name == "__metadata__") {
      if (!value.is_object()) refuse(path_, "bad header: __metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string())
          refuse(path_, fmt::format("bad header: __metadata__ '{}' is not a string", key));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    auto bad = [&](std::string_view message) {
      refuse(path_, fmt::format("tensor '{}': {}", name, message));
    };
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets"))
      bad("does not have exactly dtype, shape and data_offsets");
    const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
    if (!dtype.is_string()) bad("dtype is not a string");
    const auto known = dtype_named(dtype.get<std::string>());
    if (!known) bad(fmt::format("dtype {} is not supported", dtype.get<std::string>()));
    if (!shape.is_array()) bad("shape is not a list");
    if (!offsets.is_array() || offsets.size() != 2) bad("data_offsets is not a pair");
    Entry entry{name, {*known, {}}, as_count(path_, name, offsets[0])};
    uint64_t bytes = static_cast<uint64_t>(size_of(*known));
    bool overflow = false;
    for (const json& extent : shape) {
      const uint64_t n = as_count(path_, name, extent);
      overflow |= __builtin_mul_overflow(bytes, n, &bytes);
      entry.type.shape.push_back(static_cast<int64_t>(n));
    }
    if (overflow || bytes > INT64_MAX) bad("its size does not fit 64 bits");
    const uint64_t end = as_count(path_, name, offsets[1]);
    if (end < entry.begin || end - entry.begin != bytes)
      bad(fmt::format("{} takes {} bytes, data_offsets are [{},{}]", entry.type.str(), bytes,
                      entry.begin, end));
    if (end > data_bytes)
      bad(fmt::format("data_offsets [{},{}] run past the {} bytes of data", entry.begin, end,
                      data_bytes));
    ranges.push_back({entry.begin, end, entries_.size()});
    entries_.push_back(std::move(entry));
  }
  // The ranges tile the data: in order, each begins where the one before it ends.
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin != covered)
      refuse(path_,
             fmt::format("tensor '{}': {} at byte {} of the data", entries_[range.entry].name,
                         range.begin < covered ? "overlaps another" : "leaves a gap before it",
                         std::min(range.begin, covered)));
    covered = range.end;
  }
  if (covered != data_bytes)
    refuse(path_, fmt::format("{} bytes of data belong to no tensor", data_bytes - covered));
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  auto place = std::lower_bound(entries_.begin(), entries_.end(), name,
                                [](const Entry& e, std::string_view n) { return e.name < n; });
  return place != entries_.end() && place->name == name ? &*place : nullptr;
}

Tensor SafetensorsFile::read(const Entry& entry) const {
  Tensor result = Tensor::uninitialized(entry.type);
  if (!read_exactly(descriptor_, result.data(), static_cast<uint64_t>(result.bytes()),
                    data_offset_ + entry.begin))
    refuse(path_, fmt::format("tensor '{}': cannot read its data: {}", entry.name,
                              errno ? std::strerror(errno) : "the file has become shorter"));
  // Any other byte in a bool would be undefined behaviour for whoever reads it as one.
  if (entry.type.dtype == DType::Bool)
    for (int64_t i = 0; i < result.size(); ++i)
      if (load_bits(DType::Bool, result.data(), i) > 1)
        refuse(path_,
               fmt::format("tensor '{}': element {} of a bool is neither 0 nor 1", entry.name, i));
  return result;
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const Entry* entry = find(name);
  if (!entry) refuse(path_, fmt::format("has no tensor '{}'", name));
  return read(*entry);
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<NamedTensor> result;
  for (const auto& entry : file.entries()) result.emplace_back(entry.name, file.read(entry));
  return result;
}

Tensor load_safetensors(const std::string& path, const std::string& name) {
  return SafetensorsFile(path).read(name);
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const SafetensorsMetadata& metadata) {
  // Wider elements first, so that every tensor lies aligned to its own; then by name.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int64_t wide_a = size_of(a->second.dtype()), wide_b = size_of(b->second.dtype());
    return wide_a != wide_b ? wide_a > wide_b : a->first < b->first;
  });
  json root = json::object();
  uint64_t offset = 0;
  std::string header;
  try {
    for (const NamedTensor* tensor : order) {
      const auto& [name, value] = *tensor;
      if (name.empty() || name == "__metadata__")
        refuse(path, fmt::format("a tensor cannot be named '{}'", name));
      if (root.contains(name)) refuse(path, fmt::format("tensor '{}' is given twice", name));
      const uint64_t end = offset + static_cast<uint64_t>(value.bytes());
      root[name] = {{"dtype", file_name_of(value.dtype())},
                    {"shape", value.shape()},
                    {"data_offsets", {offset, end}}};
      offset = end;
    }
    if (!metadata.empty()) root["__metadata__"] = metadata;
    header = root.dump();
  } catch (const json::exception& e) {  // a name or metadata that is not UTF-8
    refuse(path, e.what());
  }
  // Spaces bring the data to a multiple of 8, as the format's own writer does.
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeader) refuse(path, "the header would be beyond the format's limit");

  PendingFile file(path);
  unsigned char prefix[8];
  for (int i = 0; i < 8; ++i)
    prefix[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  file.write(prefix, sizeof prefix);
  file.write(header.data(), header.size());
  for (const NamedTensor* tensor : order)
    file.write(tensor->second.data(), static_cast<uint64_t>(tensor->second.bytes()));
  file.publish();
}

}  // namespace sinter
