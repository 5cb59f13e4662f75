#pragma once
// Kernels of each class, scheduled by hand for CUDA (any arch but "host") or for the host.

#include <sinter/tests/codegen/loop_builder.h>

namespace sinter::test {
namespace detail {

inline Var as_f32(LoopBuilder& b, Var v) {
  return b.type_of(v) == DType::F32 ? v : b.cast(v, DType::F32);
}
inline Var as_type(LoopBuilder& b, Var v, DType type) {
  return b.type_of(v) == type ? v : b.cast(v, type);
}

inline Guard below(const IndexExpr& e, int64_t end) {
  Guard g;
  g.add(e, 0, end);
  return g;
}

}  // namespace detail

// out = in0 + in1 over n elements: vectors of 4, then a scalar tail.
inline LoopProgram vector_add(std::string_view arch, DType type, int64_t n) {
  using namespace detail;
  const bool host = arch == "host";
  LoopBuilder b("vector_add", arch, host ? 1 : 64);
  const int x = b.input(type, {n}), y = b.input(type, {n}), z = b.output(type, {n});
  const auto add = [&](Var p, Var q) {
    return as_type(b, b.let(Fn::Add, {as_f32(b, p), as_f32(b, q)}), type);
  };
  constexpr int64_t kChunk = 256;
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  if (host) {
    b.loop(Level::Cores, chunks, [&](const IndexExpr& c) {
      b.loop(Level::Simd, kChunk, [&](const IndexExpr& i) {
        const IndexExpr e = c * kChunk + i;
        b.when(e, 0, n, [&] {
          const Var left = b.load(x, e), right = b.load(y, e);
          b.store(z, e, add(left, right));
        });
      });
    });
    return b.p;
  }
  b.loop(Level::Grid, chunks, [&](const IndexExpr& c) {
    b.loop(Level::Lane, 64, [&](const IndexExpr& lane) {
      const IndexExpr e = c * kChunk + lane * 4;
      b.when(e, 0, n - 3, [&] {
        const Array p = b.alloc(type, 4), q = b.alloc(type, 4), r = b.alloc(type, 4);
        b.load_vector(p, x, e, 4);
        b.load_vector(q, y, e, 4);
        b.loop(Level::Vector, 4, [&](const IndexExpr& j) {
          const Var left = b.get(p, j), right = b.get(q, j);
          b.set(r, j, add(left, right));
        });
        b.store_vector(z, e, r, 4);
      });
      b.when(e, n - 3, n, [&] {
        b.loop(Level::Vector, 4, [&](const IndexExpr& j) {
          b.when(e + j, 0, n, [&] {
            const Var left = b.load(x, e + j), right = b.load(y, e + j);
            b.store(z, e + j, add(left, right));
          });
        });
      });
    });
  });
  return b.p;
}

namespace detail {

// One accumulator for each lane on the host: the order of lanes and the pairs are those of CUDA.
inline LoopProgram host_softmax(DType type, int64_t rows, int64_t q) {
  constexpr int64_t kLanes = 64;
  LoopBuilder b("row_softmax", "host");
  const int x = b.input(type, {rows, q}), z = b.output(type, {rows, q});
  const int64_t chunks = (q + kLanes - 1) / kLanes;
  b.loop(Level::Cores, rows, [&](const IndexExpr& row) {
    const auto fold = [&](Fn combine, double start, auto&& element) {
      const Array sums = b.alloc(DType::F32, kLanes);
      b.loop(Level::Simd, kLanes,
             [&](const IndexExpr& l) { b.set(sums, l, b.literal(DType::F32, start)); });
      b.loop(Level::Serial, chunks, [&](const IndexExpr& c) {
        b.loop(Level::Simd, kLanes, [&](const IndexExpr& l) {
          const IndexExpr at = c * kLanes + l;
          b.when(at, 0, q, [&] {
            b.set(sums, l, b.let(combine, {b.get(sums, l), element(row * q + at)}));
          });
        });
      });
      for (int64_t half = 1; half < kLanes; half *= 2)
        b.loop(Level::Serial, kLanes / (2 * half), [&](const IndexExpr& i) {
          const IndexExpr at = i * (2 * half);
          b.set(sums, at, b.let(combine, {b.get(sums, at), b.get(sums, at + half)}));
        });
      return b.get(sums, 0);
    };
    const Var top = fold(Fn::Max, -__builtin_inf(),
                         [&](const IndexExpr& at) { return as_f32(b, b.load(x, at)); });
    const auto term = [&](const IndexExpr& at) {
      return b.let(Fn::Exp, {b.let(Fn::Sub, {as_f32(b, b.load(x, at)), top})});
    };
    const Var sum = fold(Fn::Add, 0.0, term);
    b.loop(Level::Simd, q, [&](const IndexExpr& c) {
      b.store(z, row * q + c, as_type(b, b.let(Fn::Div, {term(row * q + c), sum}), type));
    });
  });
  return b.p;
}

}  // namespace detail

// Softmax over rows of q elements: one block of two warps, or one core, for each row.
inline LoopProgram row_softmax(std::string_view arch, DType type, int64_t rows, int64_t q) {
  using namespace detail;
  if (arch == "host") return detail::host_softmax(type, rows, q);
  constexpr int kLanes = 64, kWarps = 2;
  LoopBuilder b("row_softmax", arch, kLanes);
  const int x = b.input(type, {rows, q}), z = b.output(type, {rows, q});
  const int64_t chunks = (q + kLanes - 1) / kLanes;
  b.loop(Level::Grid, rows, [&](const IndexExpr& row) {
    const Array tops = b.alloc(DType::F32, kWarps, Space::Shared);
    const Array sums = b.alloc(DType::F32, kWarps, Space::Shared);
    b.loop(Level::Lane, kLanes, [&](const IndexExpr& lane) {
      // Over the lane's elements, then its warp, then the warps.
      const auto fold = [&](Fn combine, double start, Array shared, auto&& element) {
        const Array mine = b.alloc(DType::F32, 1);
        b.set(mine, 0, b.literal(DType::F32, start));
        b.loop(Level::Serial, chunks, [&](const IndexExpr& c) {
          const IndexExpr at = c * kLanes + lane;
          b.when(at, 0, q, [&] {
            b.set(mine, 0, b.let(combine, {b.get(mine, 0), element(row * q + at)}));
          });
        });
        const Var warp = b.lane_reduce(combine, b.get(mine, 0), 32);
        b.when(mod(lane, 32), 0, 1, [&] { b.set(shared, floordiv(lane, 32), warp); });
        b.barrier();
        return b.let(combine, {b.get(shared, 0), b.get(shared, 1)});
      };
      const Var top = fold(Fn::Max, -__builtin_inf(), tops,
                           [&](const IndexExpr& at) { return as_f32(b, b.load(x, at)); });
      const auto term = [&](const IndexExpr& at) {
        return b.let(Fn::Exp, {b.let(Fn::Sub, {as_f32(b, b.load(x, at)), top})});
      };
      const Var sum = fold(Fn::Add, 0.0, sums, term);
      b.loop(Level::Serial, chunks, [&](const IndexExpr& c) {
        const IndexExpr at = c * kLanes + lane;
        b.when(at, 0, q, [&] {
          const IndexExpr e = row * q + at;
          b.store(z, e, as_type(b, b.let(Fn::Div, {term(e), sum}), type));
        });
      });
    });
  });
  return b.p;
}

// Sums of the columns of [r, q].
inline LoopProgram column_sum(std::string_view arch, int64_t r, int64_t q) {
  using namespace detail;
  const bool host = arch == "host";
  constexpr int64_t kLanes = 32;
  LoopBuilder b("column_sum", arch, host ? 1 : kLanes);
  const int x = b.input(DType::F32, {r, q}), z = b.output(DType::F32, {q});
  const int64_t chunks = (q + kLanes - 1) / kLanes;
  if (host) {
    b.loop(Level::Cores, chunks, [&](const IndexExpr& c) {
      const Array sums = b.alloc(DType::F32, kLanes);
      b.loop(Level::Simd, kLanes,
             [&](const IndexExpr& l) { b.set(sums, l, b.literal(DType::F32, 0)); });
      b.loop(Level::Serial, r, [&](const IndexExpr& row) {
        b.loop(Level::Simd, kLanes, [&](const IndexExpr& l) {
          const IndexExpr at = c * kLanes + l;
          b.when(at, 0, q, [&] {
            b.set(sums, l, b.let(Fn::Add, {b.get(sums, l), b.load(x, row * q + at)}));
          });
        });
      });
      b.loop(Level::Simd, kLanes, [&](const IndexExpr& l) {
        const IndexExpr at = c * kLanes + l;
        b.when(at, 0, q, [&] { b.store(z, at, b.get(sums, l)); });
      });
    });
    return b.p;
  }
  b.loop(Level::Grid, chunks, [&](const IndexExpr& c) {
    b.loop(Level::Lane, kLanes, [&](const IndexExpr& lane) {
      const IndexExpr at = c * kLanes + lane;
      const Array sum = b.alloc(DType::F32, 1);
      b.set(sum, 0, b.literal(DType::F32, 0));
      b.loop(Level::Serial, r, [&](const IndexExpr& row) {
        const Var v = b.load(x, row * q + at, below(at, q));
        b.set(sum, 0, b.let(Fn::Add, {b.get(sum, 0), v}));
      });
      b.when(at, 0, q, [&] { b.store(z, at, b.get(sum, 0)); });
    });
  });
  return b.p;
}

// out_k[e] = body(loads of in_0[e], in_1[e], …)[k] for e in 0..n-1.
template <typename F>
LoopProgram elementwise(std::string symbol, std::string_view arch, int64_t n,
                        const std::vector<DType>& inputs, const std::vector<DType>& outputs,
                        F&& body) {
  const bool host = arch == "host";
  const int64_t lanes = host ? 1024 : 128;
  LoopBuilder b(std::move(symbol), arch, host ? 1 : static_cast<int>(lanes));
  std::vector<int> in, out;
  for (DType type : inputs) in.push_back(b.input(type, {n}));
  for (DType type : outputs) out.push_back(b.output(type, {n}));
  b.loop(host ? Level::Cores : Level::Grid, (n + lanes - 1) / lanes, [&](const IndexExpr& c) {
    b.loop(host ? Level::Simd : Level::Lane, lanes, [&](const IndexExpr& i) {
      const IndexExpr e = c * lanes + i;
      b.when(e, 0, n, [&] {
        std::vector<Var> loaded;
        for (int buffer : in) loaded.push_back(b.load(buffer, e));
        const std::vector<Var> results = body(b, loaded, e);
        for (size_t k = 0; k < out.size(); ++k) b.store(out[k], e, results[k]);
      });
    });
  });
  return b.p;
}

// Vector accesses of one type and width, and more shared memory than is static; for CUDA.
inline LoopProgram vectors(std::string_view arch, DType type, int width) {
  LoopBuilder b(fmt::format("vectors_{}_{}", to_string(type), width), arch, 64);
  const int in = b.input(type, {64 * width}), out = b.output(type, {64 * width});
  b.loop(Level::Grid, 1, [&](const IndexExpr&) {
    const Array big = b.alloc(DType::F32, 14000, Space::Shared);
    const Array tile = b.alloc(type, 64, Space::Shared);
    b.loop(Level::Lane, 64, [&](const IndexExpr& lane) {
      const Array a = b.alloc(type, width);
      b.load_vector(a, in, lane * width, width);
      b.set(big, lane, b.cast(b.get(a, 0), DType::F32));
      b.set(tile, lane, b.get(a, 0));
      b.barrier();
      b.set(a, 0, b.get(tile, mod(lane + 1, 64)));
      b.store_vector(out, lane * width, a, width);
    });
  });
  return b.p;
}

}  // namespace sinter::test
