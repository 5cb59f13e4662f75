#include <sinter/runtime/cuda/driver.h>

#include <doctest/doctest.h>
#include <sinter/runtime/cuda/graph.h>
#include <sinter/tests/gpu/support.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

using namespace sinter;
using namespace sinter::cuda;
using namespace sinter::test;

TEST_CASE("driver: the device describes itself") {
  SINTER_NEEDS_GPU();
  CHECK(unavailable_reason() == "");
  const DeviceInfo info = device_info(0);
  CHECK(info.name != "");
  CHECK(info.major >= 7);
  CHECK(info.multiprocessors > 0);
  CHECK(info.memory > int64_t{1} << 30);
  CHECK(info.shared_per_block >= 48 * 1024);
  CHECK(info.shared_per_multiprocessor >= info.shared_per_block);
  CHECK(info.l2 > 0);
  CHECK(info.driver_version >= 12040);
  MESSAGE(info.name << ", " << info.arch() << ", " << info.multiprocessors
                    << " multiprocessors, CUDA " << version_text(info.driver_version));
  CHECK(contains(device_error([] { device_info(1000); }), "no CUDA device 1000"));
  CHECK(contains(device_error([] { device_info(-1); }), "no CUDA device -1"));
}

#ifdef SINTER_HAVE_CUDA

namespace {

constexpr const char* kSaxpy = R"(
extern "C" __global__ void saxpy(const float* a, const float* x, float* y, long long n) {
  long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = a[0] * x[i] + y[i];
}
extern "C" __global__ void add_to(int* x, int value) { x[threadIdx.x] += value; }
extern "C" __global__ void twice(int* x) { x[threadIdx.x] *= 2; }
struct Odd { char bytes[3]; };
extern "C" __global__ void mixed(char a, double b, Odd c, short d, double* out) {
  out[0] = a; out[1] = b; out[2] = c.bytes[2]; out[3] = d;
}
extern "C" __global__ void wide(float* out, int words) {
  extern __shared__ float tile[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) tile[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) out[0] = tile[words - 1];
}
)";

Tensor ints(std::vector<int32_t> values) {
  return Tensor::from<int32_t>(Shape{static_cast<int64_t>(values.size())}, values);
}

}  // namespace

TEST_CASE("driver: memory goes there and back") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  CHECK(&Device::get(0) == &device);
  const Stream stream(device);
  const Tensor x = fill({DType::F32, {1000, 33}}, 7);
  DeviceBuffer first = upload(stream, x);
  CHECK(first.address() % 256 == 0);
  DeviceBuffer second(device, first.size());
  copy_on_device(stream, second.address(), first.address(), first.size());
  CHECK(download(stream, x.type(), second.address()).same_bits(x));

  DeviceBuffer moved = std::move(second);
  CHECK(moved.address() != 0);
  fill_words(stream, moved.address(), 0x3f800000u, 10);
  fill_bytes(stream, moved.address() + 40, 0, 4);
  const Tensor filled = download(stream, {DType::F32, {12}}, moved.address());
  CHECK(filled.at(9) == 1.0);
  CHECK(filled.at(10) == 0.0);
  CHECK(filled.at(11) == x.at(11));

  // Rows of two words, four words apart: the words between stay.
  fill_rows(stream, moved.address(), 16, 0, 8, 2);
  const Tensor rows = download(stream, {DType::F32, {8}}, moved.address());
  CHECK(rows.to_doubles() == std::vector<double>{0, 0, 1, 1, 0, 0, 1, 1});

  const DeviceBuffer empty(device, 0);
  CHECK(empty.address() == 0);
  copy_to_device(stream, empty.address(), nullptr, 0);
}

TEST_CASE("driver: pinned memory and events") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Stream other(device);
  PinnedBuffer pinned(device, 1 << 20);
  std::memset(pinned.data(), 0x5a, pinned.size());
  DeviceBuffer buffer(device, pinned.size());
  const Event start(device);
  const Event end(device);
  const Event copied(device, false);
  stream.record(start);
  copy_to_device(stream, buffer.address(), pinned.data(), pinned.size());
  stream.record(end);
  stream.record(copied);
  other.wait(copied);
  std::vector<unsigned char> back(pinned.size());
  copy_to_host(other, back.data(), buffer.address(), back.size());
  other.synchronize();
  CHECK(back.front() == 0x5a);
  CHECK(back.back() == 0x5a);
  end.synchronize();
  CHECK(end.done());
  CHECK(end.milliseconds_since(start) >= 0);
  CHECK(end.milliseconds_since(start) < 1000);
}

TEST_CASE("driver: too much memory is refused with the numbers") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const std::size_t bytes = static_cast<std::size_t>(device.info().memory) * 2;
  const std::string message = device_error([&] { DeviceBuffer buffer(device, bytes); });
  CHECK(contains(message, "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(contains(message, std::to_string(bytes) + " bytes asked for"));
  CHECK(contains(message, std::to_string(device.info().memory)));
  CHECK(device.free_memory() > 0);
}

TEST_CASE("driver: kernels are loaded, described and launched") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const Kernel saxpy = module.kernel("saxpy");
  CHECK(saxpy.name() == "saxpy");
  CHECK(saxpy.registers() > 0);
  CHECK(saxpy.max_threads() >= 256);
  CHECK(saxpy.local_bytes() == 0);

  const int64_t n = 100'000;
  const Tensor x = fill({DType::F32, {n}}, 1);
  const Tensor y = fill({DType::F32, {n}}, 2);
  const DeviceBuffer a_device = upload(stream, Tensor::scalar(0.5f));
  const DeviceBuffer x_device = upload(stream, x);
  const DeviceBuffer y_device = upload(stream, y);
  KernelArguments arguments;
  arguments.add(a_device.address()).add(x_device.address()).add(y_device.address()).add(n);
  saxpy.launch(stream, {(n + 255) / 256, 256, 0}, arguments);
  const Tensor result = download(stream, y.type(), y_device.address());
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += result.at(i) != 0.5 * x.at(i) + y.at(i);
  CHECK(wrong == 0);
}

TEST_CASE("driver: arguments of every width reach the kernel") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const DeviceBuffer out(device, 4 * sizeof(double));
  struct Odd {
    char bytes[3];
  };
  KernelArguments arguments;
  arguments.add(char{3}).add(0.25).add(Odd{{1, 2, 9}}).add(short{-7}).add(out.address());
  module.kernel("mixed").launch(stream, {1, 1, 0}, arguments);
  CHECK(download(stream, {DType::F64, {4}}, out.address()).to_doubles() ==
        std::vector<double>{3, 0.25, 9, -7});
}

TEST_CASE("driver: dynamic shared memory beyond 48 KiB") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const Kernel wide = module.kernel("wide");
  const DeviceBuffer out(device, sizeof(float));
  const int words = 20'000;
  KernelArguments arguments;
  arguments.add(out.address()).add(words);
  const LaunchShape shape{1, 256, words * 4};
  CHECK(contains(device_error([&] { wide.launch(stream, shape, arguments); }), "kernel 'wide'"));
  wide.allow_dynamic_shared(words * 4);
  wide.launch(stream, shape, arguments);
  CHECK(download(stream, {DType::F32, {1}}, out.address()).at(0) == words - 1);

  const std::string message = device_error([&] { wide.allow_dynamic_shared(1 << 20); });
  CHECK(contains(message, "kernel 'wide' asks for 1048576 bytes"));
  CHECK(contains(message, std::to_string(device.info().shared_per_block)));
}

TEST_CASE("driver: failures name the call and the kernel") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  KernelArguments arguments;
  arguments.add(DevicePtr{0});
  const std::string launch = device_error([&] {
    module.kernel("twice").launch(stream, {1, 5000, 0}, arguments);
  });
  CHECK(contains(launch, "cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE"));
  CHECK(contains(launch, "kernel 'twice', 1 blocks of 5000 threads"));
  const std::string absent = device_error([&] { module.kernel("absent"); });
  CHECK(contains(absent, "cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND"));
  CHECK(contains(absent, "kernel 'absent' of module 'trial'"));
  const std::string garbage = device_error([&] { Module(device, "no cubin", "junk", 99000); });
  CHECK(contains(garbage, "cuModuleLoadDataEx failed"));
  CHECK(contains(garbage, "module 'junk'"));
  CHECK(contains(garbage, "compiled by CUDA 99.0"));  // the advice for an older driver
  device.synchronize();                               // none of this broke the context
}

TEST_CASE("CC-08: PTX with a raised version header is refused with both versions and the remedy") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  CompileRequest request;
  request.name = "trial";
  request.source = kSaxpy;
  request.arch = "sm_81";  // no real architecture: PTX comes out
  request.allow_ptx = true;
  CompiledUnit unit = compile(request);
  REQUIRE(unit.is_ptx);
  const size_t at = unit.image.find(".version ");
  REQUIRE(at != std::string::npos);
  unit.image.replace(at + 9, unit.image.find('\n', at) - at - 9, "99.0");
  const std::string error = device_error([&] { Module(device, unit.image, "newer", 13000); });
  CHECK(contains(error, "module 'newer'"));
  CHECK(contains(error, "PTX is of version 99.0"));
  CHECK(contains(error, "of CUDA " + version_text(device.info().driver_version)));
  CHECK(contains(error, "update the driver"));
  // By default native code is loaded, which no driver has to finish.
  request.arch = device.info().arch();
  CHECK(!compile(request).is_ptx);
}

TEST_CASE("driver: PTX for an unknown architecture is finished by the driver") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy, "sm_81");
  const DeviceBuffer x = upload(stream, ints({1, 2, 3}));
  KernelArguments arguments;
  arguments.add(x.address());
  module.kernel("twice").launch(stream, {1, 3, 0}, arguments);
  CHECK(download(stream, {DType::I32, {3}}, x.address()).to_doubles() ==
        std::vector<double>{2, 4, 6});
}

TEST_CASE("graph: saxpy with a factor that changes between launches") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const int64_t n = 1000;
  const Tensor x = fill({DType::F32, {n}}, 3);
  const DeviceBuffer a_device(device, sizeof(float));
  const DeviceBuffer x_device = upload(stream, x);
  const DeviceBuffer y_device(device, n * sizeof(float));
  const PinnedBuffer a(device, sizeof(float));
  const PinnedBuffer y(device, n * sizeof(float));

  Graph graph(device);
  graph.add_copy_to_device(a_device.address(), a.data(), a.size());
  graph.add_fill(y_device.address(), 0x3f800000u, 4, n);  // ones
  KernelArguments arguments;
  arguments.add(a_device.address()).add(x_device.address()).add(y_device.address()).add(n);
  graph.add_kernel(module.kernel("saxpy"), {(n + 127) / 128, 128, 0}, arguments);
  graph.add_copy_to_host(y.data(), y_device.address(), y.size());
  CHECK(graph.size() == 4);
  const ExecutableGraph executable(graph);
  executable.upload(stream);
  for (const float factor : {2.0f, -0.5f}) {
    std::memcpy(a.data(), &factor, sizeof factor);
    executable.launch(stream);
    stream.synchronize();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      wrong += static_cast<const float*>(y.data())[i] != factor * x.at(i) + 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("graph: nodes run in the order added, children too") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const Kernel add = module.kernel("add_to");
  const Kernel twice = module.kernel("twice");
  const DeviceBuffer x = upload(stream, ints({1, 2}));
  const DeviceBuffer copy(device, 8);
  KernelArguments add_arguments;
  add_arguments.add(x.address()).add(10);
  KernelArguments twice_arguments;
  twice_arguments.add(x.address());

  const Graph captured = Graph::capture(stream, [&] {
    twice.launch(stream, {1, 2, 0}, twice_arguments);
    twice.launch(stream, {1, 2, 0}, twice_arguments);
  });
  const Graph nothing = Graph::capture(stream, [] {});

  Graph graph(device);
  graph.add_kernel(add, {1, 2, 0}, add_arguments);  // x + 10
  graph.add_child(captured);                        // · 4
  graph.add_child(nothing);
  graph.add_copy_on_device(copy.address(), x.address(), 0);
  graph.add_kernel(add, {1, 2, 0}, add_arguments);  // + 10
  graph.add_copy_on_device(copy.address(), x.address(), 8);
  const ExecutableGraph executable(graph);
  executable.launch(stream);
  CHECK(download(stream, {DType::I32, {2}}, copy.address()).to_doubles() ==
        std::vector<double>{54, 58});
  executable.launch(stream);
  executable.launch(stream);
  CHECK(download(stream, {DType::I32, {2}}, x.address()).to_doubles() ==
        std::vector<double>{((54. + 10) * 4 + 10 + 10) * 4 + 10,
                            ((58. + 10) * 4 + 10 + 10) * 4 + 10});
}

TEST_CASE("graph: branches that state what they wait for") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const Module module = load(device, kSaxpy);
  const DeviceBuffer x = upload(stream, ints({5}));
  const DeviceBuffer left(device, 4);
  const DeviceBuffer right(device, 4);
  KernelArguments to_left;
  to_left.add(left.address()).add(1);
  KernelArguments to_right;
  to_right.add(right.address()).add(2);
  KernelArguments back;
  back.add(x.address()).add(100);

  Graph graph(device);
  const Graph::Node copy_left = graph.add_copy_on_device(left.address(), x.address(), 4, {});
  const Graph::Node copy_right = graph.add_copy_on_device(right.address(), x.address(), 4, {});
  const Kernel add = module.kernel("add_to");
  graph.add_kernel(add, {1, 1, 0}, to_left, {copy_left});
  graph.add_kernel(add, {1, 1, 0}, to_right, {copy_right});
  graph.add_kernel(add, {1, 1, 0}, back, {copy_left, copy_right});
  ExecutableGraph(graph).launch(stream);
  CHECK(download(stream, {DType::I32, {1}}, left.address()).at(0) == 6);
  CHECK(download(stream, {DType::I32, {1}}, right.address()).at(0) == 7);
  CHECK(download(stream, {DType::I32, {1}}, x.address()).at(0) == 105);
}

TEST_CASE("graph: an exception ends the capture") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  const auto failing = [&] { Graph::capture(stream, [] { throw DeviceError("inside"); }); };
  CHECK(device_error(failing) == "inside");
  const DeviceBuffer buffer(device, 4);
  fill_words(stream, buffer.address(), 7, 1);  // the stream works as before
  CHECK(download(stream, {DType::U32, {1}}, buffer.address()).at(0) == 7);
}

TEST_CASE("MP-07: f32 to bf16 and f16 on the device, and back") {
  SINTER_NEEDS_GPU();
  Device& device = Device::get();
  const Stream stream(device);
  std::ifstream file(data_path("../codegen/templates/prelude.cuh"), std::ios::binary);
  const std::string prelude{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(!prelude.empty());
  const Module module = load(device, prelude + R"(
extern "C" __global__ void convert(const float* x, bf16* b, f16* h, uint32_t* pb, uint32_t* ph,
                                   float* back_b, float* back_h) {
  int i = threadIdx.x;
  b[i] = f32_to_bf16(x[i]);
  h[i] = f32_to_f16(x[i]);
  pb[i] = pack_bf16(x[i], 1.0f);
  ph[i] = pack_f16(1.0f, x[i]);
  back_b[i] = low_bf16(pb[i]) + 0.0f * high_bf16(pb[i]);
  back_h[i] = high_f16(ph[i]) + 0.0f * low_f16(ph[i]);
}
)");
  const std::vector<uint32_t> inputs = {0x3F808000, 0x3F818000, 0x3F808001, 0x3E99999A, 0x7F7F7FFF,
                                        0x7F7FFFFF, 0xFF800000, 0x80000000, 0x00000001, 0x7F800001,
                                        0x7FFFFFFF, 0x3F802000, 0x477FF000, 0x33800000};
  const std::vector<uint32_t> as_bf16 = {0x3F80, 0x3F82, 0x3F81, 0x3E9A, 0x7F7F,
                                         0x7F80, 0xFF80, 0x8000, 0x0000};
  const auto n = static_cast<int64_t>(inputs.size());
  const auto bytes = inputs.size() * 4;
  const DeviceBuffer x = upload(stream, Tensor::from<uint32_t>(Shape{n}, inputs));
  const DeviceBuffer b(device, bytes / 2), h(device, bytes / 2), pb(device, bytes),
      ph(device, bytes), back_b(device, bytes), back_h(device, bytes);
  KernelArguments arguments;
  for (const DeviceBuffer* buffer : {&x, &b, &h, &pb, &ph, &back_b, &back_h}) {
    arguments.add(buffer->address());
  }
  module.kernel("convert").launch(stream, {1, static_cast<int>(n), 0}, arguments);
  std::vector<uint16_t> bits(inputs.size());
  copy_to_host(stream, bits.data(), b.address(), bytes / 2);
  std::vector<uint16_t> half(inputs.size());
  copy_to_host(stream, half.data(), h.address(), bytes / 2);
  std::vector<uint32_t> pairs(inputs.size());
  copy_to_host(stream, pairs.data(), pb.address(), bytes);
  std::vector<uint32_t> half_pairs(inputs.size());
  copy_to_host(stream, half_pairs.data(), ph.address(), bytes);
  const Tensor values = download(stream, {DType::F32, {n}}, back_b.address());
  const Tensor half_values = download(stream, {DType::F32, {n}}, back_h.address());
  for (std::size_t i = 0; i < as_bf16.size(); ++i) {
    CAPTURE(i);
    CHECK(bits[i] == as_bf16[i]);
  }
  for (std::size_t i : {9u, 10u}) {
    CAPTURE(i);
    CHECK((bits[i] & 0x7f80) == 0x7f80);
    CHECK((bits[i] & 0x007f) != 0);
    CHECK((half[i] & 0x7c00) == 0x7c00);
    CHECK((half[i] & 0x03ff) != 0);
    CHECK(std::isnan(values.at(static_cast<int64_t>(i))));
    CHECK(std::isnan(half_values.at(static_cast<int64_t>(i))));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    CHECK(pairs[i] == (0x3F800000u | bits[i]));
    CHECK(half_pairs[i] == (static_cast<uint32_t>(half[i]) << 16 | 0x3C00u));
  }
  CHECK(half[11] == 0x3C01);  // 1 + 2^-10
  CHECK(half[12] == 0x7C00);  // 65520 is half way to the next value, so infinity
  CHECK(half[13] == 0x0001);  // 2^-24, the smallest subnormal
  CHECK(half_values.at(13) == std::ldexp(1.0, -24));
}

#endif  // SINTER_HAVE_CUDA
