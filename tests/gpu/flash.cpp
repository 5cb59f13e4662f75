// The portable and the plain attention kernels on the device, against f64 and the composed path.

#include <doctest/doctest.h>
#include <sinter/codegen/flash_source.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/tests/emulator/flash_case.h>
#include <sinter/tests/gpu/support.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

using namespace sinter;
using namespace sinter::test;

#ifdef SINTER_HAVE_CUDA

namespace {

constexpr FlashKernel kPortable[] = {FlashKernel::Forward, FlashKernel::Delta,
                                     FlashKernel::Backward, FlashKernel::BackwardFinish};
constexpr FlashKernel kPlain[] = {FlashKernel::PlainForward, FlashKernel::Delta,
                                  FlashKernel::PlainBackwardKv, FlashKernel::PlainBackwardQ};

FlashInstance instance_of(const FlashSetup& s) {
  auto has = [&](unsigned option) { return (s.options & option) != 0; };
  FlashInstance i;
  i.element = s.element;
  i.head_dim = s.head_dim;
  i.value_dim = s.value_dim;
  i.causal = has(kOptCausal);
  i.window = has(kOptWindow);
  i.softcap = has(kOptSoftcap);
  i.mask = has(kOptMask);
  if (has(kOptBias)) i.bias = DType::F32;
  i.kv_length = has(kOptKvLength);
  i.documents = has(kOptDocuments);
  i.slopes = has(kOptSlopes);
  i.dropout = has(kOptDropout);
  return i;
}

struct Wanted {
  FlashSetup setup;
  bool plain = false;
  int64_t shared_memory = 0;  // 0: the device's
};

// The four kernels of a set-up, loaded.
class Kernels {
 public:
  // Of several set-ups: all are compiled at once, or come from the cache.
  static std::vector<Kernels> load_all(const std::vector<Wanted>& wanted) {
    cuda::Device& device = cuda::Device::get();
    std::vector<Kernels> all;
    std::vector<cuda::CompileRequest> requests;
    for (const Wanted& w : wanted) {
      const FlashSetup& s = w.setup;
      const int64_t shared =
          w.shared_memory != 0 ? w.shared_memory : device.info().shared_per_block;
      all.push_back(Kernels(s));
      for (FlashKernel kernel : w.plain ? kPlain : kPortable) {
        const FlashTiles tiles =
            flash_tiles(kernel, s.head_dim, s.value_dim, static_cast<int>(size_of(s.element)),
                        static_cast<size_t>(shared));
        REQUIRE(tiles.exists());
        all.back().parts_.push_back({kernel, tiles, {}});
        cuda::CompileRequest request;
        request.name = flash_entry(kernel);
        request.source = flash_source(kernel, instance_of(s), tiles, s.deterministic);
        request.arch = device.info().arch();
        request.allow_ptx = true;
        requests.push_back(std::move(request));
      }
    }
    const auto units = cuda::compile_all(requests, &DiskCache::global());
    size_t next = 0;
    for (Kernels& kernels : all)
      for (Part& part : kernels.parts_) {
        part.module.emplace(device, units[next].image, requests[next].name, cuda::nvrtc_version());
        ++next;
      }
    return all;
  }

  // `again`: more runs, which are to give the same bits.
  void check(const FlashShape& shape, const FlashValues& values = {}, int again = 0) {
    check_flash(setup_, shape, values, [&](const device::FlashParams& params, const auto& memory) {
      const std::vector<std::string> before = bytes_of(memory);
      run(shape, params, memory);
      const std::vector<std::string> after = bytes_of(memory);
      for (int i = 0; i < again; ++i) {
        for (size_t m = 0; m < memory.size(); ++m)
          if (!before[m].empty())
            std::memcpy(const_cast<void*>(memory[m].begin), before[m].data(), before[m].size());
        run(shape, params, memory);
        CHECK(bytes_of(memory) == after);
      }
    });
  }

 private:
  struct Part {
    FlashKernel kernel;
    FlashTiles tiles;
    std::optional<cuda::Module> module;
  };
  static std::vector<std::string> bytes_of(const std::vector<emulator::GlobalRange>& memory) {
    std::vector<std::string> bytes;
    for (const emulator::GlobalRange& range : memory)
      bytes.emplace_back(static_cast<const char*>(range.begin), range.bytes);
    return bytes;
  }
  explicit Kernels(const FlashSetup& setup) : setup_(setup), stream_(cuda::Device::get()) {}

  void run(const FlashShape& s, device::FlashParams params,
           const std::vector<emulator::GlobalRange>& memory) {
    std::vector<cuda::DeviceBuffer> buffers;
    for (const emulator::GlobalRange& range : memory) {
      buffers.emplace_back(cuda::Device::get(), std::max<size_t>(range.bytes, 16));
      cuda::copy_to_device(stream_, buffers.back().address(), range.begin, range.bytes);
    }
    auto move = [&](auto& pointer) {
      const auto* at = reinterpret_cast<const char*>(pointer);
      for (size_t i = 0; i < memory.size() && at != nullptr; ++i) {
        const auto* begin = static_cast<const char*>(memory[i].begin);
        if (at < begin || at >= begin + memory[i].bytes) continue;
        const uint64_t address = buffers[i].address() + static_cast<uint64_t>(at - begin);
        std::memcpy(&pointer, &address, sizeof address);
        return;
      }
    };
    move(params.q);
    move(params.k);
    move(params.v);
    move(params.y);
    move(params.lse);
    move(params.dy);
    move(params.dlse);
    move(params.delta);
    move(params.sums);
    move(params.turns);
    move(params.dq);
    move(params.dk);
    move(params.dv);
    move(params.mask);
    move(params.bias);
    move(params.kv_length);
    move(params.cu_lengths);
    move(params.slopes);
    move(params.seed);
    move(params.step);
    move(params.offset);
    for (const Part& part : parts_) {
      cuda::LaunchShape shape;
      shape.blocks =
          flash_blocks(part.kernel, part.tiles, s.batch, s.heads, s.kv_heads, s.queries, s.keys);
      shape.threads = part.tiles.threads();
      shape.shared_bytes = static_cast<int64_t>(part.tiles.shared_bytes);
      const cuda::Kernel kernel = part.module->kernel(std::string(flash_entry(part.kernel)));
      kernel.allow_dynamic_shared(shape.shared_bytes);
      cuda::KernelArguments arguments;
      arguments.add(params);
      if (shape.blocks != 0) kernel.launch(stream_, shape, arguments);
    }
    for (size_t i = 0; i < memory.size(); ++i)
      cuda::copy_to_host(stream_, const_cast<void*>(memory[i].begin), buffers[i].address(),
                         memory[i].bytes);
    stream_.synchronize();
  }

  FlashSetup setup_;
  cuda::Stream stream_;
  std::vector<Part> parts_;
};

}  // namespace

TEST_CASE("flash on the device: lengths around tiles, batches, shared keys") {
  SINTER_NEEDS_GPU();
  std::vector<Kernels> all = Kernels::load_all({{{DType::BF16, 64, 64, 0}},
                                                {{DType::BF16, 64, 64, kOptCausal}},
                                                {{DType::BF16, 128, 128, 0}},
                                                {{DType::BF16, 128, 128, kOptCausal}}});
  for (size_t i = 0; i < all.size(); i += 2) {
    Kernels &full = all[i], &causal = all[i + 1];
    for (int s : {1, 63, 64, 65, 127, 128, 129, 130, 257, 1000}) {
      full.check({1, 1, 1, s, s});
      causal.check({1, 3, 1, s, s});
    }
    full.check({2, 3, 3, 33, 500});
    causal.check({2, 6, 2, 130, 65});
    causal.check({3, 4, 2, 65, 300}, {.dlse = true});
  }
}

TEST_CASE("flash on the device: the same bits each time, and sums as they come") {
  SINTER_NEEDS_GPU();
  for (bool deterministic : {true, false}) {
    std::vector<Wanted> wanted;
    for (unsigned options : {0u, unsigned{kOptCausal}, kOptCausal | kOptDocuments})
      wanted.push_back({{DType::BF16, 64, 64, options, deterministic}});
    wanted.push_back({{DType::BF16, 128, 128, kOptCausal, deterministic}});
    // Two sections of the grid, of several key tiles.
    for (Kernels& kernels : Kernels::load_all(wanted))
      kernels.check({2, 2, 2, 400, 400}, {}, deterministic ? 5 : 0);
  }
}

TEST_CASE("flash on the device: head sizes, also with little shared memory") {
  SINTER_NEEDS_GPU();
  std::vector<Wanted> wanted;
  for (int64_t shared : {int64_t{0}, int64_t{99} * 1024})
    for (auto [head, value] : {std::pair{8, 16},
                               {16, 16},
                               {40, 24},
                               {72, 72},
                               {96, 128},
                               {128, 64},
                               {192, 128},
                               {256, 256}})
      wanted.push_back({{DType::F16, head, value, kOptCausal}, false, shared});
  for (Kernels& kernels : Kernels::load_all(wanted)) kernels.check({2, 4, 2, 130, 200});
}

TEST_CASE("flash on the device: options") {
  SINTER_NEEDS_GPU();
  std::vector<Wanted> wanted;
  for (bool plain : {false, true})
    for (unsigned options : {kOptWindow | kOptSoftcap, kOptCausal | kOptWindow | kOptSlopes,
                             unsigned{kOptMask}, unsigned{kOptBias}, kOptCausal | kOptKvLength,
                             kOptCausal | kOptDocuments, unsigned{kOptDropout}, 511u})
      wanted.push_back({{DType::BF16, 64, 64, options}, plain});
  for (Kernels& kernels : Kernels::load_all(wanted)) {
    kernels.check({2, 4, 2, 129, 264}, {.window = 70, .softcap = 1.5, .p = 0.2});
    kernels.check({2, 3, 3, 130, 67}, {.window = 10, .softcap = 0.8, .p = 0.5, .offset = 3});
  }
}

TEST_CASE("flash on the device: plain in f32 and f64") {
  SINTER_NEEDS_GPU();
  std::vector<Wanted> wanted;
  for (DType type : {DType::F32, DType::F64})
    for (FlashSetup setup : {FlashSetup{type, 40, 72, 511}, FlashSetup{type, 64, 64, kOptCausal}})
      wanted.push_back({setup, true});
  std::vector<Kernels> all = Kernels::load_all(wanted);
  for (size_t i = 0; i < all.size(); i += 2) {
    all[i].check({2, 4, 2, 65, 130}, {.window = 60, .softcap = 1.5, .p = 0.2, .dlse = true});
    all[i + 1].check({1, 3, 1, 257, 257});
  }
}

#endif
