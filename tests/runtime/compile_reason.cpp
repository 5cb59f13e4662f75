// CC-01: why something was compiled although there is a cache.

#include <sinter/runtime/compile_reason.h>

#include <sinter/ir/text.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/host_compiler.h>
#include <sinter/tests/runtime/have_compiler.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <filesystem>
#include <string>
#include <vector>

using namespace sinter;
namespace fs = std::filesystem;

namespace {

using sinter::test::have_compiler;

// Cuts off the end of every artefact; the notes beside them are smaller.
void damage(const std::string& folder) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.file_size() > 1000) {
      fs::resize_file(entry.path(), entry.file_size() - 1);
      ++count;
    }
  REQUIRE(count > 0);
}

// Why one unit is compiled, by a process that has `folder` as its cache; "" where it is not.
std::string host_reason(const std::string& folder, const std::string& text,
                        std::vector<std::string> flags = {}) {
  DiskCache cache(folder);
  HostCompilerOptions options;
  options.cache = &cache;
  options.flags = std::move(flags);
  std::vector<HostSource> sources{{"unit", text, ""}};
  std::vector<std::string> reasons;
  HostCompiler(options).compile(sources, &reasons);
  REQUIRE(reasons.size() == 1);
  return reasons[0];
}

}  // namespace

TEST_CASE("CC-01: the host compiler says what has changed since a source was compiled") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  test::TemporaryFolder folder;
  const std::string one = "extern \"C\" int one() { return 1; }\n";
  CHECK(host_reason(folder.path, one) == "new source");
  CHECK(host_reason(folder.path, one) == "");
  CHECK(host_reason(folder.path, "extern \"C\" int two() { return 2; }\n") == "new source");
  std::string other = host_reason(folder.path, one, {"-DX"});
  CHECK_MESSAGE(other.find("options ") == 0, other);
  CHECK_MESSAGE(other.find("-DX") < other.find(" instead of "), other);
  CHECK(host_reason(folder.path, one, {"-DX"}) == "");
  damage(folder.path);
  CHECK(host_reason(folder.path, one, {"-DX"}) == "its cache entry is truncated");
}

TEST_CASE("CC-01: NVRTC units say which architecture they were compiled for before") {
  if (!cuda::nvrtc_available()) SINTER_SKIP("no NVRTC");
  test::TemporaryFolder folder;
  cuda::CompileRequest request;
  request.name = "unit";
  request.source = "extern \"C\" __global__ void k(float* x) { x[threadIdx.x] += 1; }\n";
  auto reason = [&](const char* arch) {
    DiskCache cache(folder.path);
    request.arch = arch;
    cuda::CompiledUnit unit = cuda::compile(request, &cache);
    CHECK(unit.from_cache == unit.reason.empty());
    return unit.reason;
  };
  CHECK(reason("sm_80") == "new source");
  CHECK(reason("sm_80") == "");
  CHECK(reason("sm_90a") == "architecture sm_90a instead of sm_80");
  CHECK(reason("sm_80") == "");
  CHECK(reason("sm_90a") == "");
  damage(folder.path);
  CHECK(reason("sm_80") == "its cache entry is truncated");
  CHECK(cuda::compile(request).reason == kCacheNotUsed);
}

TEST_CASE("CC-01: an executable lists its units, their kernels and the reasons") {
  if (!have_compiler()) SINTER_SKIP("no C++ compiler");
  test::TemporaryFolder folder;
  auto module =
      parse_module("graph @g(%x: f32[8]) -> f32[8] { %y = exp %x : f32[8] return %y }", "g.sir");
  CompileOptions options;
  options.cache_dir = folder.path;
  auto first = compile(*module, options);
  REQUIRE(first->stats().reasons.size() == 1);
  CHECK(first->stats().reasons[0].reason == "new source");
  REQUIRE(first->stats().reasons[0].kernels.size() == 1);
  CHECK(first->stats().reasons[0].kernels[0].find("exp_") == 0);
  CHECK(first->stats().compiled == 1);
  auto second = compile(*module, options);
  CHECK(second->stats().reasons.empty());
  CHECK(second->stats().cached == 1);
  options.use_cache = false;
  auto third = compile(*module, options);
  REQUIRE(third->stats().reasons.size() == 1);
  CHECK(third->stats().reasons[0].reason == kCacheNotUsed);
}
