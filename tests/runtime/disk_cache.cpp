#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/temporary_folder.h>

#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;
using namespace sinter;

namespace {

using Folder = sinter::test::TemporaryFolder;

// Collects what the logger "sinter" receives.
struct Warnings {
  Warnings() {
    spdlog::drop("sinter");
    auto logger = std::make_shared<spdlog::logger>(
        "sinter", std::make_shared<spdlog::sinks::ostream_sink_mt>(stream));
    logger->set_pattern("%l: %v");
    spdlog::register_logger(logger);
  }
  ~Warnings() { spdlog::drop("sinter"); }
  std::string text() const { return stream.str(); }
  long count() const {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  }
  std::ostringstream stream;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Environment {
  explicit Environment(const char* variable) : name(variable) {
    if (const char* value = std::getenv(variable)) {
      was_set = true;
      before = value;
    }
  }
  ~Environment() {
    if (was_set) {
      ::setenv(name, before.c_str(), 1);
    } else {
      ::unsetenv(name);
    }
  }
  const char* name;
  bool was_set = false;
  std::string before;
};

}  // namespace

TEST_CASE("cache: keys depend on every part and on where parts end") {
  const CacheKey key = cache_key({"source", "sm_90a", "13.0"});
  CHECK(key == cache_key({"source", "sm_90a", "13.0"}));
  CHECK(key != cache_key({"source", "sm_90", "a13.0"}));
  CHECK(key != cache_key({"source", "sm_90a", "13.0", ""}));
  CHECK(key != cache_key({"source", "sm_90a", "13.1"}));
  CHECK(key.hex().size() == 32);
  CHECK(CacheKey{0x0123456789abcdefu, 1}.hex() == "0123456789abcdef0000000000000001");
}

TEST_CASE("cache: a value is compiled once and found by the next process") {
  const Folder folder;
  const Warnings warnings;
  const CacheKey key = cache_key({"a"});
  const std::string value("cubin\0bytes", 11);
  {
    DiskCache cache(folder.path / "made" / "on demand");
    CHECK(cache.load(key) == nullptr);
    CHECK(*cache.get_or_compile(key, [&] { return std::string(value); }) == value);
    CHECK(*cache.get_or_compile(key, [&] { return std::string("other"); }) == value);
    CHECK(cache.stats().hits == 1);
    CHECK(cache.stats().misses == 2);
    CHECK(cache.stats().compiles == 1);
  }
  DiskCache second(folder.path / "made" / "on demand");
  CHECK(*second.get_or_compile(key, [&] { return std::string("other"); }) == value);
  CHECK(second.stats().hits == 1);
  CHECK(second.stats().compiles == 0);
  // Nothing temporary stays behind.
  CHECK(std::distance(fs::directory_iterator(folder.path / "made" / "on demand"), {}) == 1);
  CHECK(warnings.text() == "");
}

TEST_CASE("cache: an empty value is a value") {
  const Folder folder;
  const CacheKey key = cache_key({"empty"});
  DiskCache(folder.path).store(key, "");
  DiskCache cache(folder.path);
  const DiskCache::Value value = cache.load(key);
  REQUIRE(value != nullptr);
  CHECK(value->empty());
}

TEST_CASE("cache: without a folder it lives in memory") {
  const Warnings warnings;
  DiskCache cache("");
  const CacheKey key = cache_key({"a"});
  cache.get_or_compile(key, [] { return std::string("value"); });
  CHECK(*cache.load(key) == "value");
  CHECK(DiskCache("").load(key) == nullptr);
  CHECK(warnings.text() == "");
}

TEST_CASE("cache: a bad entry costs one warning and a compile, and is replaced") {
  const Folder folder;
  const CacheKey key = cache_key({"kernel"});
  const std::string value = "a cubin of some length";
  DiskCache(folder.path).store(key, value);
  const fs::path entry = folder.path / key.hex();
  const std::string good = read_file(entry);
  REQUIRE(good.size() == 48 + value.size());

  std::string flipped = good;
  flipped[60] = static_cast<char>(flipped[60] ^ 1);
  std::string foreign_format = good;
  foreign_format[0] = 'x';
  std::string huge = good;  // a size that must not be allocated
  huge[24 + 6] = 'x';
  DiskCache(folder.path).store(cache_key({"another"}), value);
  const std::string foreign_key = read_file(folder.path / cache_key({"another"}).hex());

  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } cases[] = {{"empty", "", "truncated"},
               {"half a header", good.substr(0, 20), "truncated"},
               {"no payload", good.substr(0, 48), "truncated"},
               {"short payload", good.substr(0, good.size() - 1), "truncated"},
               {"trailing bytes", good + "x", "damaged"},
               {"one bit", flipped, "damaged"},
               {"another key's entry", foreign_key, "damaged"},
               {"impossible size", huge, "truncated"},
               {"another format", foreign_format, "of another format"}};
  for (const auto& trial : cases) {
    CAPTURE(trial.name);
    write_file(entry, trial.bytes);
    const Warnings warnings;
    DiskCache cache(folder.path);
    CHECK(*cache.get_or_compile(key, [&] { return std::string(value); }) == value);
    CHECK(cache.stats().compiles == 1);
    CHECK(cache.stats().misses == 1);
    CHECK(warnings.count() == 1);
    CHECK(warnings.text().find("warning: cache entry " + entry.string()) == 0);
    CHECK(warnings.text().find(trial.message) != std::string::npos);
    CHECK(read_file(entry) == good);
  }
}

TEST_CASE("cache: many bad entries are one warning") {
  const Folder folder;
  const Warnings warnings;
  DiskCache cache(folder.path);
  for (const char* name : {"a", "b", "c"}) {
    write_file(folder.path / cache_key({name}).hex(), "no entry");
    CHECK(*cache.get_or_compile(cache_key({name}), [&] { return std::string(name); }) == name);
  }
  CHECK(cache.stats().compiles == 3);
  CHECK(warnings.count() == 1);
}

TEST_CASE("cache: a folder that cannot be written costs one warning") {
  const Folder folder;
  SUBCASE("a file stands in its place") {
    write_file(folder.path / "file", "text");
    const Warnings warnings;
    DiskCache cache(folder.path / "file" / "cache");
    for (const char* name : {"a", "b"}) {
      CHECK(*cache.get_or_compile(cache_key({name}), [&] { return std::string(name); }) == name);
    }
    CHECK(*cache.load(cache_key({"a"})) == "a");  // memory still serves
    CHECK(warnings.count() == 1);
    CHECK(warnings.text().find("cannot be written") != std::string::npos);
    CHECK(read_file(folder.path / "file") == "text");
  }
  SUBCASE("it is read-only") {
    const CacheKey old = cache_key({"old"});
    DiskCache(folder.path).store(old, "stored");
    fs::permissions(folder.path, fs::perms::owner_read | fs::perms::owner_exec);
    const Warnings warnings;
    DiskCache cache(folder.path);
    CHECK(*cache.get_or_compile(cache_key({"new"}), [] { return std::string("made"); }) == "made");
    CHECK(*cache.load(old) == "stored");
    if (::geteuid() != 0) CHECK(warnings.count() == 1);  // root writes all the same
  }
  SUBCASE("the entry's name is taken by a folder") {
    const CacheKey key = cache_key({"a"});
    fs::create_directories(folder.path / key.hex() / "full");
    const Warnings warnings;
    DiskCache cache(folder.path);
    CHECK(*cache.get_or_compile(key, [] { return std::string("made"); }) == "made");
    CHECK(warnings.count() == 1);
    CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);  // no temporary left
  }
}

TEST_CASE("cache: an exception from the compiler passes through and leaves nothing") {
  const Folder folder;
  DiskCache cache(folder.path);
  const CacheKey key = cache_key({"a"});
  const auto failing = [&]() -> std::string { throw std::runtime_error("no compiler"); };
  CHECK_THROWS_WITH(cache.get_or_compile(key, failing), "no compiler");
  CHECK(fs::is_empty(folder.path));
  CHECK(*cache.get_or_compile(key, [] { return std::string("value"); }) == "value");
}

TEST_CASE("cache: threads that want one key compile it once") {
  const Folder folder;
  DiskCache cache(folder.path);
  std::atomic<int> compiles{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = std::to_string(i);
        const auto value = cache.get_or_compile(cache_key({name}), [&] {
          ++compiles;
          return name + " compiled";
        });
        if (*value != name + " compiled") ++compiles;  // shows below
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(compiles == 20);
  CHECK(cache.stats().compiles == 20);
  CHECK(cache.stats().hits + cache.stats().misses == 160);
}

TEST_CASE("cache: processes that write one entry at once never show a partial one") {
  const Folder folder;
  const Warnings warnings;
  const CacheKey key = cache_key({"contended"});
  const std::string value(200'000, 'v');
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      bool right = true;
      for (int i = 0; i < 25; ++i) {
        // A new cache each time, so that memory does not answer.
        DiskCache cache(folder.path);
        if (const auto found = cache.load(key)) right = right && *found == value;
        cache.store(key, value);
      }
      ::_exit(right ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  DiskCache cache(folder.path);
  REQUIRE(cache.load(key) != nullptr);
  CHECK(*cache.load(key) == value);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("cache: the folder follows the environment") {
  const Environment sinter_cache("SINTER_CACHE");
  const Environment xdg("XDG_CACHE_HOME");
  const Environment home("HOME");
  ::setenv("SINTER_CACHE", "/chosen", 1);
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  ::setenv("HOME", "/home/user", 1);
  CHECK(DiskCache::default_directory() == "/chosen");
  ::unsetenv("SINTER_CACHE");
  CHECK(DiskCache::default_directory() == "/xdg/sinter");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(DiskCache::default_directory() == "/home/user/.cache/sinter");
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(DiskCache::default_directory() == "/home/user/.cache/sinter");
  ::unsetenv("HOME");
  CHECK(DiskCache::default_directory() == "");
}
