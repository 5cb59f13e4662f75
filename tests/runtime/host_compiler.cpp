#include <sinter/runtime/host_compiler.h>

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/runtime/have_compiler.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

using namespace sinter;
namespace fs = std::filesystem;

namespace {

// Sets (or, with null, unsets) a variable while it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

using Folder = sinter::test::TemporaryFolder;

using sinter::test::have_compiler;

template <typename F>
std::string failure(F&& f) {
  try {
    f();
  } catch (const DeviceError& e) {
    return e.what();
  }
  return "";
}

HostSource adder(const std::string& name, int amount) {
  return {name, fmt::format("extern \"C\" int {}(int x) {{ return x + {}; }}\n", name, amount), ""};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("host compiler: units are compiled, loaded and called; equal texts share a module") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  Folder temporary;
  Environment tmpdir("TMPDIR", temporary.path.c_str());
  HostCompiler compiler;
  std::vector<HostSource> sources;
  for (int i = 0; i < 5; ++i) sources.push_back(adder(fmt::format("add{}", i), i));
  sources.push_back(sources[1]);
  const auto modules = compiler.compile(sources);
  REQUIRE(modules.size() == 6);
  for (int i = 0; i < 5; ++i)
    CHECK(modules[static_cast<size_t>(i)]->function<int(int)>(fmt::format("add{}", i))(10) ==
          10 + i);
  CHECK(modules[5] == modules[1]);
  CHECK(contains(failure([&] { modules[0]->symbol("nothing"); }),
                 "host unit add0 has no symbol nothing"));
  CHECK(fs::is_empty(temporary.path));  // while the modules are still loaded
  CHECK(compiler.compile({}).empty());
}

TEST_CASE("host compiler: arithmetic is IEEE as written, math functions link") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  HostCompiler compiler;
  const HostSource source{
      "ieee",
      "extern \"C\" float expf(float);\n"
      "extern \"C\" float mul_add(float a, float b, float c) { return a * b + c; }\n"
      "extern \"C\" float exponential(float x) { return expf(x); }\n"
      "extern \"C\" bool is_nan(float x) { return x != x; }\n",
      ""};
  const auto module = compiler.compile({&source, 1})[0];
  // Fused, the product's low bits would survive: 2^-46 instead of 0.
  const float a = 1 + 0x1p-23f;
  CHECK(module->function<float(float, float, float)>("mul_add")(a, a, -(1 + 0x1p-22f)) == 0);
  CHECK(module->function<float(float)>("exponential")(0) == 1);
  CHECK(module->function<bool(float)>("is_nan")(__builtin_nanf("")));
}

TEST_CASE("host compiler: a unit that does not compile gives the log and the source's place") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  Folder temporary, dump;
  Environment tmpdir("TMPDIR", temporary.path.c_str());
  const HostSource bad{"broken", "extern \"C\" int f() { return undeclared_name; }\n", ""};
  {
    Environment none("SINTER_DUMP", nullptr);
    const std::string message = failure([&] { HostCompiler().compile({&bad, 1}); });
    CHECK(contains(message, "host unit broken does not compile"));
    CHECK(contains(message, "undeclared_name"));
    CHECK(contains(message, "SINTER_DUMP=DIR"));
  }
  HostCompilerOptions options;
  options.dump_folder = dump.path;
  const std::string place = dump.path / "kernels/broken.cpp";
  const std::vector<HostSource> sources = {adder("fine", 1), bad};
  CHECK(contains(failure([&] { HostCompiler(options).compile(sources); }), place));
  CHECK(fs::exists(place));
  CHECK(fs::file_size(place + ".log") > 0);
  HostSource written = bad;
  written.dump_path = dump.path / "03_broken.cpp";
  CHECK(contains(failure([&] {
                   HostCompiler(options).compile({&written, 1});
                 }),
                 written.dump_path));
  CHECK(fs::is_empty(temporary.path));
}

TEST_CASE("host compiler: the second time comes from the cache, and a useless entry is replaced") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  Folder folder;
  const HostSource source = adder("cached", 4);
  HostCompilerOptions options;
  DiskCache first(folder.path);
  options.cache = &first;
  HostCompiler(options).compile({&source, 1});
  CHECK(first.stats().compiles == 1);

  DiskCache second(folder.path);
  options.cache = &second;
  const auto module = HostCompiler(options).compile({&source, 1})[0];
  CHECK(module->function<int(int)>("cached")(1) == 5);
  CHECK(second.stats().compiles == 0);
  CHECK(second.stats().hits == 2);  // what compiler it is, and the unit

  // Other flags, another key.
  HostCompilerOptions flagged = options;
  flagged.flags = {"-DANYTHING"};
  HostCompiler(flagged).compile({&source, 1});
  CHECK(second.stats().compiles == 1);

  // Bytes that are whole but cannot be loaded, as from another machine.
  DiskCache third("");
  options.cache = &third;
  HostCompiler compiler(options);
  std::string settings;
  for (const auto& word : compiler.command()) settings += word + '\n';
  for (const auto& word : compiler.flags()) settings += word + '\n';
  const CacheKey key = cache_key({"host", compiler.identity(), settings, source.text});
  third.store(key, "not a shared object");
  CHECK(compiler.compile({&source, 1})[0]->function<int(int)>("cached")(2) == 6);
  CHECK(third.load(key)->size() > 100);
}

TEST_CASE("host compiler: no compiler, a missing one, one that does not work") {
  Folder empty;
  Environment path("PATH", empty.path.c_str()), cxx("CXX", nullptr), set("SINTER_CXX", nullptr);
  const std::string message = failure([] { HostCompiler(); });
  CHECK(contains(message, "no C++ compiler found"));
  CHECK(contains(message, "set SINTER_CXX"));
  {
    Environment wrong("SINTER_CXX", "/nonexistent/compiler");
    CHECK(contains(failure([] { HostCompiler(); }),
                   "'/nonexistent/compiler' is not a program; set SINTER_CXX"));
  }
  Environment broken("SINTER_CXX", "/bin/false");
  CHECK(contains(failure([] { HostCompiler(); }), "/bin/false does not work"));
}

TEST_CASE("host compiler: a command of several words, and CXX before c++") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  const std::string real = HostCompiler().command().back();
  Environment set("SINTER_CXX", ("/usr/bin/env " + real).c_str());
  CHECK(HostCompiler().command() == std::vector<std::string>{"/usr/bin/env", real});
  const HostSource source = adder("words", 2);
  CHECK(HostCompiler().compile({&source, 1})[0]->function<int(int)>("words")(1) == 3);
  Environment unset("SINTER_CXX", nullptr);
  Environment cxx("CXX", real.c_str());
  CHECK(HostCompiler().command() == std::vector<std::string>{real});
}

TEST_CASE("host compiler: called from several threads") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  HostCompiler compiler;
  std::vector<std::thread> threads;
  std::vector<int> results(3, 0);
  for (size_t t = 0; t < results.size(); ++t)
    threads.emplace_back([&, t] {
      const HostSource source = adder("f", static_cast<int>(t));
      results[t] = compiler.compile({&source, 1})[0]->function<int(int)>("f")(100);
    });
  for (auto& thread : threads) thread.join();
  CHECK(results == std::vector<int>{100, 101, 102});
}
