// Generated CUDA kernels on the device against the interpreter.

#include <doctest/doctest.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/tests/codegen/exact_cases.h>
#include <sinter/tests/gpu/support.h>

#include <cmath>

using namespace sinter;
using namespace sinter::test;

#ifdef SINTER_HAVE_CUDA

namespace {

using Bytes = std::vector<std::vector<uint8_t>>;

// Runs `p` on the device; `out` holds the outputs' bytes.
std::vector<FaultSlot> run_on_device(const LoopProgram& p, const Bytes& in, Bytes& out) {
  cuda::Device& device = cuda::Device::get();
  const cuda::Stream stream(device);
  const cuda::Module module = load(device, print_cuda(p));
  std::vector<cuda::DeviceBuffer> buffers;
  cuda::KernelArguments arguments;
  size_t input = 0, output = 0;
  for (const KernelBuffer& b : p.buffers) {
    const std::vector<uint8_t>& bytes = b.output ? out[output++] : in[input++];
    buffers.emplace_back(device, bytes.size());
    cuda::copy_to_device(stream, buffers.back().address(), bytes.data(), bytes.size());
    arguments.add(buffers.back().address());
  }
  std::vector<FaultSlot> faults(p.faults.size(), {std::numeric_limits<int64_t>::max(), 0});
  if (!faults.empty()) {
    buffers.emplace_back(device, faults.size() * sizeof(FaultSlot));
    cuda::copy_to_device(stream, buffers.back().address(), faults.data(), buffers.back().size());
    arguments.add(buffers.back().address());
  }
  for (uint32_t site : p.sites) arguments.add(site);
  cuda::LaunchShape shape;
  shape.blocks = p.grid;
  shape.threads = p.block;
  const cuda::Kernel kernel = module.kernel(p.symbol);
  if (p.shared_bytes > kStaticSharedBytes) {
    shape.shared_bytes = p.shared_bytes;
    kernel.allow_dynamic_shared(p.shared_bytes);
  }
  kernel.launch(stream, shape, arguments);
  output = 0;
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    if (!p.buffers[i].output) continue;
    std::vector<uint8_t>& bytes = out[output++];
    cuda::copy_to_host(stream, bytes.data(), buffers[i].address(), bytes.size());
  }
  if (!faults.empty())
    cuda::copy_to_host(stream, faults.data(), buffers.back().address(), buffers.back().size());
  stream.synchronize();
  return faults;
}

Bytes interpreted(const LoopProgram& p, Bytes in, Bytes out) {
  std::vector<void*> buffers;
  for (auto& bytes : in) buffers.push_back(bytes.data());
  for (auto& bytes : out) buffers.push_back(bytes.data());
  std::vector<FaultSlot> faults(p.faults.size(), {std::numeric_limits<int64_t>::max(), 0});
  interpret(p, buffers, faults);
  return out;
}

std::vector<uint8_t> ramp(int64_t n, float scale) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(scale * static_cast<float>((i * 37 + 11) % 101 - 50));
  return bytes_of(out);
}

}  // namespace

TEST_CASE("generated CUDA on the device: constants, conversions, integers, random bits, faults") {
  SINTER_NEEDS_GPU();
  for (const ExactCase& t : exact_cases("sm_90a")) {
    CAPTURE(t.program.symbol);
    Bytes got;
    for (const auto& bytes : t.outputs) got.emplace_back(bytes.size());
    const std::vector<FaultSlot> faults = run_on_device(t.program, t.inputs, got);
    CHECK(difference(t, got) == "");
    REQUIRE(faults.size() == t.faults.size());
    for (size_t f = 0; f < faults.size(); ++f) {
      CHECK(faults[f].position == t.faults[f].position);
      CHECK(faults[f].value == t.faults[f].value);
    }
  }
}

TEST_CASE("generated CUDA on the device: vector add and column sum equal the interpreter") {
  SINTER_NEEDS_GPU();
  for (int64_t n : {1, 255, 257, 1001}) {
    const LoopProgram p = vector_add("sm_90a", DType::F32, n);
    const Bytes in = {ramp(n, 0.3F), ramp(n, 7.7F)};
    Bytes out = {std::vector<uint8_t>(static_cast<size_t>(n) * 4)};
    const Bytes want = interpreted(p, in, out);
    run_on_device(p, in, out);
    CHECK(out == want);
  }
  const LoopProgram p = column_sum("sm_90a", 50, 45);
  const Bytes in = {ramp(50 * 45, 1.1F)};
  Bytes out = {std::vector<uint8_t>(45 * 4)};
  const Bytes want = interpreted(p, in, out);
  run_on_device(p, in, out);
  CHECK(out == want);
}

TEST_CASE("generated CUDA on the device: softmax over two warps") {
  SINTER_NEEDS_GPU();
  for (int64_t q : {1, 63, 129, 1000}) {
    const LoopProgram p = row_softmax("sm_90a", DType::F32, 5, q);
    const Bytes in = {ramp(5 * q, 0.2F)};
    Bytes out = {std::vector<uint8_t>(static_cast<size_t>(5 * q) * 4)};
    const Bytes want = interpreted(p, in, out);
    run_on_device(p, in, out);
    for (int64_t i = 0; i < 5 * q; ++i)
      CHECK(load_as_double(DType::F32, out[0].data(), i) ==
            doctest::Approx(load_as_double(DType::F32, want[0].data(), i)).epsilon(2e-6));
  }
}

TEST_CASE("generated CUDA on the device: vectors of every type, dynamic shared memory") {
  SINTER_NEEDS_GPU();
  for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                     DType::U32, DType::Bool}) {
    for (int width : {1, 2, 4, 8, 16}) {
      const LoopProgram p = vectors("sm_90a", type, width);
      CAPTURE(p.symbol);
      std::vector<uint8_t> x(static_cast<size_t>(64 * width * size_of(type)));
      for (int64_t i = 0; i < 64 * width; ++i)
        store_from_double(type, x.data(), i, static_cast<double>((i * 37 + 11) % 101));
      Bytes out = {std::vector<uint8_t>(x.size())};
      const Bytes want = interpreted(p, {x}, out);
      run_on_device(p, {x}, out);
      CHECK(out == want);
    }
  }
}

TEST_CASE("generated CUDA on the device: functions agree with f64 over the exponent range") {
  SINTER_NEEDS_GPU();
  std::vector<float> x = {0.0F, -0.0F, INFINITY, -INFINITY, NAN};
  uint32_t state = 7;
  for (uint32_t e = 0; e < 255; ++e)
    for (int i = 0; i < 20; ++i) {
      state = state * 1664525U + 1013904223U;
      x.push_back(std::bit_cast<float>((state & 0x80000000U) | e << 23 | (state >> 8 & 0x7fffffU)));
    }
  for (int f = 0; f <= static_cast<int>(Fn::Select); ++f) {
    const Fn fn = static_cast<Fn>(f);
    const Intrinsic& row = intrinsic(fn);
    if (row.arity != 1 || row.f32 == nullptr || row.gives_bool) continue;
    CAPTURE(row.name);
    const LoopProgram p = elementwise(
        "f_" + std::string(row.name), "sm_90a", static_cast<int64_t>(x.size()), {DType::F32},
        {DType::F32}, [&](LoopBuilder& b, const std::vector<Var>& v, const IndexExpr&) {
          return std::vector<Var>{b.let(fn, v)};
        });
    Bytes out = {std::vector<uint8_t>(x.size() * 4)};
    run_on_device(p, {bytes_of(x)}, out);
    for (size_t i = 0; i < x.size(); ++i) {
      if (fn == Fn::Inv1p && !(x[i] >= 0 && x[i] <= 1)) continue;
      const double want = row.f64(static_cast<double>(x[i]), 0, 0);
      const float rounded = static_cast<float>(want);
      const float got =
          static_cast<float>(load_as_double(DType::F32, out[0].data(), static_cast<int64_t>(i)));
      CAPTURE(x[i]);
      CAPTURE(got);
      if (std::isnan(rounded) || std::isinf(rounded)) {
        REQUIRE(std::isnan(got) == std::isnan(rounded));
        REQUIRE(std::isinf(got) == std::isinf(rounded));
        continue;
      }
      int exponent = 0;
      std::frexp(want, &exponent);
      const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
      // CUDA promises 5 for the normal distribution, 4 or less for the others.
      REQUIRE(std::fabs(static_cast<double>(got) - want) <= (fn == Fn::NormCdf ? 5 : 4) * ulp);
    }
  }
}

#endif
