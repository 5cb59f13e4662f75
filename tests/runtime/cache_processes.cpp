// The disk cache among processes: many that start together (CC-02), folders that cannot be written
// (CC-04), and the limit on its size.

#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/temporary_folder.h>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;
using namespace sinter;

namespace {

using Folder = sinter::test::TemporaryFolder;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What `body` makes of the value of key number i, in a process of its own.
std::string value_of(int i) {
  return std::string(20'000 + static_cast<size_t>(i), static_cast<char>('a' + i));
}
CacheKey key_of(int i) {
  return cache_key({"kernel", std::to_string(i)});
}
bool all_right(DiskCache& cache, int keys) {
  bool right = true;
  for (int i = 0; i < keys; ++i)
    right = right && *cache.get_or_compile(key_of(i), [&] { return value_of(i); }) == value_of(i);
  return right;
}

// Runs `body` in a child with its standard error in `log`; the exit status, -1 for a signal.
pid_t start(const std::function<bool()>& body, const fs::path& log) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(file, 2);
  bool right = false;
  try {
    right = body();
  } catch (...) {
  }
  ::_exit(right ? 0 : 1);
}
int status_of(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int64_t bytes_in(const fs::path& folder) {
  int64_t size = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    size += static_cast<int64_t>(fs::file_size(entry));
  return size;
}

void set_used(const fs::path& folder, int i, time_t when) {
  const timespec times[2] = {{when, 0}, {when, 0}};
  REQUIRE(::utimensat(AT_FDCWD, (folder / key_of(i).hex()).c_str(), times, 0) == 0);
}
bool is_there(const fs::path& folder, int i) {
  return fs::exists(folder / key_of(i).hex());
}

}  // namespace

TEST_CASE("CC-02: eight processes share an empty cache, fifty times") {
  const Folder scratch;
  const fs::path folder = scratch.path / "cache", log = scratch.path / "log";
  for (bool removed : {false, true}) {
    for (int round = 0; round < 50; ++round) {
      fs::remove_all(folder);
      std::vector<pid_t> children;
      for (int child = 0; child < 8; ++child)
        children.push_back(start(
            [&] {
              DiskCache cache(folder);
              return all_right(cache, 3);
            },
            log));
      std::error_code ignored;
      for (int i = 0; removed && i < 20; ++i) fs::remove_all(folder, ignored);
      bool right = true;
      for (pid_t pid : children) right = status_of(pid) == 0 && right;
      REQUIRE(right);
      if (removed) continue;
      CHECK(std::distance(fs::directory_iterator(folder), {}) == 3);  // nothing half made
      CHECK(read_file(log) == "");
    }
  }
}

TEST_CASE("CC-04: a cache that cannot be written costs one warning that names the variable") {
  const Folder scratch;
  const fs::path folder = scratch.path / "cache", log = scratch.path / "log";
  fs::create_directories(folder);
  fs::permissions(scratch.path, fs::perms::all);
  auto run = [&](const std::function<bool()>& body) {
    CHECK(status_of(start(body, log)) == 0);
    std::string text = read_file(log);
    CHECK_MESSAGE(count(text, "\n") == 1, text);
    CHECK_MESSAGE(count(text, "set SINTER_CACHE to a folder that can be written") == 1, text);
  };
  auto compile_in_folder = [&] {
    DiskCache cache(folder);
    return all_right(cache, 3);
  };
  SUBCASE("no home") {
    run([] {
      ::unsetenv("SINTER_CACHE");
      ::unsetenv("XDG_CACHE_HOME");
      ::unsetenv("HOME");
      return all_right(*DiskCache::open_default(), 3);
    });
  }
  SUBCASE("read-only, or owned by another user") {
    if (::geteuid() == 0) {
      fs::permissions(folder, fs::perms::owner_all);  // of root
      run([&] { return ::setgid(65534) == 0 && ::setuid(65534) == 0 && compile_in_folder(); });
    } else {
      fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
      run(compile_in_folder);
    }
    fs::permissions(folder, fs::perms::owner_all);
    CHECK(fs::is_empty(folder));
  }
  SUBCASE("a full disk") {
    run([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit none{4096, 4096};
      return ::setrlimit(RLIMIT_FSIZE, &none) == 0 && compile_in_folder();
    });
    CHECK(fs::is_empty(folder));
  }
  SUBCASE("a quota of nothing") {
    // What open() says there is what it says for a folder in /proc.
    run([] {
      DiskCache cache("/proc/sinter");
      return all_right(cache, 3);
    });
  }
}

TEST_CASE("cache: beyond the limit the entries used longest ago go") {
  const Folder scratch;
  const fs::path folder = scratch.path / "cache";
  {
    DiskCache cache(folder, 0);
    CHECK(all_right(cache, 10));  // 10 * 20 KB: no limit
  }
  CHECK(bytes_in(folder) > 200'000);
  for (int i = 0; i < 10; ++i) set_used(folder, i, 1'000'000 + i);
  std::ofstream(folder / "notes.txt") << "not an entry";
  {
    // Reading one counts as use.
    DiskCache reader(folder, 0);
    REQUIRE(reader.load(key_of(0)) != nullptr);
    DiskCache cache(folder, 100'000);
    cache.store(key_of(10), value_of(10));
  }
  CHECK(bytes_in(folder) <= 100'000);
  CHECK(is_there(folder, 10));
  CHECK(is_there(folder, 0));
  CHECK(is_there(folder, 9));
  CHECK(!is_there(folder, 1));
  CHECK(fs::exists(folder / "notes.txt"));
}

TEST_CASE("cache: left-overs of killed processes go, but not those of running ones") {
  const Folder scratch;
  const fs::path folder = scratch.path / "cache";
  fs::create_directories(folder);
  const std::string old = folder / ".0.1.0.tmp", fresh = folder / ".0.2.0.tmp";
  std::ofstream(old) << "half";
  std::ofstream(fresh) << "half";
  const timespec times[2] = {{1'000'000, 0}, {1'000'000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, old.c_str(), times, 0) == 0);
  DiskCache cache(folder);
  cache.store(key_of(0), value_of(0));
  CHECK(!fs::exists(old));
  CHECK(fs::exists(fresh));
}

TEST_CASE("cache: processes that fill it beyond its limit still get what they ask for") {
  const Folder scratch;
  const fs::path folder = scratch.path / "cache", log = scratch.path / "log";
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child)
    children.push_back(start(
        [&] {
          bool right = true;
          for (int i = 0; i < 10; ++i) {
            DiskCache cache(folder, 60'000);
            right = right && all_right(cache, 8);
          }
          return right;
        },
        log));
  for (pid_t pid : children) CHECK(status_of(pid) == 0);
  CHECK(read_file(log) == "");
  DiskCache last(folder, 60'000);
  last.store(key_of(9), value_of(9));
  CHECK(bytes_in(folder) <= 60'000);
}

TEST_CASE("cache: the limit follows the environment") {
  const char* before = std::getenv("SINTER_CACHE_LIMIT");
  const std::string saved = before != nullptr ? before : "";
  auto limit = [](const char* text) {
    ::setenv("SINTER_CACHE_LIMIT", text, 1);
    return DiskCache::default_limit();
  };
  CHECK(limit("") == DiskCache::kDefaultLimit);
  CHECK(limit("0") == 0);
  CHECK(limit("123") == 123);
  CHECK(limit("5K") == 5 << 10);
  CHECK(limit("7M") == 7 << 20);
  CHECK(limit("3G") == int64_t{3} << 30);
  for (const char* bad : {"much", "-1", "1T", "99999999999G"})
    CHECK(limit(bad) == DiskCache::kDefaultLimit);
  if (before != nullptr)
    ::setenv("SINTER_CACHE_LIMIT", saved.c_str(), 1);
  else
    ::unsetenv("SINTER_CACHE_LIMIT");
}
