#include <sinter/tests/templates/flash_hopper.h>

#include <algorithm>
#include <limits>

namespace sinter::hopper_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor dense(std::vector<uint16_t>& storage, int batch, int heads, int rows, int width) {
  constexpr int64_t kMargin = 64;
  const int64_t size = static_cast<int64_t>(batch) * heads * rows * width;
  storage.assign(static_cast<size_t>(size + 2 * kMargin), 0xffff);
  return {&storage,
          kMargin,
          static_cast<int64_t>(heads) * rows * width,
          static_cast<int64_t>(rows) * width,
          width,
          batch,
          heads,
          rows,
          width};
}
void fill(const Tensor& t, std::mt19937& random, float magnitude, bool f16) {
  std::normal_distribution<float> normal(0, magnitude);
  for (int b = 0; b < t.batch; ++b)
    for (int s = 0; s < t.rows; ++s)
      for (int h = 0; h < t.heads; ++h)
        for (int d = 0; d < t.width; ++d)
          (*t.storage)[static_cast<size_t>(t.at(b, h, s) + d)] = bits_of(normal(random), f16);
}

// Which keys query i of batch b sees, and the score's parts.
struct Scores {
  const Data& data;
  int length(int b) const {
    return data.length.empty() ? data.problem.keys : data.length[static_cast<size_t>(b)];
  }
  int own(int b, int i) const { return i + length(b) - data.problem.queries; }
  bool sees(int b, int i, int j) const {
    const Problem& p = data.problem;
    const int at = own(b, i);
    if (j >= length(b)) return false;
    if (p.causal && j > at) return false;
    if (p.window > 0 && (j <= at - p.window || (!p.causal && j >= at + p.window))) return false;
    if (!data.documents.empty()) {
      const auto count = static_cast<ptrdiff_t>(p.documents.size());
      const int32_t* starts = data.documents.data() + b * (count + 1);
      bool together = false;
      for (ptrdiff_t of = 0; of < count; ++of)
        together = together || (starts[of] <= std::min(at, j) && std::max(at, j) < starts[of + 1]);
      if (!together) return false;
    }
    return true;
  }
};

double row_product(const Tensor& a, int64_t at_a, const Tensor& b, int64_t at_b, bool f16) {
  double sum = 0;
  for (int d = 0; d < a.width; ++d)
    sum += value_of((*a.storage)[static_cast<size_t>(at_a + d)], f16) *
           value_of((*b.storage)[static_cast<size_t>(at_b + d)], f16);
  return sum;
}
void add_row(Matrix& to, int64_t row, const Tensor& from, int64_t at, double factor, bool f16) {
  for (int d = 0; d < from.width; ++d)
    to[static_cast<size_t>(row * from.width + d)] +=
        factor * value_of((*from.storage)[static_cast<size_t>(at + d)], f16);
}
int64_t dense_row(const Tensor& t, int b, int h, int s) {
  return (static_cast<int64_t>(b) * t.heads + h) * t.rows + s;
}
size_t dense_size(const Tensor& t) {
  return static_cast<size_t>(t.batch) * t.heads * t.rows * t.width;
}

}  // namespace

Data make_data(const Problem& p) {
  Data data;
  data.problem = p;
  std::mt19937 random(static_cast<unsigned>(p.queries * 31 + p.keys));
  if (p.packed) {
    // [B, S, (H + 2 Hkv) D], and its gradient likewise.
    const int64_t row = static_cast<int64_t>(p.heads + 2 * p.kv_heads) * p.dim;
    const int64_t size = row * p.queries * p.batch;
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<uint16_t>& storage = pass == 0 ? data.q_storage : data.dq_storage;
      storage.assign(static_cast<size_t>(size + 128), 0xffff);
      const auto part = [&](int64_t start, int heads) {
        return Tensor{&storage, 64 + start, row * p.queries, p.dim, row,
                      p.batch,  heads,      p.queries,       p.dim};
      };
      (pass == 0 ? data.q : data.dq) = part(0, p.heads);
      (pass == 0 ? data.k : data.dk) = part(static_cast<int64_t>(p.heads) * p.dim, p.kv_heads);
      (pass == 0 ? data.v : data.dv) =
          part(static_cast<int64_t>(p.heads + p.kv_heads) * p.dim, p.kv_heads);
    }
  } else {
    data.q = dense(data.q_storage, p.batch, p.heads, p.queries, p.dim);
    data.k = dense(data.k_storage, p.batch, p.kv_heads, p.keys, p.dim);
    data.v = dense(data.v_storage, p.batch, p.kv_heads, p.keys, p.value_dim);
    data.dq = dense(data.dq_storage, p.batch, p.heads, p.queries, p.dim);
    data.dk = dense(data.dk_storage, p.batch, p.kv_heads, p.keys, p.dim);
    data.dv = dense(data.dv_storage, p.batch, p.kv_heads, p.keys, p.value_dim);
  }
  data.o = dense(data.o_storage, p.batch, p.heads, p.queries, p.value_dim);
  data.dy = dense(data.dy_storage, p.batch, p.heads, p.queries, p.value_dim);
  for (const Tensor* t : {&data.q, &data.k, &data.v, &data.dy})
    fill(*t, random, p.magnitude, p.f16);
  data.lse.assign(static_cast<size_t>(p.batch) * p.heads * p.queries, -7);
  for (int h = 0; p.slopes && h < p.heads; ++h)
    data.slopes.push_back(std::exp2(-1.0f - static_cast<float>(h)));
  for (int length : p.length) data.length.push_back(length);
  for (int b = 0; !p.documents.empty() && b < p.batch; ++b) {
    data.documents.push_back(0);
    for (int size : p.documents) data.documents.push_back(data.documents.back() + size);
  }
  data.offset = p.offset;
  if (p.garbage) {
    const Scores scores{data};
    const auto spoil = [](const Tensor& t, int b, int s) {
      for (int h = 0; h < t.heads; ++h)
        for (int d = 0; d < t.width; ++d)
          (*t.storage)[static_cast<size_t>(t.at(b, h, s) + d)] = 0xffff;
    };
    for (int b = 0; b < p.batch; ++b) {
      for (int j = 0; j < p.keys; ++j) {
        bool seen = false;
        for (int i = 0; i < p.queries; ++i) seen = seen || scores.sees(b, i, j);
        if (!seen) spoil(data.k, b, j), spoil(data.v, b, j);
      }
      for (int i = 0; i < p.queries; ++i) {
        bool sees = false;
        for (int j = 0; j < p.keys; ++j) sees = sees || scores.sees(b, i, j);
        if (!sees) spoil(data.q, b, i), spoil(data.dy, b, i);
      }
    }
  }
  return data;
}

Expected expect(const Data& data) {
  const Problem& p = data.problem;
  const Scores scores{data};
  Expected want;
  want.o.assign(dense_size(data.o), 0);
  want.lse.assign(static_cast<size_t>(p.batch) * p.heads * p.queries, -kInfinity);
  want.dq.assign(dense_size(data.q), 0);
  want.dk.assign(dense_size(data.k), 0);
  want.dv.assign(dense_size(data.v), 0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.dim));
  const int threshold = static_cast<int>(std::lround(65536 * p.p));
  std::vector<double> e(static_cast<size_t>(p.keys)), saturation(e.size()), keep(e.size(), 1.0);
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads; ++h)
      for (int i = 0; i < p.queries; ++i) {
        const int kv = h / (p.heads / p.kv_heads);
        const int64_t q_at = data.q.at(b, h, i), dy_at = data.dy.at(b, h, i);
        const int64_t row = dense_row(data.q, b, h, i);
        double top = -kInfinity, total = 0;
        for (int j = 0; j < p.keys; ++j) {
          const auto at = static_cast<size_t>(j);
          e[at] = -kInfinity;
          if (!scores.sees(b, i, j)) continue;
          double s = scale * row_product(data.q, q_at, data.k, data.k.at(b, kv, j), p.f16);
          saturation[at] = 0;
          if (p.softcap > 0) {
            saturation[at] = std::tanh(s / p.softcap);
            s = p.softcap * saturation[at];
          }
          if (p.slopes)
            s -= static_cast<double>(data.slopes[static_cast<size_t>(h)]) *
                 std::abs(j - scores.own(b, i));
          e[at] = s;
          top = std::max(top, s);
          if (p.p > 0) {
            const uint64_t element = static_cast<uint64_t>(p.offset) +
                                     static_cast<uint64_t>(row) * static_cast<uint64_t>(p.keys) +
                                     static_cast<uint64_t>(j);
            const bool kept =
                device::sn_half(device::sn_philox(data.seed[0], data.seed[1], data.step,
                                                  Data::kSite, element >> 3),
                                element) >= threshold;
            keep[at] = kept ? 1.0 / (1.0 - p.p) : 0.0;
          }
        }
        if (top == -kInfinity) continue;
        for (double& x : e) total += x = x == -kInfinity ? 0.0 : std::exp(x - top);
        want.lse[static_cast<size_t>(row)] = top + std::log(total);
        double delta = 0;
        std::vector<double> dp(e.size());
        for (int j = 0; j < p.keys; ++j) {
          const auto at = static_cast<size_t>(j);
          e[at] /= total;
          if (e[at] == 0) continue;
          const int64_t v_at = data.v.at(b, kv, j);
          add_row(want.o, row, data.v, v_at, e[at] * keep[at], p.f16);
          dp[at] = keep[at] * row_product(data.dy, dy_at, data.v, v_at, p.f16);
          delta += e[at] * dp[at];
          add_row(want.dv, dense_row(data.v, b, kv, j), data.dy, dy_at, e[at] * keep[at], p.f16);
        }
        for (int j = 0; j < p.keys; ++j) {
          const auto at = static_cast<size_t>(j);
          if (e[at] == 0) continue;
          const double ds =
              scale * e[at] * (dp[at] - delta) * (1.0 - saturation[at] * saturation[at]);
          add_row(want.dq, row, data.k, data.k.at(b, kv, j), ds, p.f16);
          add_row(want.dk, dense_row(data.k, b, kv, j), data.q, q_at, ds, p.f16);
        }
      }
  return want;
}

double error_of(const Tensor& got, const Matrix& want, bool f16) {
  double difference = 0, norm = 0;
  for (int b = 0; b < got.batch; ++b)
    for (int h = 0; h < got.heads; ++h)
      for (int s = 0; s < got.rows; ++s)
        for (int d = 0; d < got.width; ++d) {
          const double x = value_of((*got.storage)[static_cast<size_t>(got.at(b, h, s) + d)], f16);
          const double y = want[static_cast<size_t>(dense_row(got, b, h, s) * got.width + d)];
          difference += (x - y) * (x - y);
          norm += y * y;
        }
  for (size_t i = 0; i < 64; ++i)  // the margins
    if ((*got.storage)[i] != 0xffff || (*got.storage)[got.storage->size() - 1 - i] != 0xffff)
      return kInfinity;
  if (!std::isfinite(difference)) return kInfinity;
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}
double error_of(const std::vector<float>& got, const Matrix& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == -kInfinity && got[i] == -std::numeric_limits<float>::infinity()) continue;
    const double difference = std::fabs(got[i] - want[i]);
    if (!std::isfinite(difference)) return kInfinity;
    worst = std::max(worst, difference);
  }
  return worst;
}

device::hopper::TensorMap map_of(const Tensor& t, int rows, int span) {
  device::hopper::TensorMap map;
  map.base = t.storage->data() + t.start;
  const int64_t dims[4] = {t.width, t.rows, t.heads, t.batch};
  const int64_t strides[4] = {2, 2 * t.stride_s, 2 * t.stride_h, 2 * t.stride_b};
  const int box[4] = {span / 2, rows, 1, 1};
  for (int d = 0; d < 4; ++d) {
    map.dims[d] = dims[d];
    map.strides[d] = strides[d];
    map.box[d] = box[d];
  }
  map.span = span;
  return map;
}

}  // namespace sinter::hopper_test
