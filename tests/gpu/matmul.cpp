#ifdef SINTER_HAVE_CUDA

#include <doctest/doctest.h>
#include <sinter/runtime/cuda/cublaslt.h>
#include <sinter/runtime/cuda/graph.h>
#include <sinter/tests/gpu/support.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

using namespace sinter;
using namespace sinter::cuda;
using namespace sinter::test;

namespace {

constexpr int64_t kGuard = 4096;  // bytes of NaN on either side of every operand

// A tensor in device memory with NaN around it.
class Guarded {
 public:
  Guarded(const Stream& stream, const Tensor& content)
      : stream_(stream),
        type_(content.type()),
        buffer_(stream.device(), static_cast<size_t>(content.bytes() + 2 * kGuard)) {
    fill_bytes(stream, buffer_.address(), 0xff, buffer_.size());
    copy_to_device(stream, address(), content.data(), static_cast<size_t>(content.bytes()));
    stream.synchronize();
  }
  DevicePtr address() const { return buffer_.address() + kGuard; }
  Tensor content() const { return download(stream_, type_, address()); }
  bool guards_untouched() const {
    std::vector<unsigned char> bytes(buffer_.size());
    copy_to_host(stream_, bytes.data(), buffer_.address(), bytes.size());
    stream_.synchronize();
    for (size_t i = 0; i < static_cast<size_t>(kGuard); ++i) {
      if (bytes[i] != 0xff || bytes[bytes.size() - 1 - i] != 0xff) return false;
    }
    return true;
  }

 private:
  const Stream& stream_;
  TensorType type_;
  DeviceBuffer buffer_;
};

// Dense operands of `spec`'s shapes, by the fill rule: products and sums are exact in f32.
struct Operands {
  Tensor a, b, c;
};

MatmulSpec dense(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  MatmulSpec spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.batch = batch;
  spec.batch_stride_a = m * k;
  spec.batch_stride_b = k * n;
  spec.batch_stride_c = m * n;
  return spec;
}

Operands operands(const MatmulSpec& spec) {
  return {fill({spec.input, {spec.batch, spec.m * spec.k}}, 61),
          fill({spec.input, {spec.batch, spec.k * spec.n}}, 62),
          fill({spec.output, {spec.batch, spec.m, spec.n}}, 63)};
}

// The exact product of dense operands, rounded to the output type.
Tensor expected(const MatmulSpec& spec, const Operands& given) {
  const std::vector<double> a = given.a.to_doubles();
  const std::vector<double> b = given.b.to_doubles();
  const std::vector<double> c = given.c.to_doubles();
  std::vector<double> d(c.size());
  const int64_t m = spec.m, n = spec.n, k = spec.k;
  for (int64_t g = 0; g < spec.batch; ++g) {
    const double* first = a.data() + (spec.batch_stride_a != 0 ? g * m * k : 0);
    const double* second = b.data() + (spec.batch_stride_b != 0 ? g * k * n : 0);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = (g * m + i) * n + j;
        double sum = spec.accumulate ? c[static_cast<size_t>(at)] : 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += first[spec.transpose_a ? l * m + i : i * k + l] *
                 second[spec.transpose_b ? j * k + l : l * n + j];
        }
        d[static_cast<size_t>(at)] = sum;
      }
    }
  }
  return Tensor::from_doubles({spec.output, {spec.batch, m, n}}, d);
}

struct Trial {
  Tensor result;
  bool guards_untouched = false;
};

Trial run(const Stream& stream, const MatmulSpec& spec, const Operands& given) {
  const MatmulPlan plan(stream.device(), spec);
  const DeviceBuffer workspace(stream.device(), plan.workspace_bytes());
  const Guarded a(stream, given.a);
  const Guarded b(stream, given.b);
  const Guarded c(stream, given.c);
  const Guarded d(stream, Tensor::full(given.c.type(), NAN));
  plan.run(stream, a.address(), b.address(), c.address(), d.address(), workspace.address());
  stream.synchronize();
  return {d.content(), a.guards_untouched() && b.guards_untouched() && c.guards_untouched() &&
                           d.guards_untouched() && c.content().same_bits(given.c)};
}

}  // namespace

#define SINTER_NEEDS_CUBLASLT() \
  SINTER_NEEDS_GPU();           \
  if (std::string why; !cublaslt_available(&why)) SINTER_SKIP(why.c_str())

TEST_CASE("NU-09: f32 products keep all bits") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  const float small = std::ldexp(1.0f, -12);
  const MatmulSpec tiny = dense(1, 1, 2);
  const Operands given{Tensor::from<float>({1, 2}, {1 + small, 1.0f}),
                       Tensor::from<float>({2, 1}, {1.0f, -1.0f}), Tensor({DType::F32, {1, 1}})};
  CHECK(run(stream, tiny, given).result.at(0) == small);

  const MatmulSpec spec = dense(64, 64, 64);
  Operands large{Tensor({DType::F32, {64, 64}}), Tensor({DType::F32, {64, 64}}),
                 Tensor({DType::F32, {64, 64}})};
  for (int64_t i = 0; i < 64; ++i) {
    large.a.as<float>()[i * 64] = 1 + small;
    large.a.as<float>()[i * 64 + 1] = 1;
    large.b.as<float>()[i] = 1;
    large.b.as<float>()[64 + i] = -1;
  }
  const Tensor result = run(stream, spec, large).result;
  for (int64_t i = 0; i < result.size(); ++i) REQUIRE(result.at(i) == small);
}

TEST_CASE("cuBLASLt adds a bias before it rounds") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  struct Case {
    DType input, output;
    int64_t m, n, k;
    bool transpose_b;
  };
  for (const Case& c : {Case{DType::F32, DType::F32, 33, 40, 20, false},
                        Case{DType::BF16, DType::BF16, 64, 96, 48, true},
                        Case{DType::BF16, DType::BF16, 1, 8, 16, false},
                        Case{DType::F16, DType::F16, 130, 56, 64, true},
                        Case{DType::BF16, DType::F32, 64, 96, 48, false},
                        Case{DType::BF16, DType::BF16, 5, 24, 0, false}}) {
    MatmulSpec spec = dense(c.m, c.n, c.k);
    spec.input = c.input;
    spec.output = c.output;
    spec.transpose_b = c.transpose_b;
    spec.bias = true;
    CAPTURE(spec.str());
    std::vector<double> left, right, bias;
    auto some = [](int64_t count, int64_t of, std::vector<double>& to) {
      for (int64_t i = 0; i < count; ++i) to.push_back(static_cast<double>((i * of) % 17 - 8) / 8);
    };
    some(c.m * c.k, 5, left);
    some(c.k * c.n, 7, right);
    some(c.n, 3, bias);
    for (double& b : bias) b += 0x1p-10;  // lost, were it added to what is rounded
    const Tensor a = Tensor::from_doubles({c.input, {c.m, c.k}}, left),
                 b = Tensor::from_doubles(
                     {c.input, c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}}, right),
                 row = Tensor::from_doubles({c.output, {c.n}}, bias);
    const MatmulPlan plan(stream.device(), spec);
    const DeviceBuffer workspace(stream.device(), plan.workspace_bytes());
    const DeviceBuffer da = upload(stream, a), db = upload(stream, b), dc = upload(stream, row);
    const DeviceBuffer dd = upload(stream, Tensor::full({c.output, {c.m, c.n}}, NAN));
    plan.run(stream, da.address(), db.address(), dc.address(), dd.address(), workspace.address());
    const Tensor got = download(stream, {c.output, {c.m, c.n}}, dd.address());
    int wrong = 0;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = row.at(j);
        for (int64_t k = 0; k < c.k; ++k)
          sum += a.at(i * c.k + k) * b.at(c.transpose_b ? j * c.k + k : k * c.n + j);
        const double want = Tensor::from_doubles({c.output, {1}}, {sum}).at(0);
        wrong += std::abs(got.at(i * c.n + j) - want) > 1e-6 * std::abs(want);
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("MP-10: bf16 products accumulate in f32") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  for (DType output : {DType::F32, DType::BF16}) {
    MatmulSpec spec = dense(1, 1, 257);
    spec.input = DType::BF16;
    spec.output = output;
    Tensor a = Tensor::full({DType::F32, {1, 257}}, 1);
    a.as<float>()[0] = 256;
    const Operands given{a.to(DType::BF16), Tensor::full({DType::BF16, {257, 1}}, 1),
                         Tensor({output, {1, 1}})};
    CHECK(run(stream, spec, given).result.at(0) == 512);
  }
  // Long enough to be split over k, with halves that bf16 cannot hold: 33026.0078 - 32768.
  MatmulSpec split = dense(16, 16, 65536);
  split.input = split.output = DType::BF16;
  Tensor a = Tensor::full({DType::F32, {16, 65536}}, -1);
  for (int64_t row = 0; row < 16; ++row) {
    float* values = a.as<float>() + row * 65536;
    for (int64_t i = 0; i < 32768; ++i) values[i] = 1.0078125f;
    values[row] = 3.015625f;
  }
  const Operands given{a.to(DType::BF16), Tensor::full({DType::BF16, {65536, 16}}, 1),
                       Tensor({DType::BF16, {16, 16}})};
  const Tensor result = run(stream, split, given).result;
  for (int64_t i = 0; i < result.size(); ++i) CHECK(result.at(i) == 258);
}

TEST_CASE("SH-03: more matrices than a grid axis holds") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  const int64_t batch = 70'001;
  Tensor a({DType::F32, {batch, 2, 2}});
  for (int64_t i = 0; i < batch; ++i) {
    float* matrix = a.as<float>() + 4 * i;
    matrix[0] = matrix[3] = 1;
    matrix[1] = static_cast<float>(i % 11);
  }
  const MatmulSpec spec = dense(2, 2, 2, batch);
  const Trial trial = run(stream, spec, {a, a, Tensor({DType::F32, {batch, 2, 2}})});
  CHECK(trial.guards_untouched);
  const float* last = trial.result.as<float>() + 4 * 70'000;
  CHECK(last[0] == 1);
  CHECK(last[1] == 14);
  CHECK(last[2] == 0);
  CHECK(last[3] == 1);
  int64_t wrong = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const float* matrix = trial.result.as<float>() + 4 * i;
    wrong += matrix[0] != 1 || matrix[1] != static_cast<float>(2 * (i % 11)) || matrix[2] != 0 ||
             matrix[3] != 1;
  }
  CHECK(wrong == 0);
}

namespace {

// Equal element by element; a library may give a sum of zeros either sign.
bool same_values(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.type().elements(); ++i)
    if (a.at(i) != b.at(i)) return false;
  return a.type() == b.type();
}

}  // namespace

TEST_CASE("SH-05: sizes that are no multiple of a tile, every type and transposition") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  const struct {
    DType input, output;
  } types[] = {{DType::F32, DType::F32},   {DType::F64, DType::F64}, {DType::BF16, DType::F32},
               {DType::BF16, DType::BF16}, {DType::F16, DType::F32}, {DType::F16, DType::F16}};
  const std::initializer_list<int64_t> sizes = {1, 2, 17, 33, 64, 129};
  for (const auto& type : types) {
    for (int64_t m : sizes) {
      for (int64_t n : sizes) {
        for (int64_t k : sizes) {
          MatmulSpec spec = dense(m, n, k);
          spec.input = type.input;
          spec.output = type.output;
          spec.transpose_a = (m + n) % 2 == 0;
          spec.transpose_b = (n + k) % 3 != 0;
          spec.accumulate = k % 2 == 0;
          CAPTURE(spec.str());
          const Operands given = operands(spec);
          const Trial trial = run(stream, spec, given);
          CHECK(trial.guards_untouched);
          CHECK(same_values(trial.result, expected(spec, given)));
        }
      }
    }
  }
}

TEST_CASE("SH-05: the published sums") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  MatmulSpec spec = dense(17, 19, 33);
  const Operands given{fill({DType::F32, {17, 33}}, 61), fill({DType::F32, {33, 19}}, 62),
                       Tensor({DType::F32, {17, 19}})};
  const Tensor result = run(stream, spec, given).result;
  double sum = 0;
  for (int64_t i = 0; i < result.size(); ++i) sum += result.at(i);
  CHECK(result.at(0) == doctest::Approx(0.9609375));
  CHECK(result.at(17 * 19 - 1) == doctest::Approx(-1.139648));
  CHECK(sum == doctest::Approx(100.9824));
}

TEST_CASE("matmul: both transpositions of square matrices differ") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  for (int which = 0; which < 4; ++which) {
    MatmulSpec spec = dense(48, 48, 48, 3);
    spec.transpose_a = (which & 1) != 0;
    spec.transpose_b = (which & 2) != 0;
    CAPTURE(spec.str());
    const Operands given = operands(spec);
    CHECK(run(stream, spec, given).result.same_bits(expected(spec, given)));
  }
}

TEST_CASE("matmul: a batch that shares an operand") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  for (const bool share_a : {false, true}) {
    MatmulSpec spec = dense(20, 24, 12, 5);
    (share_a ? spec.batch_stride_a : spec.batch_stride_b) = 0;
    const Operands given = operands(spec);
    const Trial trial = run(stream, spec, given);
    CHECK(trial.guards_untouched);
    CHECK(trial.result.same_bits(expected(spec, given)));
  }
}

TEST_CASE("matmul: operands inside larger matrices, poorly aligned, give the same bits") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  // Values that do not sum exactly, so that another algorithm would show.
  const int64_t m = 96, n = 80, k = 1000, pitch = 1024;
  Tensor a({DType::F32, {m, k}});
  Tensor b({DType::F32, {k, n}});
  for (int64_t i = 0; i < a.size(); ++i) a.as<float>()[i] = std::sin(static_cast<float>(i));
  for (int64_t i = 0; i < b.size(); ++i) b.as<float>()[i] = std::cos(static_cast<float>(3 * i));
  const Operands given{a, b, Tensor({DType::F32, {m, n}})};
  const Tensor packed = run(stream, dense(m, n, k), given).result;

  const auto spread = [&](const Tensor& matrix, int64_t shift) {
    Tensor wide = Tensor::full({DType::F32, {matrix.shape()[0], pitch}}, NAN);
    for (int64_t row = 0; row < matrix.shape()[0]; ++row) {
      std::memcpy(wide.as<float>() + row * pitch + shift,
                  matrix.as<float>() + row * matrix.shape()[1],
                  static_cast<size_t>(matrix.shape()[1]) * sizeof(float));
    }
    return wide;
  };
  for (const int64_t shift : {0, 4, 1}) {
    CAPTURE(shift);
    MatmulSpec spec = dense(m, n, k);
    spec.row_stride_a = spec.row_stride_b = spec.row_stride_c = pitch;
    spec.alignment = shift == 1 ? 4 : 16;
    const MatmulPlan plan(stream.device(), spec);
    const DeviceBuffer workspace(stream.device(), plan.workspace_bytes());
    const Guarded a_wide(stream, spread(a, shift));
    const Guarded b_wide(stream, spread(b, shift));
    const Guarded d_wide(stream, Tensor::full({DType::F32, {m, pitch}}, -3));
    const uint64_t offset = static_cast<uint64_t>(shift) * sizeof(float);
    plan.run(stream, a_wide.address() + offset, b_wide.address() + offset,
             d_wide.address() + offset, workspace.address());
    const Tensor result = d_wide.content();
    CHECK(d_wide.guards_untouched());
    int64_t differing = 0;
    double error = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < pitch; ++j) {
        const bool inside = j >= shift && j < shift + n;
        const double want = inside ? packed.at(i * n + j - shift) : -3;
        const double got = result.at(i * pitch + j);
        differing += got != want;
        error = std::fmax(error, std::fabs(got - want));
      }
    }
    // Where the algorithm of the dense product cannot read the operands, another may stand in.
    if (shift != 1) CHECK(differing == 0);
    CHECK(error < 1e-3);
  }
}

TEST_CASE("matmul: accumulation in place") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  MatmulSpec spec = dense(33, 40, 24, 2);
  spec.input = DType::BF16;
  spec.accumulate = true;
  const Operands given = operands(spec);
  const MatmulPlan plan(stream.device(), spec);
  const DeviceBuffer workspace(stream.device(), plan.workspace_bytes());
  const Guarded a(stream, given.a), b(stream, given.b), d(stream, given.c);
  plan.run(stream, a.address(), b.address(), d.address(), workspace.address());
  CHECK(d.content().same_bits(expected(spec, given)));
}

TEST_CASE("matmul: empty sums and empty results") {
  SINTER_NEEDS_CUBLASLT();
  const Stream stream(Device::get());
  MatmulSpec spec = dense(3, 4, 0, 2);
  Operands given{Tensor({DType::F32, {0}}), Tensor({DType::F32, {0}}),
                 fill({DType::F32, {2, 3, 4}}, 5)};
  CHECK(run(stream, spec, given).result.same_bits(Tensor({DType::F32, {2, 3, 4}})));
  spec.accumulate = true;
  CHECK(run(stream, spec, given).result.same_bits(given.c));
  given.c = Tensor({DType::F32, {0}});
  CHECK(run(stream, dense(0, 4, 3), {given.a, fill({DType::F32, {12}}, 1), given.c})
            .guards_untouched);
}

TEST_CASE("matmul: runs inside a CUDA graph, with the same bits each time") {
  SINTER_NEEDS_CUBLASLT();
  Device& device = Device::get();
  const Stream stream(device);
  const MatmulSpec spec = dense(384, 1152, 2048);
  const Operands given = operands(spec);
  const MatmulPlan plan(device, spec);
  MESSAGE(spec.str() << ": " << plan.algorithm() << ", workspace " << plan.workspace_bytes());
  CHECK(plan.workspace_bytes() <= kMatmulWorkspace);
  const DeviceBuffer workspace(device, plan.workspace_bytes());
  const Guarded a(stream, given.a), b(stream, given.b), d(stream, given.c);
  const auto enqueue = [&] {
    plan.run(stream, a.address(), b.address(), d.address(), workspace.address());
  };
  enqueue();
  const Tensor eager = d.content();
  CHECK(eager.same_bits(expected(spec, given)));

  Graph graph(device);
  graph.add_fill(d.address(), 0xffffffffu, 4, static_cast<size_t>(eager.size()));
  graph.add_child(Graph::capture(stream, enqueue));
  const ExecutableGraph executable(graph);
  for (int i = 0; i < 3; ++i) {
    executable.launch(stream);
    CHECK(d.content().same_bits(eager));
  }
}

TEST_CASE("matmul: a product that cannot be is refused by name") {
  SINTER_NEEDS_CUBLASLT();
  MatmulSpec spec = dense(4, 4, 4);
  spec.output = DType::F64;
  CHECK_THROWS_AS(MatmulPlan(Device::get(), spec), InternalError);
  CHECK(dense(2, 3, 4, 5).str() == "f32[2x4 , 4x3] batch 5 -> f32");
  CHECK(cublaslt_version() >= 120400);
}

#endif  // SINTER_HAVE_CUDA
