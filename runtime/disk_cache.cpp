#include <sinter/runtime/disk_cache.h>

#include <sinter/runtime/log.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <vector>

namespace sinter {
namespace {

constexpr char kMagic[8] = {'s', 'i', 'n', 't', 'e', 'r', 'c', '1'};

// Fixed layout, host byte order: a cache folder is not shared between architectures, and a foreign
// entry fails the checks and is compiled again.
struct EntryHeader {
  char magic[8];
  uint64_t key_high;
  uint64_t key_low;
  uint64_t size;
  uint64_t checksum_high;
  uint64_t checksum_low;
};
static_assert(sizeof(EntryHeader) == 48);

EntryHeader make_header(const CacheKey& key, std::string_view value) {
  const XXH128_hash_t checksum = XXH3_128bits(value.data(), value.size());
  EntryHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_high = key.high;
  header.key_low = key.low;
  header.size = value.size();
  header.checksum_high = checksum.high64;
  header.checksum_low = checksum.low64;
  return header;
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

  bool read(char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t count = ::read(descriptor_, data, size);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      data += count;
      size -= static_cast<std::size_t>(count);
    }
    return true;
  }

  bool write(const char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t count = ::write(descriptor_, data, size);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      data += count;
      size -= static_cast<std::size_t>(count);
    }
    return true;
  }

  // Closing reports what writing delayed; some file systems say "no space" only here.
  bool close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

// A folder may vanish between its making and the opening of a file in it.
constexpr int kPublishTries = 3;
// What a process that was killed left behind is in nobody's way for this long.
constexpr time_t kStaleSeconds = 3600;

struct EntryFile {
  std::string path;
  int64_t size = 0;
  timespec used{};
};

bool is_entry_name(std::string_view name) {
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The entries of a folder. Temporaries that a killed process left are removed on the way; other
// files are not looked at.
std::vector<EntryFile> list_entries(const std::string& folder) {
  std::vector<EntryFile> entries;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error), end;
  const time_t now = ::time(nullptr);
  for (; !error && it != end; it.increment(error)) {
    const std::string path = it->path(), name = it->path().filename();
    const bool temporary = name.starts_with('.') && name.ends_with(".tmp");
    if (!temporary && !is_entry_name(name)) continue;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (!temporary)
      entries.push_back({path, static_cast<int64_t>(info.st_size), info.st_mtim});
    else if (now - info.st_mtim.tv_sec > kStaleSeconds)
      ::unlink(path.c_str());
  }
  return entries;
}

}  // namespace

std::string CacheKey::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

CacheKey cache_key(std::initializer_list<std::string_view> parts) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (std::string_view part : parts) {
    const uint64_t size = part.size();
    XXH3_128bits_update(&state, &size, sizeof size);
    XXH3_128bits_update(&state, part.data(), part.size());
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return {digest.high64, digest.low64};
}

struct DiskCache::Slot {
  CacheKey key;
  std::mutex mutex;
  Value value;        // null until read or made
  std::string fault;  // of the entry on disk
};

struct DiskCache::State {
  struct Less {
    bool operator()(const CacheKey& a, const CacheKey& b) const {
      return a.high != b.high ? a.high < b.high : a.low < b.low;
    }
  };
  std::mutex mutex;
  std::map<CacheKey, std::shared_ptr<Slot>, Less> slots;
  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> compiles{0};
  std::atomic<uint64_t> temporaries{0};
  std::atomic<bool> warned{false};
  std::atomic<int64_t> limit{0};
  std::atomic<bool> homeless{false};  // in memory for the lack of a folder, not by choice
  std::mutex size_mutex;
  int64_t size = -1;  // of the entries on disk, as far as known; -1: not yet
};

DiskCache::Ticket::Ticket(std::shared_ptr<Slot> held) : slot(std::move(held)) {
  slot->mutex.lock();
}

DiskCache::Ticket::~Ticket() {
  if (slot) slot->mutex.unlock();
}

DiskCache::DiskCache(std::string directory, int64_t limit)
    : directory_(std::move(directory)), state_(std::make_unique<State>()) {
  set_limit(limit);
}

DiskCache::~DiskCache() = default;

std::string DiskCache::default_directory() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value != nullptr ? value : "");
  };
  if (const auto chosen = variable("SINTER_CACHE"); !chosen.empty()) return chosen;
  // The XDG specification has relative paths ignored.
  if (const auto base = variable("XDG_CACHE_HOME"); base.is_absolute()) return base / "sinter";
  if (const auto home = variable("HOME"); home.is_absolute()) return home / ".cache" / "sinter";
  return {};
}

int64_t DiskCache::default_limit() {
  const char* text = std::getenv("SINTER_CACHE_LIMIT");
  if (text == nullptr || *text == '\0') return kDefaultLimit;
  const char* end = text + std::strlen(text);
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text, end, value);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || value < 0 || shift < 0 || value > (INT64_MAX >> shift)) {
    log_warning(fmt::format(
        "SINTER_CACHE_LIMIT is '{}', not a number of bytes, K, M or G: the limit is {} bytes", text,
        kDefaultLimit));
    return kDefaultLimit;
  }
  return value << shift;
}

void DiskCache::set_limit(int64_t bytes) {
  state_->limit = bytes;
}

std::unique_ptr<DiskCache> DiskCache::open_default() {
  auto cache = std::make_unique<DiskCache>(default_directory());
  cache->state_->homeless = cache->directory_.empty();
  return cache;
}

DiskCache& DiskCache::global() {
  static const std::unique_ptr<DiskCache> cache = open_default();
  return *cache;
}

DiskCache& DiskCache::of(const std::string& directory) {
  if (directory.empty()) return global();
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<DiskCache>> caches;
  std::lock_guard lock(mutex);
  std::unique_ptr<DiskCache>& cache = caches[directory];
  if (!cache) cache = std::make_unique<DiskCache>(directory);
  return *cache;
}

DiskCache::Ticket DiskCache::begin(const CacheKey& key) {
  std::shared_ptr<Slot> slot;
  {
    std::lock_guard lock(state_->mutex);
    std::shared_ptr<Slot>& entry = state_->slots[key];
    if (!entry) {
      entry = std::make_shared<Slot>();
      entry->key = key;
    }
    slot = entry;
  }
  return Ticket(std::move(slot));
}

DiskCache::Value DiskCache::current(Ticket& ticket) {
  Slot& slot = *ticket.slot;
  if (!slot.value) {
    if (std::optional<std::string> bytes = read_entry(slot.key, slot.fault)) {
      slot.value = std::make_shared<const std::string>(*std::move(bytes));
    }
  }
  ++(slot.value ? state_->hits : state_->misses);
  return slot.value;
}

DiskCache::Value DiskCache::finish(Ticket& ticket, std::string value) {
  ++state_->compiles;
  Slot& slot = *ticket.slot;
  slot.value = std::make_shared<const std::string>(std::move(value));
  write_entry(slot.key, *slot.value);
  return slot.value;
}

const std::string& DiskCache::fault(const Ticket& ticket) {
  return ticket.slot->fault;
}

DiskCache::Value DiskCache::load(const CacheKey& key) {
  Ticket ticket = begin(key);
  return current(ticket);
}

DiskCache::Value DiskCache::peek(const CacheKey& key) {
  Ticket ticket = begin(key);
  Slot& slot = *ticket.slot;
  if (!slot.value)
    if (std::optional<std::string> bytes = read_entry(key, slot.fault))
      slot.value = std::make_shared<const std::string>(*std::move(bytes));
  return slot.value;
}

void DiskCache::store(const CacheKey& key, std::string value) {
  Ticket ticket = begin(key);
  ticket.slot->value = std::make_shared<const std::string>(std::move(value));
  write_entry(key, *ticket.slot->value);
}

CacheStats DiskCache::stats() const {
  return {state_->hits.load(), state_->misses.load(), state_->compiles.load()};
}

void DiskCache::warn_once(const std::string& message) {
  if (!state_->warned.exchange(true)) log_warning(message);
}

std::optional<std::string> DiskCache::read_entry(const CacheKey& key, std::string& fault) {
  if (directory_.empty()) return std::nullopt;
  const std::string path = std::filesystem::path(directory_) / key.hex();
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno != ENOENT && errno != ENOTDIR) {
      const std::string why = std::strerror(errno);
      fault = fmt::format("not readable ({})", why);
      warn_once(fmt::format(
          "cache entry {} cannot be read ({}): compiling again; set SINTER_CACHE to a folder that "
          "can be written",
          path, why));
    }
    return std::nullopt;
  }
  const auto unusable = [&](const char* what) {
    fault = what;
    warn_once(fmt::format("cache entry {} is {}: compiling again", path, what));
    return std::nullopt;
  };
  struct stat info {};
  EntryHeader header{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return unusable("not a file");
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return unusable("truncated");
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return unusable("of another format");
  // The size in the header is trusted only once it agrees with the file's.
  const auto stored = static_cast<uint64_t>(info.st_size) - sizeof header;
  if (header.size > stored) return unusable("truncated");
  if (header.size < stored) return unusable("damaged");
  std::string value(header.size, '\0');
  if (!file.read(value.data(), value.size())) return unusable("truncated");
  const EntryHeader expected = make_header(key, value);
  if (std::memcmp(&header, &expected, sizeof header) != 0) return unusable("damaged");
  // When an entry was last used is its time of modification; a folder of others keeps theirs.
  ::futimens(file.get(), nullptr);
  return value;
}

void DiskCache::write_entry(const CacheKey& key, std::string_view value) {
  if (directory_.empty()) {
    if (state_->homeless)
      warn_once(
          "there is no cache folder (HOME is not set): kernels are compiled again in the next "
          "process; set SINTER_CACHE to a folder that can be written");
    return;
  }
  std::string problem;
  for (int i = 0; i < kPublishTries; ++i) {
    problem = publish(key, value);
    if (problem.empty()) return keep_within_limit(static_cast<int64_t>(value.size()));
  }
  warn_once(
      fmt::format("the cache folder {} cannot be written ({}): kernels are compiled again in the "
                  "next process; set SINTER_CACHE to a folder that can be written",
                  directory_, problem));
}

// Why the entry could not be written, or "".
std::string DiskCache::publish(const CacheKey& key, std::string_view value) {
  const std::filesystem::path folder(directory_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return error.message();

  // Unique among processes and threads; O_EXCL guards against a left-over of the same name.
  const std::string temporary =
      folder / fmt::format(".{}.{}.{}.tmp", key.hex(), ::getpid(), state_->temporaries++);
  const std::string target = folder / key.hex();
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return std::strerror(errno);
  const EntryHeader header = make_header(key, value);
  const bool written = file.write(reinterpret_cast<const char*>(&header), sizeof header) &&
                       file.write(value.data(), value.size()) && ::fsync(file.get()) == 0 &&
                       file.close() && ::rename(temporary.c_str(), target.c_str()) == 0;
  if (written) return "";
  const int reason = errno;
  ::unlink(temporary.c_str());
  return std::strerror(reason);
}

// The folder's size is read once, then counted along, and read again before anything is removed:
// other processes write too. One of them at a time removes; the others go on.
void DiskCache::keep_within_limit(int64_t added) {
  const int64_t limit = state_->limit;
  if (limit <= 0) return;
  std::lock_guard guard(state_->size_mutex);
  if (state_->size >= 0) {
    state_->size += added + static_cast<int64_t>(sizeof(EntryHeader));
    if (state_->size <= limit) return;
  }

  const File lock(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::vector<EntryFile> entries = list_entries(directory_);
  int64_t size = 0;
  for (const EntryFile& e : entries) size += e.size;
  if (size > limit) {
    std::sort(entries.begin(), entries.end(), [](const EntryFile& a, const EntryFile& b) {
      return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                            : a.used.tv_nsec < b.used.tv_nsec;
    });
    // Down to a little less, so that not every store looks through the folder.
    const int64_t goal = limit - limit / 8;
    for (const EntryFile& e : entries) {
      if (size <= goal) break;
      if (::unlink(e.path.c_str()) == 0 || errno == ENOENT) size -= e.size;
    }
  }
  state_->size = size;
}

}  // namespace sinter
