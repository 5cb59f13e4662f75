#pragma once
// Problems for the Hopper attention templates, and what they must give, in f64.

#include <sinter/tests/emulator/hopper.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace sinter::hopper_test {

struct Problem {
  int batch = 1, heads = 1, kv_heads = 1, queries = 64, keys = 64, dim = 64, value_dim = 64;
  bool causal = false;
  int window = 0;
  double softcap = 0;
  bool slopes = false;
  std::vector<int> length, documents;  // documents: sizes of those that fill each sequence
  double p = 0;
  device::int64_t offset = 0;
  bool packed = false;  // q, k and v side by side in the rows of one projection
  bool f16 = false;
  float magnitude = 1;
  bool garbage =
      false;  // NaN in rows of k and v that nobody sees, and of q and dy that see nothing
};

using Matrix = std::vector<double>;

// A strided 16-bit tensor [B,H,S,D] and its values.
struct Tensor {
  std::vector<uint16_t>* storage = nullptr;
  int64_t start = 0, stride_b = 0, stride_h = 0, stride_s = 0;
  int batch = 0, heads = 0, rows = 0, width = 0;
  int64_t at(int b, int h, int s) const {
    return start + b * stride_b + h * stride_h + s * stride_s;
  }
};
inline double value_of(uint16_t bits, bool f16) {
  return f16 ? device::f16_to_f32({bits}) : device::bf16_to_f32({bits});
}
inline uint16_t bits_of(float value, bool f16) {
  return f16 ? device::f32_to_f16(value).bits : device::f32_to_bf16(value).bits;
}

// Operands and results in device layout. Every buffer has NaN around what is used.
struct Data {
  Problem problem;
  std::vector<uint16_t> q_storage, k_storage, v_storage, o_storage, dy_storage;
  std::vector<uint16_t> dq_storage, dk_storage, dv_storage;
  Tensor q, k, v, o, dy, dq, dk, dv;
  std::vector<float> lse, slopes;
  std::vector<int32_t> length, documents;  // documents: where each begins, and the end of the last
  uint32_t seed[2] = {123, 456}, step = 7;
  device::int64_t offset = 0;
  static constexpr uint32_t kSite = 3;
};
Data make_data(const Problem& problem);

struct Expected {
  Matrix o, lse, dq, dk, dv;  // [B,H,S,D], dense
};
Expected expect(const Data& data);

// ||got - want|| / ||want||; infinite where a value is not finite or stray bytes were written.
double error_of(const Tensor& got, const Matrix& want, bool f16);
double error_of(const std::vector<float>& got, const Matrix& want);

// Params: an instance's FlashParams.
template <typename Params>
Params params_of(Data& data) {
  const Problem& problem = data.problem;
  Params p{};
  const auto strides = [](auto& to, const Tensor& t) { to = {t.stride_b, t.stride_h, t.stride_s}; };
  const auto place = [](const Tensor& t) { return t.storage->data() + t.start; };
  p.q = place(data.q);
  p.k = place(data.k);
  p.v = place(data.v);
  p.y = place(data.o);
  p.dy = place(data.dy);
  p.dq = place(data.dq);
  p.dk = place(data.dk);
  p.dv = place(data.dv);
  strides(p.q_strides, data.q);
  strides(p.k_strides, data.k);
  strides(p.v_strides, data.v);
  strides(p.y_strides, data.o);
  strides(p.dy_strides, data.dy);
  strides(p.dq_strides, data.dq);
  strides(p.dk_strides, data.dk);
  strides(p.dv_strides, data.dv);
  p.lse = data.lse.data();
  p.batch = problem.batch;
  p.heads = problem.heads;
  p.kv_heads = problem.kv_heads;
  p.queries = problem.queries;
  p.keys = problem.keys;
  p.window = problem.window;
  p.scale = 1.0 / std::sqrt(static_cast<double>(problem.dim));
  p.softcap = problem.softcap;
  p.kv_length = data.length.data();
  p.cu_lengths = data.documents.data();
  p.documents = static_cast<int>(problem.documents.size());
  p.slopes = data.slopes.data();
  p.seed = data.seed;
  p.step = &data.step;
  p.offset = &data.offset;
  p.site = Data::kSite;
  p.threshold = static_cast<unsigned>(std::lround(65536 * problem.p));
  p.keep_scale = problem.p < 1 ? 1.0 / (1.0 - problem.p) : 0.0;
  return p;
}

device::hopper::TensorMap map_of(const Tensor& tensor, int rows, int span);

}  // namespace sinter::hopper_test
