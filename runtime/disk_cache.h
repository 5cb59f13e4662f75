#pragma once
// A content-addressed cache of compiled artefacts (cubins, host objects), in memory and on disk.
//
// Contract: an entry is found only under the key of everything that determined it, carries a
// checksum, and is published by one rename, so that concurrent processes see a whole entry or none.
// A folder that cannot be read or written, or an entry that is truncated, altered or of another
// format, costs one warning per cache and a compile; it never fails and never yields wrong bytes.
// A folder that grows beyond the limit loses the entries that were used longest ago; a process that
// is reading one of them is not disturbed. All members are thread-safe.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sinter {

struct CacheKey {
  uint64_t high = 0;
  uint64_t low = 0;

  // 32 hexadecimal digits; also the entry's file name.
  std::string hex() const;
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

// xxh3-128 over the parts, each preceded by its length, so that no two lists of parts coincide.
// Pass everything that determines the artefact: full source, architecture, flags, compiler version.
CacheKey cache_key(std::initializer_list<std::string_view> parts);

struct CacheStats {
  uint64_t hits = 0;      // answered from memory or disk
  uint64_t misses = 0;    // not found, or found unusable
  uint64_t compiles = 0;  // values made by get_or_compile
};

class DiskCache {
 public:
  using Value = std::shared_ptr<const std::string>;  // the artefact's bytes

  static constexpr int64_t kDefaultLimit = int64_t{2} << 30;

  // Entries live in `directory`, made on the first store; an empty path keeps them in memory only.
  // `limit` bytes of entries are kept, by the files' sizes; 0: without limit.
  explicit DiskCache(std::string directory, int64_t limit = default_limit());
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  // SINTER_CACHE, else XDG_CACHE_HOME/sinter, else HOME/.cache/sinter, else empty (memory only).
  static std::string default_directory();
  // SINTER_CACHE_LIMIT in bytes, or with K, M or G behind the number, else kDefaultLimit.
  static int64_t default_limit();
  // A cache in default_directory(); where there is none it says so on the first store.
  static std::unique_ptr<DiskCache> open_default();
  // The process's cache in default_directory(), as the environment stood at the first call.
  static DiskCache& global();

  // The process's cache in `directory`; global() for an empty path.
  static DiskCache& of(const std::string& directory);

  const std::string& directory() const { return directory_; }
  void set_limit(int64_t bytes);

  // The value stored under `key`, or null.
  Value load(const CacheKey& key);
  // The same, but not counted in stats().
  Value peek(const CacheKey& key);
  void store(const CacheKey& key, std::string value);

  // The value under `key`; on a miss, the result of `compile()` or `compile(fault)` (a
  // std::string), which is stored; `fault` is what is wrong with the entry that is there, or "".
  // Threads that ask for one key at once compile it once; an exception from `compile` passes
  // through and leaves nothing behind.
  template <typename Compile>
  Value get_or_compile(const CacheKey& key, Compile&& compile) {
    Ticket ticket = begin(key);
    if (Value found = current(ticket)) return found;
    if constexpr (std::is_invocable_v<Compile, const std::string&>)
      return finish(ticket, std::forward<Compile>(compile)(fault(ticket)));
    else
      return finish(ticket, std::forward<Compile>(compile)());
  }

  CacheStats stats() const;

 private:
  struct Slot;
  struct State;
  // Exclusive use of one key, until destroyed.
  struct Ticket {
    explicit Ticket(std::shared_ptr<Slot> held);
    Ticket(Ticket&&) = default;
    ~Ticket();
    std::shared_ptr<Slot> slot;
  };

  Ticket begin(const CacheKey& key);
  Value current(Ticket& ticket);
  static const std::string& fault(const Ticket& ticket);
  Value finish(Ticket& ticket, std::string value);
  // On failure `fault` says what is wrong with the entry; it stays as it is where there is none.
  std::optional<std::string> read_entry(const CacheKey& key, std::string& fault);
  void write_entry(const CacheKey& key, std::string_view value);
  std::string publish(const CacheKey& key, std::string_view value);
  void keep_within_limit(int64_t added);
  void warn_once(const std::string& message);

  std::string directory_;
  std::unique_ptr<State> state_;
};

}  // namespace sinter
