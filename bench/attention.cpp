// Flash attention on the device: checked against f64 on samples of rows, then timed.
//
//   bench_attention [--check] [--only D:S] [--sweep] [--no-portable] [--no-hopper] [--shared BYTES]
//                   [--causal] [--repeat N]
//
// Shapes: causal, 16,384 tokens, hidden 2048, head sizes 64 and 128, sequences of 1k, 4k and 16k;
// the same without a mask; and 32 heads on 8 key heads at head size 128. q, k and v are read from
// one packed projection, their gradients go into its gradient. Each launch meets a cold L2. Prints
// a table, and a line of JSON for each figure; exit 1 where a check fails, 3 without a Hopper GPU.

#include <sinter/ir/diagnostic.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace {

struct Options {
  std::vector<std::string> only;
  bool sweep = false, portable = true, hopper = true, check = false, causal = false;
  int repeat = 20;
  size_t shared = 0;  // of a block of the portable kernels
};

}  // namespace

#ifdef SINTER_HAVE_CUDA

#include <sinter/codegen/flash_hopper_source.h>
#include <sinter/codegen/templates.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/cuda/tensor_map.h>
#include <sinter/runtime/disk_cache.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <tuple>

namespace {

#include <sinter/codegen/templates/flash_params.cuh>

using namespace sinter;
using cuda::DeviceBuffer;
using cuda::KernelArguments;
using cuda::LaunchShape;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  int batch, heads, kv_heads, length, dim;
  bool causal;
  double forward_flops() const {
    return 4.0 * batch * heads * static_cast<double>(length) * length * dim / (causal ? 2 : 1);
  }
};

struct Kernels {
  std::unique_ptr<cuda::Module> module;
};
cuda::CompileRequest request_of(const cuda::Device& device, std::string source) {
  cuda::CompileRequest request;
  request.name = "attention";
  request.source = std::move(source);
  request.arch = device.info().arch();
  return request;
}
Kernels compile(cuda::Device& device, std::string source) {
  const cuda::CompileRequest request = request_of(device, std::move(source));
  const auto unit = cuda::compile(request, &DiskCache::global());
  Kernels kernels;
  for (const auto& kernel : unit.kernels)
    if (kernel.spill_store_bytes != 0)
      fmt::print("note: {} spills {} bytes\n", kernel.name, kernel.spill_store_bytes);
  kernels.module =
      std::make_unique<cuda::Module>(device, unit.image, request.name, cuda::nvrtc_version());
  return kernels;
}

double f64_of(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Buffers of one shape, and what the kernels are told of them.
class Problem {
 public:
  Problem(cuda::Device& device, const cuda::Stream& stream, const Shape& shape)
      : shape_(shape), stream_(&stream) {
    const int64_t width = static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * shape.dim;
    const int64_t tokens = static_cast<int64_t>(shape.batch) * shape.length;
    const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * 2; };
    packed_ = DeviceBuffer(device, bytes(tokens * width));
    dpacked_ = DeviceBuffer(device, bytes(tokens * width));
    y_ = DeviceBuffer(device, bytes(tokens * shape.heads * shape.dim));
    dy_ = DeviceBuffer(device, y_.size());
    lse_ = DeviceBuffer(device, static_cast<size_t>(tokens * shape.heads) * 4);
    delta_ = DeviceBuffer(device, lse_.size());
    fill(device, packed_, 1);
    fill(device, dy_, 2);
    params.q = pointer(packed_, 0);
    params.k = pointer(packed_, static_cast<int64_t>(shape.heads) * shape.dim);
    params.v = pointer(packed_, static_cast<int64_t>(shape.heads + shape.kv_heads) * shape.dim);
    params.dq = pointer(dpacked_, 0);
    params.dk = pointer(dpacked_, static_cast<int64_t>(shape.heads) * shape.dim);
    params.dv = pointer(dpacked_, static_cast<int64_t>(shape.heads + shape.kv_heads) * shape.dim);
    params.y = pointer(y_, 0);
    params.dy = pointer(dy_, 0);
    params.lse = pointer(lse_, 0);
    params.delta = pointer(delta_, 0);
    const FlashStrides in_packed{width * shape.length, shape.dim, width};
    const int64_t row = static_cast<int64_t>(shape.heads) * shape.dim;
    const FlashStrides dense{row * shape.length, shape.dim, row};
    params.q_strides = params.k_strides = params.v_strides = in_packed;
    params.dq_strides = params.dk_strides = params.dv_strides = in_packed;
    params.y_strides = params.dy_strides = dense;
    params.batch = shape.batch;
    params.heads = shape.heads;
    params.kv_heads = shape.kv_heads;
    params.queries = params.keys = shape.length;
    params.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
    instance.head_dim = instance.value_dim = shape.dim;
    instance.causal = shape.causal;
  }

  void poison() const {
    cuda::fill_bytes(*stream_, y_.address(), 0xff, y_.size());
    cuda::fill_bytes(*stream_, lse_.address(), 0xff, lse_.size());
    poison_gradients();
  }
  void poison_gradients() const {
    cuda::fill_bytes(*stream_, dpacked_.address(), 0xff, dpacked_.size());
  }

  cuda::TensorMap map(const void* base, const FlashStrides& strides, int heads,
                      const FlashHopperBox& box) const {
    cuda::TensorMapShape m;
    m.dims = {shape_.dim, shape_.length, heads, shape_.batch};
    m.strides = {2 * strides.row, 2 * strides.head, 2 * strides.batch};
    m.box = {box.columns, box.rows, 1, 1};
    m.swizzle = box.swizzle;
    return cuda::encode_tensor_map(reinterpret_cast<cuda::DevicePtr>(base), m);
  }

  double forward_error() const;
  double backward_error() const;
  std::vector<uint16_t> gradients() const { return download(dpacked_); }

  const Shape& shape() const { return shape_; }
  FlashParams params{};
  FlashInstance instance;

 private:
  static void* pointer(const DeviceBuffer& buffer, int64_t element) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<void*>(buffer.address() + static_cast<uint64_t>(2 * element));
  }
  // Normal values by the prelude's Philox.
  void fill(cuda::Device& device, const DeviceBuffer& buffer, uint32_t seed) const {
    std::string source;
    for (const char* name : {"prelude.cuh", "prelude_common.h"}) source += template_text(name);
    source += R"(
extern "C" __global__ void fill(bf16* to, int64_t count, uint32_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) to[i] = f32_to_bf16(sn_random_normal(sn_fresh{}, seed, 0u, 0u, 0, 0u, i));
}
)";
    const Kernels kernels = compile(device, source);
    const auto count = static_cast<int64_t>(buffer.size() / 2);
    KernelArguments arguments;
    arguments.add(buffer.address()).add(count).add(seed);
    kernels.module->kernel("fill").launch(*stream_, {(count + 255) / 256, 256, 0}, arguments);
    stream_->synchronize();
  }
  template <typename T = uint16_t>
  std::vector<T> download(const DeviceBuffer& buffer) const {
    std::vector<T> host(buffer.size() / sizeof(T));
    cuda::copy_to_host(*stream_, host.data(), buffer.address(), buffer.size());
    stream_->synchronize();
    return host;
  }

  Shape shape_;
  const cuda::Stream* stream_;
  DeviceBuffer packed_, dpacked_, y_, dy_, lse_, delta_;
};

// Rows of host copies.
struct Rows {
  const std::vector<uint16_t>& data;
  int64_t start;
  FlashStrides strides;
  int dim;
  double at(int b, int h, int s, int d) const {
    return f64_of(data[static_cast<size_t>(start + b * strides.batch + h * strides.head +
                                           s * strides.row + d)]);
  }
  double product(int b, int h, int s, const Rows& other, int other_h, int other_s) const {
    double sum = 0;
    for (int d = 0; d < dim; ++d) sum += at(b, h, s, d) * other.at(b, other_h, other_s, d);
    return sum;
  }
};
// A row as a sum of terms, and the sum of what they are at most: where terms cancel, as they do in
// dq and dk of a single key, the sum alone is no measure of an error.
struct Sum {
  explicit Sum(int dim) : value(static_cast<size_t>(dim)), size(value.size()) {}
  void add(int d, double term, double at_most) {
    value[static_cast<size_t>(d)] += term;
    size[static_cast<size_t>(d)] += std::fabs(at_most);
  }
  std::vector<double> value, size;
};
// The error of a row, of its norm or of 2^-8 of its terms' norm, whichever is more.
double relative(const std::vector<double>& got, const Sum& want) {
  double difference = 0, norm = 0, terms = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want.value[i]) * (got[i] - want.value[i]);
    norm += want.value[i] * want.value[i];
    terms += want.size[i] * want.size[i];
  }
  if (!std::isfinite(difference)) return kInfinity;
  return std::sqrt(difference) / std::max(std::sqrt(norm), std::ldexp(std::sqrt(terms), -8));
}

// The worst relative error of sampled rows of y.
double Problem::forward_error() const {
  const auto packed = download(packed_), y_data = download(y_);
  const auto lse = download<float>(lse_);
  const Shape& s = shape_;
  const int group = s.heads / s.kv_heads;
  const Rows q{packed, 0, params.q_strides, s.dim},
      k{packed, static_cast<int64_t>(s.heads) * s.dim, params.q_strides, s.dim},
      v{packed, static_cast<int64_t>(s.heads + s.kv_heads) * s.dim, params.q_strides, s.dim},
      y{y_data, 0, params.y_strides, s.dim};
  std::mt19937 random(7);
  double worst = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const int b = static_cast<int>(random() % static_cast<unsigned>(s.batch));
    const int h = static_cast<int>(random() % static_cast<unsigned>(s.heads));
    const int i = trial == 0   ? 0
                  : trial == 1 ? s.length - 1
                               : static_cast<int>(random() % static_cast<unsigned>(s.length));
    const int keys = s.causal ? i + 1 : s.length;
    std::vector<double> e(static_cast<size_t>(keys)), got;
    Sum want(s.dim);
    double top = -kInfinity, total = 0;
    for (int j = 0; j < keys; ++j) {
      e[static_cast<size_t>(j)] = params.scale * q.product(b, h, i, k, h / group, j);
      top = std::max(top, e[static_cast<size_t>(j)]);
    }
    for (double& x : e) total += x = std::exp(x - top);
    for (int d = 0; d < s.dim; ++d) {
      for (int j = 0; j < keys; ++j) {
        const double term = e[static_cast<size_t>(j)] / total * v.at(b, h / group, j, d);
        want.add(d, term, term);
      }
      got.push_back(y.at(b, h, i, d));
    }
    worst = std::max(worst, relative(got, want));
    const double off =
        lse[static_cast<size_t>((static_cast<int64_t>(b) * s.heads + h) * s.length + i)] -
        (top + std::log(total));
    if (!std::isfinite(off)) return kInfinity;
    worst = std::max(worst, std::fabs(off));
  }
  return worst;
}

// Of sampled rows of dq, dk and dv, from the device's y and lse.
double Problem::backward_error() const {
  const auto packed = download(packed_), y_data = download(y_), dy_data = download(dy_),
             gradients = download(dpacked_);
  const auto lse = download<float>(lse_);
  const Shape& s = shape_;
  const int group = s.heads / s.kv_heads;
  const int64_t k_start = static_cast<int64_t>(s.heads) * s.dim;
  const int64_t v_start = static_cast<int64_t>(s.heads + s.kv_heads) * s.dim;
  const Rows q{packed, 0, params.q_strides, s.dim}, k{packed, k_start, params.q_strides, s.dim},
      v{packed, v_start, params.q_strides, s.dim}, y{y_data, 0, params.y_strides, s.dim},
      dy{dy_data, 0, params.y_strides, s.dim}, dq{gradients, 0, params.q_strides, s.dim},
      dk{gradients, k_start, params.q_strides, s.dim},
      dv{gradients, v_start, params.q_strides, s.dim};
  const auto probability = [&](int b, int h, int i, int j) {
    return std::exp(
        params.scale * q.product(b, h, i, k, h / group, j) -
        static_cast<double>(
            lse[static_cast<size_t>((static_cast<int64_t>(b) * s.heads + h) * s.length + i)]));
  };
  std::mt19937 random(8);
  double worst = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const int b = static_cast<int>(random() % static_cast<unsigned>(s.batch));
    const int h = static_cast<int>(random() % static_cast<unsigned>(s.heads)), kv = h / group;
    const int at = trial == 0   ? std::min(1, s.length - 1)
                   : trial == 1 ? s.length - 1
                                : static_cast<int>(random() % static_cast<unsigned>(s.length));
    Sum want_q(s.dim), want_k(s.dim), want_v(s.dim);
    std::vector<double> got_q, got_k, got_v;
    const double delta = dy.product(b, h, at, y, h, at);
    for (int j = 0; j < (s.causal ? at + 1 : s.length); ++j) {
      const double p = params.scale * probability(b, h, at, j);
      const double dp = dy.product(b, h, at, v, kv, j);
      for (int d = 0; d < s.dim; ++d)
        want_q.add(d, p * (dp - delta) * k.at(b, kv, j, d),
                   p * (std::fabs(dp) + std::fabs(delta)) * k.at(b, kv, j, d));
    }
    for (int head = kv * group; head < (kv + 1) * group; ++head)
      for (int i = s.causal ? at : 0; i < s.length; ++i) {
        const double p = probability(b, head, i, at);
        const double dp = dy.product(b, head, i, v, kv, at);
        const double of_row = dy.product(b, head, i, y, head, i);
        for (int d = 0; d < s.dim; ++d) {
          const double scaled = params.scale * p * q.at(b, head, i, d);
          want_k.add(d, scaled * (dp - of_row), scaled * (std::fabs(dp) + std::fabs(of_row)));
          want_v.add(d, p * dy.at(b, head, i, d), p * dy.at(b, head, i, d));
        }
      }
    for (int d = 0; d < s.dim; ++d) {
      got_q.push_back(dq.at(b, h, at, d));
      got_k.push_back(dk.at(b, kv, at, d));
      got_v.push_back(dv.at(b, kv, at, d));
    }
    worst = std::max(
        {worst, relative(got_q, want_q), relative(got_k, want_k), relative(got_v, want_v)});
  }
  return worst;
}

// Something to launch, again and again.
using Launch = std::function<void()>;

class Bench {
 public:
  // repeat 0: nothing is timed.
  Bench(cuda::Device& device, int repeat)
      : device_(&device), stream_(device), flush_(device, size_t{256} << 20), repeat_(repeat) {}

  const cuda::Stream& stream() const { return stream_; }
  cuda::Device& device() const { return *device_; }
  int blocks() const { return device_->info().multiprocessors; }

  // Median milliseconds.
  double time(const Launch& launch) const {
    std::vector<double> times;
    if (repeat_ == 0) return 0;
    for (int i = 0; i < repeat_ + 3; ++i) {
      cuda::fill_bytes(stream_, flush_.address(), 0, flush_.size());
      const cuda::Event begin(*device_), end(*device_);
      stream_.record(begin);
      launch();
      stream_.record(end);
      end.synchronize();
      if (i >= 3) times.push_back(end.milliseconds_since(begin));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void report(const Shape& s, const std::string& what, double flops, double ms, double error,
              double limit) {
    const double tflops = ms > 0 ? flops / ms / 1e9 : 0;
    const bool right = error < limit;
    failed_ = failed_ || !right;
    fmt::print(
        "{:>4} {:>6} {:>3}/{:<3} {:6} | {:40} | {:8.3f} ms {:7.1f} TFLOP/s | error {:.1e}{}\n",
        s.dim, s.length, s.heads, s.kv_heads, s.causal ? "causal" : "full", what, ms, tflops, error,
        right ? "" : "  WRONG");
    fmt::print(
        "{{\"attention\": \"{}\", \"head_dim\": {}, \"length\": {}, \"heads\": {}, "
        "\"kv_heads\": {}, \"causal\": {}, \"ms\": {:.4f}, \"tflops\": {:.1f}, "
        "\"error\": {:.3e}, \"right\": {}}}\n",
        what, s.dim, s.length, s.heads, s.kv_heads, s.causal, ms, tflops, error, right);
    std::fflush(stdout);
  }
  bool failed() const { return failed_; }
  bool timed() const { return repeat_ > 0; }

 private:
  cuda::Device* device_;
  cuda::Stream stream_;
  DeviceBuffer flush_;
  int repeat_;
  bool failed_ = false;
};

constexpr double kLimit = 2e-2;  // of one row, in bf16

std::string describe(const FlashHopperTiles& t) {
  return fmt::format("{}x{} stages {} q {}{}{}{}", t.tile_m, t.tile_n, t.stages, t.q_stages,
                     t.ping_pong ? " in turn" : "", t.join ? " joined" : "",
                     t.reuse_q ? " reuse q" : "");
}

std::string describe(const FlashTiles& t) {
  return fmt::format("{}x{} stages {} warps {}x{}{}{}", t.tile_m, t.tile_n, t.stages,
                     t.warps / t.warps_m, t.warps_m, t.hold_v ? " v held" : "",
                     t.turns > 1 ? fmt::format(" turns {}", t.turns) : "");
}

void hopper_forward(Bench& bench, const Problem& problem, const FlashHopperTiles& tiles) {
  const auto unit = FlashHopperUnit::Forward;
  const Kernels kernels =
      compile(bench.device(), flash_hopper_source(unit, problem.instance, tiles));
  const cuda::Kernel kernel = kernels.module->kernel("flash_hopper_forward");
  kernel.allow_dynamic_shared(static_cast<int64_t>(tiles.shared_bytes));
  const FlashParams& p = problem.params;
  const auto box = [&](FlashHopperOperand operand) {
    return flash_hopper_box(unit, operand, problem.instance, tiles);
  };
  KernelArguments arguments;
  for (const cuda::TensorMap& map :
       {problem.map(p.q, p.q_strides, p.heads, box(FlashHopperOperand::Q)),
        problem.map(p.k, p.k_strides, p.kv_heads, box(FlashHopperOperand::K)),
        problem.map(p.v, p.v_strides, p.kv_heads, box(FlashHopperOperand::V)),
        problem.map(p.y, p.y_strides, p.heads, box(FlashHopperOperand::Y))})
    arguments.add_bytes(&map, sizeof map);
  arguments.add_bytes(&p, sizeof p);
  const int64_t items =
      static_cast<int64_t>(p.batch) * p.heads * ((p.queries + tiles.tile_m - 1) / tiles.tile_m);
  const LaunchShape shape{std::min<int64_t>(items, bench.blocks()), tiles.threads(),
                          static_cast<int64_t>(tiles.shared_bytes)};
  problem.poison();
  const Launch launch = [&] { kernel.launch(bench.stream(), shape, arguments); };
  launch();
  const double error = problem.forward_error();
  bench.report(problem.shape(), "hopper forward " + describe(tiles),
               problem.shape().forward_flops(), bench.time(launch), error, kLimit);
}

void hopper_backward(Bench& bench, const Problem& problem, bool deterministic,
                     std::optional<int> parts_wanted, bool lag = true) {
  const auto unit = FlashHopperUnit::Backward;
  const FlashInstance& instance = problem.instance;
  FlashHopperTiles tiles = flash_hopper_backward_tiles(instance.head_dim, instance.value_dim, 2);
  tiles.lag = lag;
  const Kernels kernels =
      compile(bench.device(), flash_hopper_source(unit, instance, tiles, deterministic));
  const cuda::Kernel prepare = kernels.module->kernel("flash_hopper_prepare"),
                     main = kernels.module->kernel("flash_hopper_backward"),
                     finish = kernels.module->kernel("flash_hopper_finish");
  main.allow_dynamic_shared(static_cast<int64_t>(tiles.shared_bytes));
  const FlashParams& p = problem.params;
  const auto space = flash_hopper_space(instance, tiles, p.batch, p.heads, p.queries);
  const DeviceBuffer rows(bench.device(), space.rows), sums(bench.device(), space.sums),
      turns(bench.device(), space.turns);
  for (const DeviceBuffer* buffer : {&rows, &sums, &turns})
    cuda::fill_bytes(bench.stream(), buffer->address(), 0xff, buffer->size());
  const int key_tiles = (p.keys + tiles.tile_n - 1) / tiles.tile_n;
  const int parts = parts_wanted.value_or(flash_hopper_backward_parts(
      p.batch * p.kv_heads, key_tiles, bench.blocks(), instance.causal));
  const auto box = [&](FlashHopperOperand operand) {
    return flash_hopper_box(unit, operand, instance, tiles);
  };
  KernelArguments first, second, third;
  first.add_bytes(&p, sizeof p);
  first.add(rows.address()).add(sums.address()).add(turns.address());
  for (const cuda::TensorMap& map :
       {problem.map(p.q, p.q_strides, p.heads, box(FlashHopperOperand::Q)),
        problem.map(p.k, p.k_strides, p.kv_heads, box(FlashHopperOperand::K)),
        problem.map(p.v, p.v_strides, p.kv_heads, box(FlashHopperOperand::V)),
        problem.map(p.dy, p.dy_strides, p.heads, box(FlashHopperOperand::Dy)),
        problem.map(p.dk, p.dk_strides, p.kv_heads, box(FlashHopperOperand::Dk)),
        problem.map(p.dv, p.dv_strides, p.kv_heads, box(FlashHopperOperand::Dv))})
    second.add_bytes(&map, sizeof map);
  second.add_bytes(&p, sizeof p);
  second.add(rows.address()).add(sums.address()).add(turns.address()).add(parts);
  third.add_bytes(&p, sizeof p);
  third.add(sums.address());
  const int64_t query_tiles =
      static_cast<int64_t>(p.batch) * p.heads * ((p.queries + tiles.tile_m - 1) / tiles.tile_m);
  const LaunchShape main_shape{
      flash_hopper_backward_blocks(p.batch * p.kv_heads, parts, bench.blocks()), tiles.threads(),
      static_cast<int64_t>(tiles.shared_bytes)};
  const Launch launch = [&] {
    prepare.launch(bench.stream(), {query_tiles, 256, 0}, first);
    main.launch(bench.stream(), main_shape, second);
    finish.launch(bench.stream(), {query_tiles, 256, 0}, third);
  };
  problem.poison_gradients();
  launch();
  double error = problem.backward_error();
  if (deterministic) {
    const auto before = problem.gradients();
    for (int i = 0; i < 3; ++i) {
      launch();
      if (problem.gradients() != before) error = kInfinity;
    }
  }
  const std::string what = fmt::format("hopper backward {} parts {}",
                                       deterministic ? "in order" : "as they come", parts);
  bench.report(problem.shape(), what, 2.5 * problem.shape().forward_flops(), bench.time(launch),
               error, kLimit);
  const Launch alone = [&] { main.launch(bench.stream(), main_shape, second); };
  if (bench.timed() && (!deterministic || parts == 1))  // turns would have to be set back
    fmt::print("     of it the main kernel {:.3f} ms\n", bench.time(alone));
}

// The tiles of a portable kernel's table, then others to compare with.
std::vector<FlashTiles> portable_variants(FlashKernel kernel, int dim, size_t shared, bool sweep) {
  std::vector<FlashTiles> list{flash_tiles(kernel, dim, dim, 2, shared)};
  if (!sweep) return list;
  std::vector<FlashTiles> others;
  const bool narrow = dim <= 64;
  if (kernel == FlashKernel::Forward && narrow) others = {{128, 64, 2, 4}, {64, 64, 3, 4}};
  if (kernel == FlashKernel::Forward && !narrow)
    others = {{128, 64, 2, 4}, {128, 32, 2, 4}, {64, 32, 2, 4}};
  if (kernel == FlashKernel::Backward && narrow)
    others = {{128, 128, 2, 8, 2, false, 2},
              {64, 128, 2, 8, 2, false, 2},
              {64, 128, 2, 8, 2, true, 2},
              {64, 64, 2, 4, 2}};
  if (kernel == FlashKernel::Backward && !narrow)
    others = {{64, 128, 2, 8, 2},
              {64, 128, 1, 8, 1, true, 2},
              {32, 128, 2, 8, 1, true, 2},
              {32, 64, 2, 4, 2}};
  for (FlashTiles& t : others) {
    t.shared_bytes = flash_shared_bytes(kernel, t, dim, dim);
    if (t.shared_bytes > shared) continue;
    if (!list.front().exists() || describe(t) != describe(list.front())) list.push_back(t);
  }
  return list;
}

// The portable kernels under a limit on shared memory.
class Portable {
 public:
  Portable(Bench& bench, const Problem& problem, size_t shared)
      : bench_(&bench), problem_(&problem), shared_(shared) {}

  void forward(bool sweep) {
    for (const FlashTiles& t : variants(FlashKernel::Forward, sweep)) {
      const Launch launch = launcher(FlashKernel::Forward, t, problem_->params, true);
      problem_->poison();
      launch();
      const double error = problem_->forward_error();
      bench_->report(problem_->shape(), "portable forward " + describe(t),
                     problem_->shape().forward_flops(), bench_->time(launch), error, kLimit);
    }
  }

  void backward(bool deterministic, bool sweep) {
    for (const FlashTiles& t : variants(FlashKernel::Backward, sweep)) {
      FlashParams p = problem_->params;
      const FlashSpace space =
          flash_space(t, problem_->instance.head_dim, static_cast<size_t>(p.batch),
                      static_cast<size_t>(p.heads), static_cast<size_t>(p.queries));
      const DeviceBuffer sums(bench_->device(), space.sums), turns(bench_->device(), space.turns);
      cuda::fill_bytes(bench_->stream(), sums.address(), 0xff, sums.size());
      // NOLINTBEGIN(performance-no-int-to-ptr)
      p.sums = reinterpret_cast<void*>(sums.address());
      p.turns = reinterpret_cast<unsigned*>(turns.address());
      // NOLINTEND(performance-no-int-to-ptr)
      p.section = flash_section(t, int64_t{p.batch} * p.kv_heads, p.keys, bench_->blocks());
      const Launch delta = launcher(FlashKernel::Delta,
                                    flash_tiles(FlashKernel::Delta, 8, 8, 2, shared_), p, true),
                   main = launcher(FlashKernel::Backward, t, p, deterministic),
                   finish = launcher(FlashKernel::BackwardFinish, t, p, deterministic);
      const DeviceBuffer& cleared = deterministic ? turns : sums;
      const Launch launch = [&] {
        cuda::fill_bytes(bench_->stream(), cleared.address(), 0, cleared.size());
        delta();
        main();
        finish();
      };
      problem_->poison_gradients();
      launch();
      double error = problem_->backward_error();
      if (deterministic) {
        const auto before = problem_->gradients();
        for (int i = 0; i < 3; ++i) {
          launch();
          if (problem_->gradients() != before) error = kInfinity;
        }
      }
      bench_->report(problem_->shape(),
                     fmt::format("portable backward {} {}",
                                 deterministic ? "in order" : "as they come", describe(t)),
                     2.5 * problem_->shape().forward_flops(), bench_->time(launch), error, kLimit);
    }
  }

 private:
  std::vector<FlashTiles> variants(FlashKernel kernel, bool sweep) const {
    return portable_variants(kernel, problem_->instance.head_dim, shared_, sweep);
  }
  Launch launcher(FlashKernel kernel, FlashTiles tiles, const FlashParams& p, bool deterministic) {
    const FlashInstance& instance = problem_->instance;
    if (kernel == FlashKernel::BackwardFinish)
      tiles.shared_bytes = flash_shared_bytes(kernel, tiles, instance.head_dim, instance.value_dim);
    kept_.push_back(
        compile(bench_->device(), flash_source(kernel, instance, tiles, deterministic)));
    const cuda::Kernel entry = kept_.back().module->kernel(std::string(flash_entry(kernel)));
    if (tiles.shared_bytes > 0)
      entry.allow_dynamic_shared(static_cast<int64_t>(tiles.shared_bytes));
    const LaunchShape shape{
        flash_blocks(kernel, tiles, p.batch, p.heads, p.kv_heads, p.queries, p.keys),
        tiles.threads(), static_cast<int64_t>(tiles.shared_bytes)};
    auto arguments = std::make_shared<KernelArguments>();
    arguments->add_bytes(&p, sizeof p);
    return [entry, shape, arguments, bench = bench_] {
      entry.launch(bench->stream(), shape, *arguments);
    };
  }

  Bench* bench_;
  const Problem* problem_;
  size_t shared_;
  std::vector<Kernels> kept_;
};

// The table's tiles, then others to compare with.
std::vector<FlashHopperTiles> forward_variants(const FlashInstance& instance, bool sweep) {
  const FlashHopperTiles first =
      flash_hopper_forward_tiles(instance.head_dim, instance.value_dim, 2, false);
  std::vector<FlashHopperTiles> list{first};
  if (!sweep) return list;
  const auto add = [&](int m, int n, int stages, int q_stages, bool in_turn, bool join = false) {
    FlashHopperTiles t = first;
    t.tile_m = m;
    t.tile_n = n;
    t.stages = stages;
    t.q_stages = q_stages;
    t.ping_pong = in_turn;
    t.join = join;
    t.consumers = m / 64;
    t.feeder_registers = t.consumers == 3 ? 32 : 24;
    t.consumer_registers = t.consumers == 3 ? 160 : 240;
    t.shared_bytes = kHopperSharedBytes;
    list.push_back(t);
  };
  add(first.tile_m, first.tile_n, first.stages, first.q_stages, !first.ping_pong);
  add(first.tile_m, first.tile_n, first.stages, 3 - first.q_stages, first.ping_pong);
  add(first.tile_m, first.tile_n, first.stages, 2, true, true);
  add(first.tile_m, first.tile_n, first.stages, 2, false, true);
  if (instance.head_dim <= 64) {
    add(192, 128, 3, 2, true);
    add(128, 128, 3, 2, true);
    add(128, 128, 3, 2, true, true);
  }
  return list;
}

// Compiles what the shapes need, in parallel, as a session does, and says how long the first pair
// takes uncached.
void compile_ahead(cuda::Device& device, const std::vector<Shape>& shapes, const Options& options) {
  std::vector<cuda::CompileRequest> requests;
  std::vector<std::pair<int, bool>> seen;
  for (const Shape& shape : shapes) {
    if (std::find(seen.begin(), seen.end(), std::pair(shape.dim, shape.causal)) != seen.end())
      continue;
    seen.emplace_back(shape.dim, shape.causal);
    FlashInstance instance;
    instance.head_dim = instance.value_dim = shape.dim;
    instance.causal = shape.causal;
    const auto backward = flash_hopper_backward_tiles(shape.dim, shape.dim, 2);
    if (options.hopper)
      requests.push_back(request_of(
          device, flash_hopper_source(FlashHopperUnit::Forward, instance,
                                      flash_hopper_forward_tiles(shape.dim, shape.dim, 2, false))));
    for (bool deterministic : {true, false})
      if (options.hopper && backward.exists())
        requests.push_back(request_of(
            device,
            flash_hopper_source(FlashHopperUnit::Backward, instance, backward, deterministic)));
    if (!options.portable) continue;
    for (FlashKernel kernel : {FlashKernel::Forward, FlashKernel::Backward, FlashKernel::Delta})
      for (const FlashTiles& t :
           portable_variants(kernel, shape.dim, options.shared, options.sweep))
        for (bool deterministic : {true, false})
          if (deterministic || kernel == FlashKernel::Backward)
            requests.push_back(
                request_of(device, flash_source(kernel, instance, t, deterministic)));
  }
  if (requests.empty()) return;
  if (options.hopper) {
    const auto start = std::chrono::steady_clock::now();
    cuda::compile_all({requests[0], requests[1]});
    fmt::print("forward and backward at head size {} compile in {:.2f} s\n", seen.front().first,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  cuda::compile_all(requests, &DiskCache::global());
}

int run(Options options) {
  if (cuda::device_count() == 0) {
    fmt::print(stderr, "{}\n", cuda::unavailable_reason());
    return 3;
  }
  cuda::Device& device = cuda::Device::get();
  if (device.info().arch() != "sm_90a") {
    fmt::print(stderr, "{} is no Hopper GPU\n", device.info().name);
    return 3;
  }
  const auto shared = static_cast<size_t>(device.info().shared_per_block);
  options.shared = options.shared == 0 ? shared : std::min(options.shared, shared);
  std::vector<Shape> shapes;
  if (options.check) {
    options.repeat = 0;
    for (bool causal : {true, false})
      for (int dim : {64, 128, 96, 40})
        for (int length : {1, 63, 65, 128, 130, 257, 1000})
          shapes.push_back({2, 4, 2, length, dim, causal});
  }
  for (bool causal : {true, false})
    for (int dim : {64, 128})
      for (int length : {1024, 4096, 16384})
        shapes.push_back({16384 / length, 2048 / dim, 2048 / dim, length, dim, causal});
  for (int length : {2048, 8192}) shapes.push_back({16384 / length, 32, 8, length, 128, true});
  if (options.check) shapes.resize(2 * 4 * 7);
  const std::vector<std::string>& only = options.only;
  if (!only.empty())
    for (int length : {1024, 4096, 16384})
      shapes.push_back({16384 / length, 8, 8, length, 256, true});
  const auto left_out = [&](const Shape& s) {
    const auto name = fmt::format("{}:{}", s.dim, s.length);
    return (options.causal && !s.causal) ||
           (!only.empty() && std::find(only.begin(), only.end(), name) == only.end());
  };
  shapes.erase(std::remove_if(shapes.begin(), shapes.end(), left_out), shapes.end());
  compile_ahead(device, shapes, options);
  Bench bench(device, options.repeat);
  for (const Shape& shape : shapes) {
    const Problem problem(device, bench.stream(), shape);
    if (options.portable) {
      Portable portable(bench, problem, options.shared);
      portable.forward(options.sweep);
      for (bool deterministic : {true, false}) portable.backward(deterministic, options.sweep);
    }
    if (!options.hopper) continue;
    for (const FlashHopperTiles& tiles : forward_variants(problem.instance, options.sweep))
      hopper_forward(bench, problem, tiles);
    if (!flash_hopper_backward_tiles(shape.dim, shape.dim, 2).exists()) continue;
    hopper_backward(bench, problem, true, std::nullopt);
    hopper_backward(bench, problem, false, std::nullopt);
    if (options.check && shape.length > 256)
      hopper_backward(bench, problem, true, (shape.length + 127) / 128);
    if (options.sweep) {
      hopper_backward(bench, problem, true, std::nullopt, false);
      const int key_tiles = (shape.length + 127) / 128;
      for (int parts : {1, 2, 4, 8, 16, 32, 64, 128})
        if (parts <= key_tiles) {
          hopper_backward(bench, problem, true, parts);
          hopper_backward(bench, problem, false, parts);
        }
    }
  }
  return bench.failed() ? 1 : 0;
}

}  // namespace

#else

namespace {
int run(const Options&) {
  fmt::print(stderr, "built without CUDA\n");
  return 3;
}
}  // namespace

#endif

int main(int argc, char** argv) {
  CLI::App app{"Flash attention, checked and timed"};
  Options options;
  app.add_option("--only", options.only, "head sizes and lengths, as 64:1024");
  app.add_flag("--check", options.check, "odd sizes, checked and not timed");
  app.add_flag("--sweep", options.sweep, "other tiles and parts too");
  app.add_flag("--portable,!--no-portable", options.portable, "the portable kernels");
  app.add_flag("--hopper,!--no-hopper", options.hopper, "the Hopper kernels");
  app.add_flag("--causal", options.causal, "only shapes with a causal mask");
  app.add_option("--shared", options.shared, "bytes of shared memory of the portable kernels");
  app.add_option("--repeat", options.repeat, "timed launches of each")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
