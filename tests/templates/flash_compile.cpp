// The portable attention templates through NVRTC, which needs no GPU: they compile for every target
// and hardly spill at the usual head sizes.

#include <doctest/doctest.h>
#include <sinter/codegen/flash_source.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/support.h>

#include <cstdlib>
#include <string>
#include <vector>

using namespace sinter;
using namespace sinter::cuda;

namespace {

size_t shared_memory(std::string_view arch) {
  return (arch == "sm_80" ? 163 : arch == "sm_90a" ? 227 : 99) * size_t{1024};
}

// Compiled once for each build of the tests, where they are given a cache.
std::vector<CompiledUnit> compile_cached(const std::vector<CompileRequest>& requests) {
  const char* directory = std::getenv("SINTER_CACHE");
  DiskCache cache(directory != nullptr ? directory : "");
  return compile_all(requests, &cache);
}

struct Requests {
  std::vector<FlashKernel> kernels;
  std::vector<CompileRequest> list;

  void add(FlashKernel kernel, std::string arch, const FlashInstance& instance) {
    if (!supports_arch(arch)) return;
    const FlashTiles tiles =
        flash_tiles(kernel, instance.head_dim, instance.value_dim,
                    static_cast<int>(size_of(instance.element)), shared_memory(arch));
    REQUIRE(tiles.exists());
    CompileRequest request;
    request.name = std::string(flash_entry(kernel)) + " " + std::to_string(instance.head_dim);
    request.source = flash_source(kernel, instance, tiles);
    request.arch = std::move(arch);
    kernels.push_back(kernel);
    list.push_back(std::move(request));
  }
};

}  // namespace

TEST_CASE("flash tiles: every head size has some within 99 KiB, and odd ones are declined") {
  for (FlashKernel kernel : {FlashKernel::Forward, FlashKernel::Backward}) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      for (int value_dim = 8; value_dim <= 256; value_dim += 8)
        for (size_t kib : {99, 163, 227}) {
          const FlashTiles tiles = flash_tiles(kernel, head_dim, value_dim, 2, kib * 1024);
          CHECK(tiles.exists());
          CHECK(tiles.shared_bytes <= kib * 1024);
          CHECK(tiles.threads() <= 256);
        }
    CHECK_FALSE(flash_tiles(kernel, 64, 64, 4, 227 * 1024).exists());
    CHECK_FALSE(flash_tiles(kernel, 60, 64, 2, 227 * 1024).exists());
    CHECK_FALSE(flash_tiles(kernel, 64, 264, 2, 227 * 1024).exists());
    CHECK_FALSE(flash_tiles(kernel, 256, 256, 2, 64 * 1024).exists());
  }
}

TEST_CASE("flash blocks: one for each tile of each head") {
  const FlashTiles tiles = flash_tiles(FlashKernel::Forward, 64, 64, 2, 163 * 1024);
  CHECK(flash_blocks(FlashKernel::Forward, tiles, 2, 6, 3, 130, 500) == 2 * 6 * 2);
  const FlashTiles wide = flash_tiles(FlashKernel::Backward, 256, 256, 2, 163 * 1024);
  CHECK(flash_blocks(FlashKernel::Backward, wide, 2, 6, 3, 130, 129) == 2 * 3 * 3);
  CHECK(flash_blocks(FlashKernel::BackwardFinish, wide, 2, 6, 3, 130, 129) == 2 * 6 * 3);
  CHECK(flash_blocks(FlashKernel::Backward, wide, 2, 6, 3, 130, 0) == 0);
}

TEST_CASE("nvrtc: the portable attention kernels hardly spill at head sizes 64 and 128") {
  if (std::string why; !nvrtc_available(&why)) SINTER_SKIP(why.c_str());
  Requests requests;
  FlashInstance instance;
  instance.causal = true;
  for (int size : {64, 128}) {
    instance.head_dim = instance.value_dim = size;
    for (FlashKernel kernel : {FlashKernel::Forward, FlashKernel::Backward})
      for (const char* arch : {"sm_80", "sm_89"}) requests.add(kernel, arch, instance);
  }
  requests.add(FlashKernel::Forward, "sm_90a", instance);
  requests.add(FlashKernel::Backward, "sm_90a", instance);
  requests.add(FlashKernel::Backward, "sm_120", instance);
  const std::vector<CompiledUnit> units = compile_cached(requests.list);
  for (size_t i = 0; i < units.size(); ++i) {
    CAPTURE(requests.list[i].name);
    CAPTURE(requests.list[i].arch);
    const KernelResources* kernel = units[i].find(flash_entry(requests.kernels[i]));
    REQUIRE(kernel != nullptr);
    // Kept through a step, and none of them in a product: smaller tiles without are slower.
    CHECK(kernel->spill_store_bytes <= 96);
  }
}

TEST_CASE("nvrtc: the attention kernels compile with every option, and plain for every type") {
  if (std::string why; !nvrtc_available(&why)) SINTER_SKIP(why.c_str());
  Requests requests;
  FlashInstance all{DType::F16, 24,          40,   true, true, true,
                    true,       DType::BF16, true, true, true, true};
  requests.add(FlashKernel::Forward, "sm_80", all);
  requests.add(FlashKernel::Backward, "sm_80", all);
  requests.add(FlashKernel::Delta, "sm_80", all);
  for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
    all.element = type;
    requests.add(FlashKernel::PlainForward, "sm_80", all);
  }
  const std::vector<CompiledUnit> units = compile_cached(requests.list);
  for (size_t i = 0; i < units.size(); ++i)
    CHECK(units[i].find(flash_entry(requests.kernels[i])) != nullptr);
}
