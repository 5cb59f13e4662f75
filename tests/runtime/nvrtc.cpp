#include <sinter/runtime/cuda/nvrtc.h>

#include <doctest/doctest.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace sinter;
using namespace sinter::cuda;

namespace {

constexpr const char* kTargets[] = {"sm_80", "sm_89", "sm_90a", "sm_120"};

constexpr const char* kSource = R"(
extern "C" __global__ void __launch_bounds__(256) reverse(float* x) {
  __shared__ float tile[256];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[255 - threadIdx.x];
}
extern "C" __global__ void fused(float* x, float a, float b) {
  x[threadIdx.x] = x[threadIdx.x] * a + b;
}
)";

CompileRequest request(std::string source, std::string arch = "sm_80") {
  CompileRequest made;
  made.name = "trial";
  made.source = std::move(source);
  made.arch = std::move(arch);
  return made;
}

template <typename F>
std::string device_error(F&& f) {
  try {
    f();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

#define SINTER_NEEDS_NVRTC() \
  if (std::string why; !nvrtc_available(&why)) SINTER_SKIP(why.c_str())

TEST_CASE("nvrtc: what ptxas reports is read") {
  const char* log =
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
      "ptxas info    : Function properties for first\n"
      "    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 24 bytes cumulative stack size, 1024 "
      "bytes smem, 380 bytes cmem[0]\n"
      "ptxas info    : Function properties for helper\n"
      "    7 bytes stack frame, 7 bytes spill stores, 7 bytes spill loads\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
      "ptxas info    : Function properties for second\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 8 registers, 360 bytes cmem[0]\n";
  const std::vector<KernelResources> kernels = parse_resources(log);
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0].name == "first");
  CHECK(kernels[0].registers == 168);
  CHECK(kernels[0].shared_bytes == 1024);
  CHECK(kernels[0].stack_bytes == 24);
  CHECK(kernels[0].spill_store_bytes == 16);
  CHECK(kernels[0].spill_load_bytes == 8);
  CHECK(kernels[1].name == "second");
  CHECK(kernels[1].registers == 8);
  CHECK(kernels[1].shared_bytes == 0);
  CHECK(parse_resources("").empty());
  CHECK(fatal_warning(log) == "");
}

TEST_CASE("nvrtc: warnings that mean a ruined kernel are found") {
  for (const char* code : {"C7504", "C7508", "C7510", "C7511", "C7520"}) {
    const std::string line = std::string("ptxas info    : (") + code + ") Potential trouble in 'k'";
    CHECK(fatal_warning("ptxas info    : 0 bytes gmem\n" + line + "\nmore") == line);
  }
  CHECK(fatal_warning("ptxas info    : (C7519) fence injected") == "");
}

TEST_CASE("nvrtc: every target compiles to a cubin with its resources") {
  SINTER_NEEDS_NVRTC();
  bool skipped = false;
  for (const char* arch : kTargets) {
    if (!supports_arch(arch)) {
      MESSAGE("skipped: the installed NVRTC lacks " << arch);
      skipped = true;
      continue;
    }
    CAPTURE(arch);
    const CompiledUnit unit = compile(request(kSource, arch));
    CHECK(unit.image.substr(0, 4) ==
          "\x7f"
          "ELF");
    CHECK_FALSE(unit.is_ptx);
    CHECK_FALSE(unit.from_cache);
    REQUIRE(unit.kernels.size() == 2);
    const KernelResources* reverse = unit.find("reverse");
    REQUIRE(reverse != nullptr);
    CHECK(reverse->registers >= 4);
    CHECK(reverse->registers <= 32);
    CHECK(reverse->spill_store_bytes == 0);
    // From sm_90 on, ptxas counts the kilobyte that the system reserves in each block.
    CHECK((reverse->shared_bytes == 1024 || reverse->shared_bytes == 2048));
    REQUIRE(unit.find("fused") != nullptr);
    CHECK(unit.find("fused")->registers > 0);
    CHECK(unit.find("absent") == nullptr);
  }
  if (skipped) SINTER_SKIP("a target that the installed NVRTC lacks");
}

TEST_CASE("nvrtc: spills are reported") {
  SINTER_NEEDS_NVRTC();
  const CompiledUnit unit = compile(request(R"(
extern "C" __global__ void spilling(const float* __restrict__ x, float* y, int n) {
  float v[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) v[i] = x[i * n];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 200; ++i) y[(199 - i) * n + threadIdx.x] = v[i] * v[(i * 7) % 200];
}
)"));
  CompileRequest limited = request("");
  REQUIRE(unit.kernels.size() == 1);
  limited.source = R"(
extern "C" __global__ void __launch_bounds__(1024) spilling(const float* x, float* y, int n) {
  float v[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) v[i] = x[i * n];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 200; ++i) y[(199 - i) * n + threadIdx.x] = v[i] * v[(i * 7) % 200];
}
)";
  const CompiledUnit spilled = compile(limited);
  REQUIRE(spilled.kernels.size() == 1);
  CHECK(spilled.kernels[0].registers <= 64);
  CHECK(spilled.kernels[0].spill_store_bytes > 0);
  CHECK(spilled.kernels[0].spill_load_bytes > 0);
  CHECK(unit.kernels[0].registers > spilled.kernels[0].registers);
}

TEST_CASE("nvrtc: contraction is off unless asked for") {
  SINTER_NEEDS_NVRTC();
  CompileRequest with = request(kSource);
  with.fmad = true;
  const auto has = [](const CompileRequest& made, const char* option) {
    const std::vector<std::string> options = compile_options(made);
    return std::find(options.begin(), options.end(), option) != options.end();
  };
  CHECK(has(request(kSource), "--fmad=false"));
  CHECK(has(with, "--fmad=true"));
  CHECK(compile(with).image != compile(request(kSource)).image);
}

TEST_CASE("nvrtc: its own cache, which would keep the resources from the log, is off") {
  SINTER_NEEDS_NVRTC();
  const std::vector<std::string> options = compile_options(request(kSource));
  const bool off = std::find(options.begin(), options.end(), "--no-cache") != options.end();
  CHECK(off == (nvrtc_version() >= 12090));
  // The same unit twice in one process, beside sinter's cache.
  for (int i = 0; i < 2; ++i) CHECK(compile(request(kSource)).kernels.size() == 2);
}

TEST_CASE("nvrtc: an error names the kernel, the line, the log and the dump") {
  SINTER_NEEDS_NVRTC();
  CompileRequest bad = request("extern \"C\" __global__ void k() {\n  undeclared = 1;\n}\n");
  bad.name = "add_rms_norm_1f3a";
  bad.dump_path = "dump/kernels/00_add_rms_norm_1f3a.cu";
  const std::string message = device_error([&] { compile(bad); });
  CHECK(contains(message, "nvrtcCompileProgram failed for kernel 'add_rms_norm_1f3a' on sm_80"));
  CHECK(contains(message, "NVRTC_ERROR_COMPILATION"));
  CHECK(contains(message, "add_rms_norm_1f3a.cu(2): error: identifier \"undeclared\""));
  CHECK(contains(message, "the source is in dump/kernels/00_add_rms_norm_1f3a.cu"));
}

TEST_CASE("nvrtc: toolkit headers are not looked for") {
  SINTER_NEEDS_NVRTC();
  CHECK(contains(device_error([] { compile(request("#include <cuda_bf16.h>\n")); }),
                 "could not open source file"));
}

TEST_CASE("nvrtc: a register limit that starves the other warps is an error") {
  SINTER_NEEDS_NVRTC();
  if (!supports_arch("sm_90a")) SINTER_SKIP("the installed NVRTC lacks sm_90a");
  // setmaxnreg without launch bounds is ignored by ptxas, with the warning C7508 alone.
  const std::string message = device_error([] {
    compile(request(R"(
extern "C" __global__ void starved(float* x) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  x[threadIdx.x] = 1.0f;
}
)",
                    "sm_90a"));
  });
  CHECK(contains(message, "C7508"));
}

TEST_CASE("nvrtc: an architecture that is not known") {
  SINTER_NEEDS_NVRTC();
  CHECK(supports_arch("sm_90a"));
  CHECK_FALSE(supports_arch("sm_81"));
  CHECK_FALSE(supports_arch("host"));
  CHECK_THROWS_AS(compile(request(kSource, "sm_81")), UnsupportedArch);
  CHECK_THROWS_AS(compile(request(kSource, "sm_999")), UnsupportedArch);
  const std::string message = device_error([] { compile(request(kSource, "gfx90a")); });
  CHECK(contains(message, "'gfx90a' is no CUDA architecture"));

  CompileRequest future = request(kSource, "sm_999");
  future.allow_ptx = true;
  const CompiledUnit unit = compile(future);
  CHECK(unit.is_ptx);
  CHECK(contains(unit.image, ".entry reverse"));
  CHECK(contains(unit.image, ".target sm_" + std::to_string(supported_archs().back())));

  CompileRequest ancient = request(kSource, "sm_20");  // older than anything known
  ancient.allow_ptx = true;
  CHECK_THROWS_AS(compile(ancient), UnsupportedArch);
}

TEST_CASE("nvrtc: the cache is keyed on source, architecture and options") {
  SINTER_NEEDS_NVRTC();
  DiskCache cache("");
  const CompiledUnit first = compile(request(kSource), &cache);
  const CompiledUnit again = compile(request(kSource), &cache);
  CHECK_FALSE(first.from_cache);
  CHECK(again.from_cache);
  CHECK(again.image == first.image);
  CHECK(again.log == first.log);
  REQUIRE(again.find("reverse") != nullptr);
  CHECK(again.find("reverse")->registers == first.find("reverse")->registers);

  CHECK_FALSE(compile(request(std::string(kSource) + "// more\n"), &cache).from_cache);
  CHECK_FALSE(compile(request(kSource, "sm_90a"), &cache).from_cache);
  CompileRequest other = request(kSource);
  other.fmad = true;
  CHECK_FALSE(compile(other, &cache).from_cache);
  CHECK(cache.stats().compiles == 4);
}

TEST_CASE("nvrtc: many requests compile in parallel, equal ones once") {
  SINTER_NEEDS_NVRTC();
  DiskCache cache("");
  std::vector<CompileRequest> requests;
  for (int i = 0; i < 6; ++i) {
    const std::string number = std::to_string(i % 3);
    requests.push_back(
        request("extern \"C\" __global__ void k" + number + "(int* x) { *x = " + number + "; }"));
  }
  const std::vector<CompiledUnit> units = compile_all(requests, &cache);
  REQUIRE(units.size() == 6);
  for (int i = 0; i < 6; ++i) {
    CHECK(units[static_cast<std::size_t>(i)].find("k" + std::to_string(i % 3)) != nullptr);
  }
  CHECK(cache.stats().compiles == 3);

  requests[1].source = "first error";
  requests[4].source = "second error";
  requests[1].name = "wrong_one";
  requests[4].name = "wrong_four";
  CHECK(contains(device_error([&] { compile_all(requests, nullptr); }), "'wrong_one'"));
}

TEST_CASE("nvrtc: the prelude compiles for every target, without registers to spare") {
  SINTER_NEEDS_NVRTC();
  const std::string prelude = read_file(test::data_path("../codegen/templates/prelude.cuh"));
  REQUIRE(!prelude.empty());
  for (const char* arch : kTargets) {
    if (!supports_arch(arch)) continue;
    CAPTURE(arch);
    const CompiledUnit unit = compile(request(prelude + R"(
static_assert(sizeof(int8_t) == 1 && sizeof(uint16_t) == 2 && sizeof(int32_t) == 4, "widths");
static_assert(sizeof(int64_t) == 8 && sizeof(uint64_t) == 8 && sizeof(bf16) == 2, "widths");
extern "C" __global__ void convert(const float* x, bf16* b, f16* h, float* y, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  b[i] = f32_to_bf16(x[i]);
  h[i] = f32_to_f16(x[i]);
  y[i] = bf16_to_f32(b[i]) + f16_to_f32(h[i]);
}
)",
                                              arch));
    REQUIRE(unit.find("convert") != nullptr);
    CHECK(unit.find("convert")->registers <= 32);
  }
}

TEST_CASE("cuda: a machine without a driver lists no device and says what to do") {
  if (device_count() > 0) SINTER_SKIP("there is a GPU");
  const std::string reason = unavailable_reason();
  CHECK(reason != "");
  CHECK(device_error([] { Device::get(0); }) == reason);
  CHECK(device_error([] { device_info(0); }) == reason);
  if (contains(reason, "not found")) {
    CHECK(contains(reason, "driver library not found"));
    CHECK(contains(reason, "install the NVIDIA driver"));
    CHECK(contains(reason, "--device=cpu"));
  }
}

TEST_CASE("cuda: a driver older than the toolkit gets both versions and the remedy") {
  CHECK(version_text(12040) == "12.4");
  CHECK(version_text(13000) == "13.0");
  const std::string advice = version_advice(12040, 13000);
  CHECK(contains(advice, "12.4"));
  CHECK(contains(advice, "13.0"));
  CHECK(contains(advice, "update the driver"));
  CHECK(contains(advice, "SINTER_NVRTC"));
  CHECK(version_advice(13000, 13000) == "");
  CHECK(version_advice(13010, 12080) == "");
  CHECK(version_advice(13000, 0) == "");
}

TEST_CASE("CC-08: PTX that is newer than the driver gets both versions and the remedy") {
  const std::string advice = ptx_advice(13000, "//\n.version 99.3\n.target sm_90\n");
  CHECK(contains(advice, "PTX is of version 99.3,"));
  CHECK(contains(advice, "of CUDA 13.0"));
  CHECK(contains(advice, "update the driver"));
  CHECK(contains(advice, "SINTER_NVRTC"));
  CHECK(ptx_advice(13000,
                   "\x7f"
                   "ELF .version 99.3") == "");
  CHECK(ptx_advice(13000, "garbage") == "");
}

TEST_CASE("cuda: architectures follow the compute capability") {
  DeviceInfo info;
  info.major = 9;
  info.minor = 0;
  CHECK(info.arch() == "sm_90a");
  info.major = 8;
  info.minor = 9;
  CHECK(info.arch() == "sm_89");
  info.major = 12;
  info.minor = 0;
  CHECK(info.arch() == "sm_120");
}
