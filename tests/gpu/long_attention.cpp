// Attention over long sequences: right, and nothing of the size of rows times rows anywhere.

#include <fmt/format.h>
#include <sinter/runtime/attention.h>
#include <sinter/runtime/memory.h>
#include <sinter/tests/device_cases.h>
#include <sinter/tests/gpu/attention_case.h>
#include <sinter/tests/gpu/support.h>

#include <algorithm>
#include <cmath>

using namespace sinter;
using namespace sinter::test;

#ifdef SINTER_HAVE_CUDA

namespace {

constexpr int64_t kHeads = 16, kDim = 128;

AttentionCase causal_of(int64_t rows) {
  AttentionCase c{.name = "long",
                  .heads = kHeads,
                  .kv_heads = kHeads,
                  .queries = rows,
                  .keys = rows,
                  .dim = kDim,
                  .value_dim = kDim};
  c.attrs.causal = true;
  return c;
}

CompileOptions options_of(const std::string& kernels) {
  CompileOptions options = options_for(DeviceKind::Cuda);
  choose_attention(options,
                   kernels == "composed" ? AttentionChoice::Composed : AttentionChoice::Flash);
  if (kernels == "portable") {
    options.pipeline = default_pipeline();
    for (PipelineStep& step : options.pipeline)
      if (step.pass->name == "native") step.options["use"] = kernels;
  }
  return options;
}

// bf16 in [-size, size].
Tensor numbers(int64_t rows, uint64_t name, float size) {
  Tensor out({DType::BF16, {1, kHeads, rows, kDim}});
  auto* to = static_cast<uint16_t*>(out.data());
  uint64_t state = 88172645463325252U + 1000003 * name;
  for (int64_t i = 0; i < out.size(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    to[i] = f32_to_bf16(size * (static_cast<float>(state >> 40) * 0x1p-23F - 1.0F));
  }
  return out;
}

Bindings inputs_of(int64_t rows) {
  return {{"q", numbers(rows, 1, 2)},
          {"k", numbers(rows, 2, 2)},
          {"v", numbers(rows, 3, 1)},
          {"dy", numbers(rows, 4, 1)}};
}

std::vector<double> row_of(const Tensor& x, int64_t head, int64_t row) {
  std::vector<double> out(kDim);
  const int64_t first = (head * x.type().shape[2] + row) * kDim;
  for (int64_t i = 0; i < kDim; ++i) out[static_cast<size_t>(i)] = x.at(first + i);
  return out;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// ||got - want|| / ||want||
double error_of(const std::vector<double>& got, const std::vector<double>& want) {
  std::vector<double> off(got.size());
  for (size_t i = 0; i < got.size(); ++i) off[i] = got[i] - want[i];
  return std::sqrt(dot(off, off) / dot(want, want));
}

// The last rows of dk and dv depend on the last queries alone: with these, y and dq of `count` rows
// before `end`, and, where `end` is the sequence's, dk and dv. The worst error against f64.
double worst_error(const Bindings& in, const Bindings& out, int64_t head, int64_t end,
                   int64_t count) {
  const Tensor &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &dy = in.at("dy");
  const int64_t rows = q.type().shape[2];
  std::vector<std::vector<double>> keys, values;
  for (int64_t j = 0; j < end; ++j) {
    keys.push_back(row_of(k, head, j));
    values.push_back(row_of(v, head, j));
  }
  const double scale = 1 / std::sqrt(static_cast<double>(kDim));
  std::vector<std::vector<double>> dk(static_cast<size_t>(count), std::vector<double>(kDim));
  std::vector<std::vector<double>> dv = dk;
  double worst = 0;
  for (int64_t i = end - count; i < end; ++i) {
    const std::vector<double> query = row_of(q, head, i), slope = row_of(dy, head, i);
    std::vector<double> p(static_cast<size_t>(i + 1)), y(kDim), dq(kDim);
    double sum = 0, delta = 0;
    for (size_t j = 0; j < p.size(); ++j) sum += p[j] = std::exp(scale * dot(query, keys[j]));
    for (size_t j = 0; j < p.size(); ++j) {
      p[j] /= sum;
      for (size_t d = 0; d < kDim; ++d) y[d] += p[j] * values[j][d];
    }
    delta = dot(y, slope);
    for (size_t j = 0; j < p.size(); ++j) {
      const double ds = scale * p[j] * (dot(slope, values[j]) - delta);
      for (size_t d = 0; d < kDim; ++d) dq[d] += ds * keys[j][d];
      const auto at = static_cast<int64_t>(j) - (end - count);
      for (size_t d = 0; at >= 0 && d < kDim; ++d) {
        dk[static_cast<size_t>(at)][d] += ds * query[d];
        dv[static_cast<size_t>(at)][d] += p[j] * slope[d];
      }
    }
    worst = std::max(worst, error_of(row_of(out.at("y"), head, i), y));
    worst = std::max(worst, error_of(row_of(out.at("dq"), head, i), dq));
  }
  for (int64_t n = 0; end == rows && n < count; ++n) {
    const auto at = static_cast<size_t>(n);
    worst = std::max(worst, error_of(row_of(out.at("dk"), head, end - count + n), dk[at]));
    worst = std::max(worst, error_of(row_of(out.at("dv"), head, end - count + n), dv[at]));
  }
  return worst;
}

}  // namespace

TEST_CASE("CUDA: attention over 65536 rows is right and takes a f32 copy of q at most") {
  SINTER_NEEDS_GPU();
  if (cuda::Device::get().info().major < 8) SINTER_SKIP("no kernel before sm_80");
  for (const std::string kernels : {"hopper", "portable", "composed"}) {
    if (kernels == "hopper" && cuda::Device::get().info().arch() != "sm_90a") continue;
    CAPTURE(kernels);
    for (int64_t rows : {512, 1024, 4096, 16384, 65536}) {
      CAPTURE(rows);
      Module module;
      add_attention(module, causal_of(rows), DType::BF16);
      const CompileOptions options = options_of(kernels);
      const int64_t plan = planned_memory(module, options).total();
      if (plan > cuda::Device::get().free_memory() * 9 / 10) {
        MESSAGE(kernels << ", " << rows << " rows: planned " << plan << " bytes, too many");
        continue;
      }
      const Bindings in = inputs_of(rows);
      Bindings out;
      const int64_t measured = taken([&] {
        auto session = make_session(compile(module, options));
        out = session->run("long", in);
        return session;
      });
      // Modules and the context's own growth, by the first and smallest one.
      if (rows == 512) continue;
      const int64_t q = rows * kHeads * kDim, given = 8 * q * size_of(DType::BF16);
      MESSAGE(kernels << ", " << rows << " rows: planned " << plan - given
                      << " beyond operands and "
                      << "results, measured " << measured - given);
      if (kernels != "composed") {
        constexpr int64_t kModules = 16 << 20;
        CHECK(measured - given <= 4 * q + 16 * rows * kHeads + kModules);
      }
      CHECK(worst_error(in, out, 0, 130, 3) < 2e-2);
      CHECK(worst_error(in, out, kHeads - 1, rows, 3) < 2e-2);
    }
  }
}

#endif
