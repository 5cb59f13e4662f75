#include <sinter/tests/gpu/attention_case.h>

#include <sinter/ir/philox.h>
#include <sinter/passes/autodiff.h>
#include <sinter/runtime/thread_pool.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace sinter::test {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint32_t kSeed[2] = {7, 1234}, kStep = 3;
constexpr int64_t kSite = 5, kOffset = 16;

// Numbers in [-size, size], rounded to bf16, by a name of their own.
std::vector<double> numbers(int64_t count, uint64_t name, double size) {
  std::vector<double> values(static_cast<size_t>(count));
  uint64_t state = 88172645463325252u + 1000003 * name;
  for (double& x : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    x = size * (static_cast<double>(state >> 11) * 0x1p-52 - 1.0);
  }
  TensorType type{DType::BF16, {count}};
  return Tensor::from_doubles(type, values).to_doubles();
}

// Everything about a case, as numbers.
struct Numbers {
  explicit Numbers(const AttentionCase& of)
      : c(of),
        q(numbers(c.batch * c.heads * c.queries * c.dim, 1, 2)),
        k(numbers(c.batch * c.kv_heads * c.keys * c.dim, 2, 2)),
        v(numbers(c.batch * c.kv_heads * c.keys * c.value_dim, 3, 1)),
        dy(numbers(c.batch * c.heads * c.queries * c.value_dim, 4, 1)) {
    if (c.mask) {
      for (double x : numbers(c.queries * c.keys, 5, 1)) mask.push_back(x < 0.2);
      // A key that nobody sees, and a query that sees nobody.
      for (int64_t i = 0; i < c.queries; ++i) mask[static_cast<size_t>(i * c.keys + 1)] = false;
      for (int64_t j = 0; j < c.keys; ++j) mask[static_cast<size_t>(2 * c.keys + j)] = false;
    }
    if (c.bias) bias = numbers(c.heads * c.queries * c.keys, 6, 1);
    for (int64_t h = 0; c.slopes && h < c.heads; ++h)
      slopes.push_back(std::exp2(-1.0 - static_cast<double>(h)));
  }

  int64_t length(int64_t b) const {
    return c.lengths.empty() ? c.keys : c.lengths[static_cast<size_t>(b)];
  }
  int64_t document(int64_t place) const {
    int64_t begin = 0;
    for (size_t d = 0; d < c.documents.size(); ++d) {
      if (place >= begin && place < begin + c.documents[d]) return static_cast<int64_t>(d);
      begin += c.documents[d];
    }
    return -1;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t own = i + length(b) - c.queries, window = c.attrs.window;
    if (j >= length(b) || (c.attrs.causal && j > own)) return false;
    if (window > 0 && (j <= own - window || (!c.attrs.causal && j >= own + window))) return false;
    if (!c.documents.empty() && (document(j) < 0 || document(j) != document(own))) return false;
    return mask.empty() || mask[static_cast<size_t>(i * c.keys + j)];
  }
  // Of a score of query i of head h and key j: its value, and its derivative by the product.
  std::pair<double, double> score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t kv = h / (c.heads / c.kv_heads);
    double scale = c.attrs.scale != 0 ? c.attrs.scale : 1 / std::sqrt(static_cast<double>(c.dim));
    double s = scale * dot(&q[q_row(b, h, i)], &k[k_row(b, kv, j)], c.dim);
    if (c.attrs.softcap > 0) {
      const double t = std::tanh(s / c.attrs.softcap);
      s = c.attrs.softcap * t;
      scale *= 1 - t * t;
    }
    if (c.bias) s += bias[static_cast<size_t>((h * c.queries + i) * c.keys + j)];
    if (c.slopes)
      s -= slopes[static_cast<size_t>(h)] *
           std::abs(static_cast<double>(i + length(b) - c.queries - j));
    return {s, scale};
  }
  // What dropout multiplies the probability by.
  double kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.attrs.p == 0) return 1;
    const RandomStream stream{{kSeed[0], kSeed[1]}, kStep, static_cast<uint32_t>(kSite), kOffset};
    const int64_t element = ((b * c.heads + h) * c.queries + i) * c.keys + j;
    return dropout_keep(stream, element, dropout_threshold(c.attrs.p)) ? 1 / (1 - c.attrs.p) : 0;
  }
  static double dot(const double* a, const double* b, int64_t n) {
    double sums[4] = {};  // four chains, for speed; sizes are multiples of 8
    for (int64_t i = 0; i < n; i += 4)
      for (int64_t u = 0; u < 4; ++u) sums[u] += a[i + u] * b[i + u];
    return sums[0] + sums[1] + sums[2] + sums[3];
  }
  size_t row(int64_t b, int64_t h, int64_t i, int64_t heads, int64_t rows, int64_t width) const {
    return static_cast<size_t>(((b * heads + h) * rows + i) * width);
  }
  size_t q_row(int64_t b, int64_t h, int64_t i) const {
    return row(b, h, i, c.heads, c.queries, c.dim);
  }
  size_t y_row(int64_t b, int64_t h, int64_t i) const {
    return row(b, h, i, c.heads, c.queries, c.value_dim);
  }
  size_t k_row(int64_t b, int64_t h, int64_t j) const {
    return row(b, h, j, c.kv_heads, c.keys, c.dim);
  }
  size_t v_row(int64_t b, int64_t h, int64_t j) const {
    return row(b, h, j, c.kv_heads, c.keys, c.value_dim);
  }

  const AttentionCase& c;
  std::vector<double> q, k, v, dy, bias, slopes;
  std::vector<bool> mask;
};

void add(double* to, const double* from, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

}  // namespace

void add_attention(Module& module, const AttentionCase& c, DType type) {
  Graph& graph = module.add_graph(c.name);
  auto input = [&](const char* name, DType element, Shape shape) {
    return graph.add_input(name, {element, std::move(shape)});
  };
  AttentionOperands in;
  in.q = input("q", type, {c.batch, c.heads, c.queries, c.dim});
  in.k = input("k", type, {c.batch, c.kv_heads, c.keys, c.dim});
  in.v = input("v", type, {c.batch, c.kv_heads, c.keys, c.value_dim});
  Value dy = input("dy", type, {c.batch, c.heads, c.queries, c.value_dim});
  if (c.mask) in.mask = input("mask", DType::Bool, {c.queries, c.keys});
  if (c.bias) in.bias = input("bias", type, {c.heads, c.queries, c.keys});
  if (c.slopes) in.slopes = input("slopes", DType::F32, {c.heads});
  if (!c.lengths.empty()) in.kv_length = input("lengths", DType::I32, {c.batch});
  if (!c.documents.empty())
    in.boundaries =
        input("boundaries", DType::I32, {c.batch, static_cast<int64_t>(c.documents.size()) + 1});
  if (c.attrs.p > 0) {
    module.next_random_site = kSite;
    in.seed = input("seed", DType::U32, {2});
    in.step = input("step", DType::U32, {});
    in.offset = input("offset", DType::I64, {});
  }
  AttentionAttrs attrs = c.attrs;
  attrs.lse = true;
  Value y = attention(in, attrs).y;
  const Value wrt[] = {in.q, in.k, in.v};
  std::vector<Value> found = vjp(graph, {&y, 1}, {&dy, 1}, wrt);
  graph.add_output("y", y);
  for (size_t i = 0; i < found.size(); ++i) graph.add_output(kAttentionResults[i + 1], found[i]);
}

Bindings attention_inputs(const AttentionCase& c, DType type) {
  const Numbers n(c);
  auto tensor = [&](Shape shape, const std::vector<double>& values) {
    return Tensor::from_doubles({type, std::move(shape)}, values);
  };
  Bindings in;
  in["q"] = tensor({c.batch, c.heads, c.queries, c.dim}, n.q);
  in["k"] = tensor({c.batch, c.kv_heads, c.keys, c.dim}, n.k);
  in["v"] = tensor({c.batch, c.kv_heads, c.keys, c.value_dim}, n.v);
  in["dy"] = tensor({c.batch, c.heads, c.queries, c.value_dim}, n.dy);
  if (c.mask) in["mask"] = Tensor::from(Shape{c.queries, c.keys}, n.mask);
  if (c.bias) in["bias"] = tensor({c.heads, c.queries, c.keys}, n.bias);
  if (c.slopes) in["slopes"] = Tensor::from_doubles({DType::F32, {c.heads}}, n.slopes);
  if (!c.lengths.empty()) in["lengths"] = Tensor::from<int32_t>({c.batch}, c.lengths);
  if (!c.documents.empty()) {
    std::vector<int32_t> places;
    for (int64_t b = 0; b < c.batch; ++b) {
      places.push_back(0);
      for (int32_t size : c.documents) places.push_back(places.back() + size);
    }
    in["boundaries"] =
        Tensor::from<int32_t>({c.batch, static_cast<int64_t>(c.documents.size()) + 1}, places);
  }
  if (c.attrs.p > 0) {
    in["seed"] = Tensor::from<uint32_t>({2}, {kSeed[0], kSeed[1]});
    in["step"] = Tensor::scalar<uint32_t>(kStep);
    in["offset"] = Tensor::scalar<int64_t>(kOffset);
  }
  return in;
}

AttentionAnswer attention_answer(const AttentionCase& c) {
  const Numbers n(c);
  AttentionAnswer out;
  std::vector<double>&y = out[0], &dq = out[1], &dk = out[2], &dv = out[3];
  y.resize(n.dy.size());
  dq.resize(n.q.size());
  dk.resize(n.k.size());
  dv.resize(n.v.size());
  const int64_t group = c.heads / c.kv_heads, rows = c.batch * c.heads * c.queries;
  std::vector<double> lse(static_cast<size_t>(rows), -kInfinity), delta(lse.size());
  // Query by query, then key by key: no two threads add to one row.
  ThreadPool::global().parallel_for(0, rows, [&](int64_t begin, int64_t end) {
    std::vector<double> p(static_cast<size_t>(c.keys)), ds(p.size()), factor(p.size());
    for (int64_t r = begin; r < end; ++r) {
      const int64_t i = r % c.queries, h = r / c.queries % c.heads, b = r / c.queries / c.heads;
      double top = -kInfinity, total = 0;
      for (int64_t j = 0; j < c.keys; ++j) {
        const auto at = static_cast<size_t>(j);
        p[at] = -kInfinity;
        if (!n.sees(b, i, j)) continue;
        std::tie(p[at], factor[at]) = n.score(b, h, i, j);
        top = std::max(top, p[at]);
      }
      if (top == -kInfinity) continue;
      for (double& x : p) total += x = x == -kInfinity ? 0 : std::exp(x - top);
      const auto row = static_cast<size_t>(r);
      lse[row] = top + std::log(total);
      for (int64_t j = 0; j < c.keys; ++j) {
        const auto at = static_cast<size_t>(j);
        if (p[at] == 0) continue;
        p[at] /= total;
        const double kept = n.kept(b, h, i, j);
        const double* value = &n.v[n.v_row(b, h / group, j)];
        add(&y[n.y_row(b, h, i)], value, p[at] * kept, c.value_dim);
        ds[at] = kept * Numbers::dot(&n.dy[n.y_row(b, h, i)], value, c.value_dim);
        delta[row] += p[at] * ds[at];
      }
      for (int64_t j = 0; j < c.keys; ++j) {
        const auto at = static_cast<size_t>(j);
        if (p[at] != 0)
          add(&dq[n.q_row(b, h, i)], &n.k[n.k_row(b, h / group, j)],
              factor[at] * p[at] * (ds[at] - delta[row]), c.dim);
      }
    }
  });
  ThreadPool::global().parallel_for(
      0, c.batch * c.kv_heads * c.keys, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t j = r % c.keys, kv = r / c.keys % c.kv_heads, b = r / c.keys / c.kv_heads;
          for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
            for (int64_t i = 0; i < c.queries; ++i) {
              if (!n.sees(b, i, j)) continue;
              const auto row = static_cast<size_t>((b * c.heads + h) * c.queries + i);
              const auto [s, factor] = n.score(b, h, i, j);
              const double p = std::exp(s - lse[row]), kept = n.kept(b, h, i, j);
              const double* cotangent = &n.dy[n.y_row(b, h, i)];
              const double dp =
                  kept * Numbers::dot(cotangent, &n.v[n.v_row(b, kv, j)], c.value_dim);
              add(&dv[n.v_row(b, kv, j)], cotangent, p * kept, c.value_dim);
              add(&dk[n.k_row(b, kv, j)], &n.q[n.q_row(b, h, i)], factor * p * (dp - delta[row]),
                  c.dim);
            }
        }
      });
  return out;
}

std::array<double, 4> attention_errors(const Bindings& got, const AttentionAnswer& want) {
  auto norm = [](const std::vector<double>& x) {
    double sum = 0;
    for (double e : x) sum += e * e;
    return std::sqrt(sum);
  };
  std::array<double, 4> errors{};
  for (size_t i = 0; i < errors.size(); ++i) {
    std::vector<double> difference = got.find(kAttentionResults[i])->second.to_doubles();
    for (size_t e = 0; e < difference.size(); ++e) difference[e] -= want[i][e];
    const double off = norm(difference);
    const double size =
        i == 1 || i == 2 ? std::max(norm(want[i]), norm(want[3]) / 10) : norm(want[i]);
    errors[i] = !std::isfinite(off) ? kInfinity : off == 0 ? 0 : off / size;
  }
  return errors;
}

}  // namespace sinter::test
