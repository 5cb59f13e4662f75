#include <sinter/tests/emulator/flash_case.h>

#include <doctest/doctest.h>
#include <sinter/codegen/flash_source.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/ir/philox.h>
#include <sinter/runtime/reference.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sinter::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Dense, as doubles: [batch, heads, rows, width].
struct Dense {
  int batch = 0, heads = 0, rows = 0, width = 0;
  std::vector<double> data;

  Dense() = default;
  Dense(int b, int h, int r, int w)
      : batch(b),
        heads(h),
        rows(r),
        width(w),
        data(static_cast<size_t>(b) * static_cast<size_t>(h) * static_cast<size_t>(r) *
             static_cast<size_t>(w)) {}
  size_t index(int b, int h, int r) const {
    return ((static_cast<size_t>(b) * static_cast<size_t>(heads) + static_cast<size_t>(h)) *
                static_cast<size_t>(rows) +
            static_cast<size_t>(r)) *
           static_cast<size_t>(width);
  }
  double* row(int b, int h, int r) { return &data[index(b, h, r)]; }
  const double* row(int b, int h, int r) const { return &data[index(b, h, r)]; }
  Shape shape() const { return {batch, heads, rows, width}; }
};

// Uniform in [-1, 1], rounded to the element type.
struct Numbers {
  uint64_t state = 88172645463325252u;
  double next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
  }
};
double rounded(DType type, double x) {
  double buffer = 0;
  store_from_double(type, &buffer, 0, x);
  return load_as_double(type, &buffer, 0);
}

struct FlashCase : FlashShape, FlashValues {};

// Everything about a case, in f64, and what the kernels' answers are held against.
struct Problem {
  const FlashSetup& kernels;
  const FlashCase& c;
  Dense q, k, v, dy, dlse;
  std::vector<uint8_t> mask;  // [batch, 1, queries, keys]
  std::vector<float> bias;    // [1, heads, queries, keys]
  std::vector<int> kv_length, cu_lengths;
  int documents = 3;
  std::vector<float> slopes;
  double scale = 0;
  uint32_t seed[2] = {7, 1234}, step = 3, site = 5;
  // Results.
  Dense y, lse, dq, dk, dv;

  bool has(unsigned option) const { return (kernels.options & option) != 0; }
  int length(int b) const { return has(kOptKvLength) ? kv_length[static_cast<size_t>(b)] : c.keys; }
  int document(int b, int place) const {
    const int* starts = &cu_lengths[static_cast<size_t>(b * (documents + 1))];
    for (int d = 0; d < documents; ++d)
      if (starts[d] <= place && place < starts[d + 1]) return d;
    return -1;
  }
  size_t score_index(int lead, int leads, int i, int j) const {
    (void)leads;
    return (static_cast<size_t>(lead) * static_cast<size_t>(c.queries) + static_cast<size_t>(i)) *
               static_cast<size_t>(c.keys) +
           static_cast<size_t>(j);
  }
  bool visible(int b, int i, int j) const {
    const int own = i + length(b) - c.queries;
    if (j >= length(b)) return false;
    if (has(kOptCausal) && j > own) return false;
    if (has(kOptWindow) && j <= own - c.window) return false;
    if (has(kOptWindow) && !has(kOptCausal) && j >= own + c.window) return false;
    if (has(kOptDocuments) && (document(b, j) < 0 || document(b, j) != document(b, own)))
      return false;
    return !has(kOptMask) || mask[score_index(b, c.batch, i, j)] != 0;
  }
  double added(int b, int h, int i, int j) const {
    double sum = 0;
    if (has(kOptBias)) sum += static_cast<double>(bias[score_index(h, c.heads, i, j)]);
    if (has(kOptSlopes))
      sum -= static_cast<double>(slopes[static_cast<size_t>(h)]) *
             std::abs(i + length(b) - c.queries - j);
    return sum;
  }

  Problem(const FlashSetup& kernels_, const FlashCase& c_);
  void solve();
  // The op's results in the element type: what the errors are compared with.
  std::vector<std::vector<double>> composed() const;
};

Problem::Problem(const FlashSetup& k_, const FlashCase& c_) : kernels(k_), c(c_) {
  Numbers numbers;
  auto random = [&](int heads, int rows, int width, double size) {
    Dense x(c.batch, heads, rows, width);
    for (double& e : x.data) e = rounded(kernels.element, size * numbers.next());
    return x;
  };
  q = random(c.heads, c.queries, kernels.head_dim, 2.0);
  k = random(c.kv_heads, c.keys, kernels.head_dim, 2.0);
  v = random(c.kv_heads, c.keys, kernels.value_dim, 1.0);
  dy = random(c.heads, c.queries, kernels.value_dim, 1.0);
  dlse = Dense(c.batch, c.heads, c.queries, 1);
  for (double& e : dlse.data) e = c.dlse ? static_cast<float>(numbers.next()) : 0.0;
  scale = 1.0 / std::sqrt(kernels.head_dim);
  const auto scores = static_cast<size_t>(c.queries) * static_cast<size_t>(c.keys);
  if (has(kOptMask)) {
    mask.resize(static_cast<size_t>(c.batch) * scores);
    for (uint8_t& m : mask) m = numbers.next() < 0.4 ? 1 : 0;
    // A key that nobody sees and a query that sees nobody.
    for (int i = 0; i < c.queries; ++i) mask[score_index(0, 1, i, c.keys / 2)] = 0;
    for (int j = 0; j < c.keys; ++j) mask[score_index(0, 1, c.queries / 3, j)] = 0;
  }
  if (has(kOptBias)) {
    bias.resize(static_cast<size_t>(c.heads) * scores);
    for (float& b : bias) b = static_cast<float>(numbers.next());
    // An additive mask.
    for (size_t i = 0; i < bias.size(); i += 7) bias[i] = -std::numeric_limits<float>::infinity();
  }
  for (int b = 0; b < c.batch; ++b)
    kv_length.push_back(b == 0 ? std::max(c.keys - 3, 0) : (c.keys + 1) / 2);
  for (int b = 0; b < c.batch; ++b)
    for (int cut : {0, c.keys / 3, c.keys / 3 + (c.keys > 5 ? 2 + b : 0), c.keys - b})
      cu_lengths.push_back(cut);
  for (int h = 0; h < c.heads; ++h) slopes.push_back(0.25f / static_cast<float>(h + 1));

  // What takes no part holds NaN.
  for (int b = 0; b < c.batch; ++b) {
    std::vector<bool> seen(static_cast<size_t>(c.keys));
    for (int i = 0; i < c.queries; ++i) {
      bool sees = false;
      for (int j = 0; j < c.keys; ++j) {
        if (!visible(b, i, j)) continue;
        sees = true;
        seen[static_cast<size_t>(j)] = true;
      }
      if (sees) continue;
      for (int h = 0; h < c.heads; ++h) {
        std::fill_n(q.row(b, h, i), q.width, kNan);
        std::fill_n(dy.row(b, h, i), dy.width, kNan);
      }
    }
    for (int j = 0; j < c.keys; ++j) {
      if (seen[static_cast<size_t>(j)]) continue;
      for (int h = 0; h < c.kv_heads; ++h) {
        std::fill_n(k.row(b, h, j), k.width, kNan);
        std::fill_n(v.row(b, h, j), v.width, kNan);
      }
    }
  }
}

void Problem::solve() {
  y = Dense(c.batch, c.heads, c.queries, kernels.value_dim);
  lse = Dense(c.batch, c.heads, c.queries, 1);
  dq = Dense(c.batch, c.heads, c.queries, kernels.head_dim);
  dk = Dense(c.batch, c.kv_heads, c.keys, kernels.head_dim);
  dv = Dense(c.batch, c.kv_heads, c.keys, kernels.value_dim);
  const RandomStream stream{{seed[0], seed[1]}, step, site, c.offset};
  const uint32_t threshold = dropout_threshold(c.p);
  const double keep_scale = c.p < 1 ? 1 / (1 - c.p) : 0;
  std::vector<double> p(static_cast<size_t>(c.keys)), dp(p.size()), slope(p.size()), kept(p.size());
  auto dot = [](const double* a, const double* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (int b = 0; b < c.batch; ++b)
    for (int h = 0; h < c.heads; ++h)
      for (int i = 0; i < c.queries; ++i) {
        const int kv = h / (c.heads / c.kv_heads);
        const double* q_row = q.row(b, h, i);
        const double* dy_row = dy.row(b, h, i);
        std::vector<int> list;
        double largest = -kInf;
        for (int j = 0; j < c.keys; ++j) {
          if (!visible(b, i, j)) continue;
          double s = scale * dot(q_row, k.row(b, kv, j), q.width);
          slope[static_cast<size_t>(j)] = 1;
          if (has(kOptSoftcap)) {
            const double t = std::tanh(s / c.softcap);
            s = c.softcap * t;
            slope[static_cast<size_t>(j)] = 1 - t * t;
          }
          s += added(b, h, i, j);
          p[static_cast<size_t>(j)] = s;
          largest = std::max(largest, s);
          list.push_back(j);
        }
        double total = 0;
        for (int j : list) {
          const double e = largest == -kInf ? 0 : std::exp(p[static_cast<size_t>(j)] - largest);
          p[static_cast<size_t>(j)] = e;
          total += e;
        }
        *lse.row(b, h, i) = total == 0 ? -kInf : largest + std::log(total);
        if (total == 0) continue;
        double delta = -*dlse.row(b, h, i);
        for (int j : list) {
          const auto at = static_cast<size_t>(j);
          p[at] /= total;
          kept[at] = 1;
          if (has(kOptDropout)) {
            const int64_t element =
                ((static_cast<int64_t>(b) * c.heads + h) * c.queries + i) * c.keys + j;
            kept[at] = dropout_keep(stream, element, threshold) ? keep_scale : 0;
          }
          const double* v_row = v.row(b, kv, j);
          for (int d = 0; d < v.width; ++d) y.row(b, h, i)[d] += p[at] * kept[at] * v_row[d];
          dp[at] = p[at] == 0 ? 0 : kept[at] * dot(dy_row, v_row, v.width);
          delta += p[at] * dp[at];
        }
        for (int j : list) {
          const auto at = static_cast<size_t>(j);
          const double ds = scale * slope[at] * p[at] * (dp[at] - delta);
          for (int d = 0; d < v.width; ++d) dv.row(b, kv, j)[d] += p[at] * kept[at] * dy_row[d];
          for (int d = 0; d < q.width; ++d) {
            dq.row(b, h, i)[d] += ds * k.row(b, kv, j)[d];
            dk.row(b, kv, j)[d] += ds * q_row[d];
          }
        }
      }
}

std::vector<std::vector<double>> Problem::composed() const {
  Module module;
  Graph& graph = module.add_graph("composed");
  std::vector<Tensor> inputs;
  auto input = [&](std::string name, Tensor tensor) {
    Value value = graph.add_input(std::move(name), tensor.type());
    inputs.push_back(std::move(tensor));
    return value;
  };
  auto tensor = [&](const Dense& x) {
    return Tensor::from_doubles({kernels.element, x.shape()}, x.data);
  };
  AttentionOperands in;
  in.q = input("q", tensor(q));
  in.k = input("k", tensor(k));
  in.v = input("v", tensor(v));
  Value dy_value = input("dy", tensor(dy)), dlse_value;
  if (c.dlse)
    dlse_value =
        input("dlse", Tensor::from_doubles({DType::F32, {c.batch, c.heads, c.queries}}, dlse.data));
  Tensor all_visible({DType::Bool, {c.batch, 1, c.queries, c.keys}});
  Tensor bias_all({DType::F32, {c.batch, c.heads, c.queries, c.keys}});
  for (int b = 0; b < c.batch; ++b)
    for (int i = 0; i < c.queries; ++i)
      for (int j = 0; j < c.keys; ++j) {
        all_visible.as<bool>()[score_index(b, c.batch, i, j)] = visible(b, i, j);
        for (int h = 0; h < c.heads; ++h)
          bias_all.as<float>()[score_index(b * c.heads + h, 0, i, j)] =
              static_cast<float>(added(b, h, i, j));
      }
  in.mask = input("mask", all_visible);
  if (has(kOptBias | kOptSlopes)) in.bias = input("bias", bias_all);
  AttentionAttrs attrs;
  attrs.scale = scale;
  attrs.softcap = has(kOptSoftcap) ? c.softcap : 0;
  if (has(kOptDropout)) {
    attrs.p = c.p;
    module.next_random_site = site;
    in.seed = input("seed", Tensor::from<uint32_t>({2}, {seed[0], seed[1]}));
    in.step = input("step", Tensor::scalar<uint32_t>(step));
    in.offset = input("offset", Tensor::scalar<int64_t>(c.offset));
  }
  Value y_value = attention(in, attrs).y;
  attrs.site = has(kOptDropout) ? site : 0;
  const AttentionGrads grads = attention_backward(in, dy_value, dlse_value, attrs);
  graph.add_output("y", y_value);
  graph.add_output("dq", grads.dq);
  graph.add_output("dk", grads.dk);
  graph.add_output("dv", grads.dv);
  std::vector<std::vector<double>> results;
  for (const Tensor& result : Reference().run(graph, inputs))
    results.push_back(result.to_doubles());
  return results;
}

// |a - b| / |b|, b the reference; NaN counts as infinite. A reference of almost nothing, as where a
// row sees one key, counts as a twentieth in each element.
double error_of(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i]) {
      size += std::isinf(b[i]) ? 0 : b[i] * b[i];
      continue;
    }
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (!(difference < kInf)) return kInf;
  const double least = 0.0025 * static_cast<double>(b.size());
  return difference == 0 ? 0 : std::sqrt(difference / std::max(size, least));
}

// A buffer of `type` with NaN in it, in which tensors lie.
struct Buffer {
  DType type;
  std::vector<uint64_t> words;
  size_t elements;

  Buffer(DType t, size_t count)
      : type(t),
        words((count * static_cast<size_t>(size_of(t)) + 15) / 16 * 2, ~uint64_t{0}),
        elements(count) {}
  void* at(size_t i) {
    return reinterpret_cast<char*>(words.data()) + i * static_cast<size_t>(size_of(type));
  }
  emulator::GlobalRange range() const {
    return {words.data(), elements * static_cast<size_t>(size_of(type))};
  }
  void write(size_t first, const device::FlashStrides& s, const Dense& from) {
    each(first, s, from, [&](size_t at, const double& value) {
      store_from_double(type, words.data(), static_cast<int64_t>(at), value);
    });
  }
  std::vector<double> read(size_t first, const device::FlashStrides& s, const Dense& like) {
    std::vector<double> values;
    each(first, s, like, [&](size_t at, const double&) {
      values.push_back(load_as_double(type, words.data(), static_cast<int64_t>(at)));
    });
    return values;
  }
  template <typename F>
  void each(size_t first, const device::FlashStrides& s, const Dense& x, F f) {
    for (int b = 0; b < x.batch; ++b)
      for (int h = 0; h < x.heads; ++h)
        for (int r = 0; r < x.rows; ++r)
          for (int d = 0; d < x.width; ++d)
            f(first + static_cast<size_t>(b * s.batch + h * s.head + r * s.row + d),
              x.row(b, h, r)[d]);
  }
};

}  // namespace

void check_flash(const FlashSetup& kernels, const FlashShape& shape, const FlashValues& values,
                 const FlashRunner& runner) {
  const FlashCase c{shape, values};
  CAPTURE(kernels.head_dim);
  CAPTURE(kernels.value_dim);
  CAPTURE(kernels.options);
  CAPTURE(c.batch);
  CAPTURE(c.heads);
  CAPTURE(c.kv_heads);
  CAPTURE(c.queries);
  CAPTURE(c.keys);
  Problem problem(kernels, c);
  problem.solve();

  // One projection with a row for each place: q of all heads, then k, then v; queries and keys
  // begin at the same row.
  const long long d = kernels.head_dim, dv = kernels.value_dim;
  const long long rows = std::max(c.queries, c.keys);
  const long long width = c.heads * d + c.kv_heads * (d + dv) + 8;
  const device::FlashStrides q_strides{rows * width, d, width};
  const device::FlashStrides v_strides{rows * width, dv, width};
  const device::FlashStrides y_strides{c.queries * c.heads * dv, dv, c.heads * dv};
  const auto k_first = static_cast<size_t>(c.heads * d);
  const size_t v_first = k_first + static_cast<size_t>(c.kv_heads * d);
  Buffer packed(kernels.element, static_cast<size_t>(c.batch * rows * width));
  Buffer gradient(kernels.element, packed.elements);
  Buffer y(kernels.element, static_cast<size_t>(c.batch * y_strides.batch));
  Buffer dy(kernels.element, y.elements);
  const DType wide = compute_type(kernels.element);
  const size_t lse_size = problem.lse.data.size();
  const device::FlashStrides lse_strides{static_cast<long long>(c.heads) * c.queries, c.queries, 1};
  Buffer lse(wide, lse_size), dlse(wide, lse_size), delta(wide, lse_size);
  packed.write(0, q_strides, problem.q);
  packed.write(k_first, q_strides, problem.k);
  packed.write(v_first, v_strides, problem.v);
  dy.write(0, y_strides, problem.dy);
  dlse.write(0, lse_strides, problem.dlse);

  // Enough for any tiles. Sums that are stored first need no clearing.
  const size_t tile_rows = static_cast<size_t>(c.queries + 127) / 128 * 128;
  std::vector<float> sums(
      static_cast<size_t>(c.batch * c.heads) * tile_rows * static_cast<size_t>((d + 63) / 64 * 64),
      kernels.deterministic ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  std::vector<unsigned> turns(static_cast<size_t>(c.batch * c.heads) * tile_rows / 16);

  device::FlashParams params{};
  params.q = packed.at(0);
  params.k = packed.at(k_first);
  params.v = packed.at(v_first);
  params.y = y.at(0);
  params.lse = lse.at(0);
  params.dy = dy.at(0);
  params.dlse = c.dlse ? dlse.at(0) : nullptr;
  params.delta = delta.at(0);
  params.sums = sums.data();
  params.turns = turns.data();
  params.section = 2;
  params.dq = gradient.at(0);
  params.dk = gradient.at(k_first);
  params.dv = gradient.at(v_first);
  params.q_strides = params.k_strides = params.dq_strides = params.dk_strides = q_strides;
  params.v_strides = params.dv_strides = v_strides;
  params.y_strides = params.dy_strides = y_strides;
  params.batch = c.batch;
  params.heads = c.heads;
  params.kv_heads = c.kv_heads;
  params.queries = c.queries;
  params.keys = c.keys;
  params.window = c.window;
  params.scale = problem.scale;
  params.softcap = c.softcap;
  const long long scores = static_cast<long long>(c.queries) * c.keys;
  params.mask = problem.mask.data();
  const long long mask_strides[] = {scores, 0, c.keys, 1};
  const long long bias_strides[] = {0, scores, c.keys, 1};
  std::copy_n(mask_strides, 4, params.mask_strides);
  std::copy_n(bias_strides, 4, params.bias_strides);
  params.bias = problem.bias.data();
  params.kv_length = problem.kv_length.data();
  params.cu_lengths = problem.cu_lengths.data();
  params.documents = problem.documents;
  params.slopes = problem.slopes.data();
  const std::vector<double> wide_slopes(problem.slopes.begin(), problem.slopes.end());
  if (kernels.element == DType::F64)
    params.slopes = reinterpret_cast<const float*>(wide_slopes.data());
  params.seed = problem.seed;
  params.step = &problem.step;
  const long long offset = c.offset;
  params.offset = &offset;
  params.site = problem.site;
  params.threshold = dropout_threshold(c.p);
  params.keep_scale = c.p < 1 ? 1 / (1 - c.p) : 0;

  auto range = [](const auto& list) {
    return emulator::GlobalRange{list.data(), list.size() * sizeof list[0]};
  };
  runner(params, {packed.range(),
                  gradient.range(),
                  y.range(),
                  dy.range(),
                  lse.range(),
                  dlse.range(),
                  delta.range(),
                  range(sums),
                  range(turns),
                  range(problem.mask),
                  range(problem.bias),
                  range(problem.kv_length),
                  range(problem.cu_lengths),
                  range(problem.slopes),
                  range(wide_slopes),
                  {problem.seed, sizeof problem.seed},
                  {&problem.step, sizeof problem.step},
                  {&offset, sizeof offset}});

  std::vector<std::vector<double>> composed;
  const bool narrow = size_of(kernels.element) == 2;
  if (narrow) composed = problem.composed();
  auto check = [&](const char* what, size_t result, const std::vector<double>& got,
                   const Dense& expected) {
    INFO(std::string(what));
    const double error = error_of(got, expected.data);
    double bound = kernels.element == DType::F64 ? 1e-12 : 1e-5;
    if (narrow) bound = 1.5 * error_of(composed[result], expected.data) + 1e-5;
    CHECK(error <= bound);
  };

  check("y", 0, y.read(0, y_strides, problem.y), problem.y);
  const double lse_error = error_of(lse.read(0, lse_strides, problem.lse), problem.lse.data);
  CHECK(lse_error <= (kernels.element == DType::F64 ? 1e-12 : 1e-5));
  check("dq", 1, gradient.read(0, q_strides, problem.dq), problem.dq);
  check("dk", 2, gradient.read(k_first, q_strides, problem.dk), problem.dk);
  check("dv", 3, gradient.read(v_first, v_strides, problem.dv), problem.dv);
  // What lies between stays as it was.
  Dense pad(c.batch, 1, static_cast<int>(rows), 8);
  const auto rest = gradient.read(static_cast<size_t>(width - 8), q_strides, pad);
  CHECK(std::all_of(rest.begin(), rest.end(), [](double x) { return std::isnan(x); }));
}

void check_flash(const FlashKernels& kernels, const FlashShape& shape, const FlashValues& values) {
  check_flash(
      kernels.setup, shape, values, [&](const device::FlashParams& params, const auto& memory) {
        for (const FlashEntry& entry :
             {kernels.forward, kernels.delta, kernels.backward, kernels.backward_end}) {
          emulator::Launch launch;
          launch.grid = static_cast<unsigned>(flash_blocks(entry.kernel, entry.tiles, shape.batch,
                                                           shape.heads, shape.kv_heads,
                                                           shape.queries, shape.keys));
          launch.block = static_cast<unsigned>(entry.tiles.threads());
          launch.shared_bytes = entry.tiles.shared_bytes;
          launch.order = values.order;
          launch.global = memory;
          emulator::launch(launch, [&] { entry.run(params); });
        }
      });
}

}  // namespace sinter::test
