#include <sinter/codegen/loops.h>

#include <doctest/doctest.h>
#include <sinter/ir/numeric.h>
#include <sinter/ir/philox.h>
#include <sinter/tests/codegen/exact_cases.h>

#include <cmath>
#include <cstring>
#include <limits>

using namespace sinter;
using namespace sinter::test;

namespace {

std::vector<float> ramp(int64_t n, float scale) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(scale * static_cast<float>((i * 37 + 11) % 101 - 50));
  return out;
}

std::vector<FaultSlot> no_faults(const LoopProgram& p) {
  return std::vector<FaultSlot>(p.faults.size(), FaultSlot{std::numeric_limits<int64_t>::max(), 0});
}

void run(const LoopProgram& p, std::vector<void*> buffers) {
  auto faults = no_faults(p);
  interpret(p, buffers, faults);
}

// The message of the failure, or "".
std::string failure(const LoopBuilder& b, std::vector<void*> buffers) {
  try {
    run(b.p, std::move(buffers));
  } catch (const InternalError& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define CHECK_MESSAGE_HAS(text, part)    \
  do {                                   \
    const std::string message_ = (text); \
    CAPTURE(message_);                   \
    CHECK(contains(message_, part));     \
  } while (false)

// A program over one output of n floats: body(lane) runs in one block of `lanes` lanes.
template <typename F>
LoopBuilder one_block(int lanes, int64_t n, F&& body) {
  LoopBuilder b("trial", "sm_80", lanes);
  const int out = b.output(DType::F32, {n});
  b.loop(Level::Grid, 1, [&](const IndexExpr&) {
    const Array shared = b.alloc(DType::F32, lanes, Space::Shared);
    b.loop(Level::Lane, lanes, [&](const IndexExpr& lane) { body(b, lane, out, shared); });
  });
  return b;
}

}  // namespace

TEST_CASE("interpreter: vector add with a tail, on both kinds of schedule") {
  for (const char* arch : {"sm_90a", "host"}) {
    for (int64_t n : {1, 3, 4, 255, 256, 257, 1001}) {
      CAPTURE(arch);
      CAPTURE(n);
      const LoopProgram p = vector_add(arch, DType::F32, n);
      std::vector<float> x = ramp(n, 0.5F), y = ramp(n, 3.0F);
      std::vector<float> z(static_cast<size_t>(n), -1);
      run(p, {x.data(), y.data(), z.data()});
      for (size_t i = 0; i < z.size(); ++i) CHECK(z[i] == x[i] + y[i]);
    }
  }
}

TEST_CASE("interpreter: an output may take over the storage of an input") {
  const LoopProgram p = vector_add("sm_90a", DType::F32, 301);
  std::vector<float> x = ramp(301, 0.5F), y = ramp(301, 3.0F), sum = x;
  run(p, {sum.data(), y.data(), sum.data()});
  for (size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == x[i] + y[i]);
}

TEST_CASE("interpreter: softmax of rows, both schedules give the same bits") {
  for (int64_t q : {1, 63, 64, 129, 200}) {
    CAPTURE(q);
    std::vector<float> x = ramp(3 * q, 0.25F);
    std::vector<float> cuda(x.size()), host(x.size());
    run(row_softmax("sm_80", DType::F32, 3, q), {x.data(), cuda.data()});
    run(row_softmax("host", DType::F32, 3, q), {x.data(), host.data()});
    CHECK(std::memcmp(cuda.data(), host.data(), x.size() * sizeof(float)) == 0);
    for (int64_t row = 0; row < 3; ++row) {
      const auto at = [&](int64_t c) { return static_cast<size_t>(row * q + c); };
      double top = -INFINITY, sum = 0;
      for (int64_t c = 0; c < q; ++c) top = std::max(top, static_cast<double>(x[at(c)]));
      for (int64_t c = 0; c < q; ++c) sum += std::exp(x[at(c)] - top);
      for (int64_t c = 0; c < q; ++c)
        CHECK(cuda[at(c)] == doctest::Approx(std::exp(x[at(c)] - top) / sum).epsilon(1e-6));
    }
  }
}

TEST_CASE("interpreter: column sums add rows in order") {
  std::vector<float> x = ramp(50 * 45, 1.1F), cuda(45), host(45);
  run(column_sum("sm_80", 50, 45), {x.data(), cuda.data()});
  run(column_sum("host", 50, 45), {x.data(), host.data()});
  for (size_t c = 0; c < 45; ++c) {
    float sum = 0;
    for (size_t r = 0; r < 50; ++r) sum += x[r * 45 + c];
    CHECK(cuda[c] == sum);
    CHECK(host[c] == sum);
  }
}

TEST_CASE("interpreter: bf16 values are rounded where they are defined") {
  const LoopProgram p = vector_add("sm_90a", DType::BF16, 9);
  std::vector<uint16_t> x(9, f32_to_bf16(256.0F)), y(9, f32_to_bf16(1.0F)), z(9);
  run(p, {x.data(), y.data(), z.data()});
  for (uint16_t v : z) CHECK(v == f32_to_bf16(256.0F));  // 257 lies between 256 and 258
}

TEST_CASE("interpreter: lanes fold pairwise, the lower lane on the left") {
  LoopBuilder b("trial", "sm_80", 32);
  const int in = b.input(DType::F32, {32});
  const int add = b.output(DType::F32, {32}), max = b.output(DType::F32, {32});
  b.loop(Level::Grid, 1, [&](const IndexExpr&) {
    b.loop(Level::Lane, 32, [&](const IndexExpr& lane) {
      const Var v = b.load(in, lane);
      b.store(add, lane, b.lane_reduce(Fn::Add, v, 8));
      b.store(max, lane, b.lane_reduce(Fn::Max, v, 2));
    });
  });
  std::vector<float> x(32), sums(32), tops(32);
  for (size_t i = 0; i < 32; ++i) x[i] = i % 3 == 0 ? 1e8F : 1.25F * static_cast<float>(i) - 9;
  x[0] = 0.0F;
  x[1] = -0.0F;
  run(b.p, {x.data(), sums.data(), tops.data()});
  for (size_t g = 0; g < 32; g += 8) {
    const float left = (x[g] + x[g + 1]) + (x[g + 2] + x[g + 3]);
    const float right = (x[g + 4] + x[g + 5]) + (x[g + 6] + x[g + 7]);
    for (size_t i = 0; i < 8; ++i) CHECK(sums[g + i] == left + right);
  }
  // max(0, -0) is 0, whichever lane has it.
  CHECK(!std::signbit(tops[0]));
  CHECK(!std::signbit(tops[1]));
}

TEST_CASE("interpreter: random numbers are those of ir/philox.h") {
  LoopBuilder b("trial", "host");
  const int half = b.output(DType::I32, {20});
  const int uniform = b.output(DType::F32, {20}), normal = b.output(DType::F32, {20});
  b.loop(Level::Cores, 20, [&](const IndexExpr& i) {
    const std::vector<Var> args = {b.literal(DType::U32, 5), b.literal(DType::U32, 4000000000.0),
                                   b.literal(DType::U32, 7), b.literal(DType::I64, 3)};
    b.store(half, i, b.random(RandomKind::Half, 2, args, i));
    b.store(uniform, i, b.random(RandomKind::Uniform, 2, args, i));
    b.store(normal, i, b.random(RandomKind::Normal, 2, args, i));
  });
  std::vector<int32_t> h(20);
  std::vector<float> u(20), n(20);
  run(b.p, {h.data(), u.data(), n.data()});
  const RandomStream stream{{5, 4000000000U}, 7, 2, 3};
  for (int64_t i = 0; i < 20; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto e = static_cast<uint64_t>(i + 3);
    CHECK(static_cast<uint32_t>(h[at]) ==
          dropout_half(stream.words(e / 8), static_cast<int>(e % 8)));
    CHECK(u[at] == random_uniform(stream, i));
    CHECK(n[at] == random_normal<float>(stream, i));
  }
}

TEST_CASE("interpreter: a check reports the lowest failing position and goes on with the low end") {
  LoopBuilder b("trial", "sm_80", 8);
  const int in = b.input(DType::I64, {8}), out = b.output(DType::I64, {8});
  const int fault = b.fault("embedding id", 2, 5);
  b.loop(Level::Grid, 1, [&](const IndexExpr&) {
    b.loop(Level::Lane, 8, [&](const IndexExpr& lane) {
      b.store(out, lane, b.check(b.load(in, lane), fault, 2, 5, -100, lane * 10));
    });
  });
  std::vector<int64_t> ids = {2, 4, -100, 5, 3, -1, 9, 2}, seen(8);
  auto faults = no_faults(b.p);
  std::vector<void*> buffers = {ids.data(), seen.data()};
  interpret(b.p, buffers, faults);
  CHECK(seen == std::vector<int64_t>{2, 4, -100, 2, 3, 2, 2, 2});
  CHECK(faults[0].position == 30);
  CHECK(faults[0].value == 5);
}

TEST_CASE("interpreter: guards, gathered indices and floor division") {
  LoopBuilder b("trial", "host");
  const int in = b.input(DType::F32, {10}), ids = b.input(DType::I32, {6});
  const int out = b.output(DType::F32, {6}), div = b.output(DType::I64, {6});
  const int mods = b.output(DType::I64, {6}), inside = b.output(DType::Bool, {6});
  b.loop(Level::Cores, 6, [&](const IndexExpr& i) {
    const IndexExpr at = IndexExpr::gathered(b.load(ids, i), 0, 10) * 2 - 3;
    Guard g;
    g.add(at, 0, 10);
    Cell otherwise{};
    otherwise.f = -7;
    b.store(out, i, b.load(in, at, g, otherwise));
    b.store(div, i, b.index(floordiv(at, 4)));
    b.store(mods, i, b.index(mod(at, 4)));
    b.store(inside, i, b.guard(g));
  });
  std::vector<float> x = ramp(10, 1), y(6);
  std::vector<int32_t> chosen = {0, 1, 2, 5, 6, 9};
  std::vector<int64_t> d(6), m(6);
  std::vector<uint8_t> flags(6);
  run(b.p, {x.data(), chosen.data(), y.data(), d.data(), m.data(), flags.data()});
  CHECK(y == std::vector<float>{-7, -7, x[1], x[7], x[9], -7});
  CHECK(d == std::vector<int64_t>{-1, -1, 0, 1, 2, 3});
  CHECK(m == std::vector<int64_t>{1, 3, 1, 3, 1, 3});
  CHECK(flags == std::vector<uint8_t>{0, 0, 1, 1, 1, 0});
}

TEST_CASE("interpreter refuses: an index out of bounds") {
  std::vector<float> out(8);
  auto b = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    l.store(o, lane + 1, l.literal(DType::F32, 1));
  });
  const std::string message = failure(b, {out.data()});
  CHECK_MESSAGE_HAS(message,
                    "trial: `store out0[i1 + 1] = v0`: block 0, lane 7: index 8 is outside");
  auto below = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    l.store(o, lane, l.load(o, lane - 1));
  });
  CHECK_MESSAGE_HAS(failure(below, {out.data()}), "lane 0: index -1 is outside");
  auto array = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int, Array) {
    l.set(l.alloc(DType::F32, 4), lane, l.literal(DType::F32, 1));
  });
  CHECK_MESSAGE_HAS(failure(array, {out.data()}), "lane 4: index 4 is outside 0..4 of a1");
}

TEST_CASE("interpreter refuses: a vector access off its alignment or past the end") {
  std::vector<float> out(32);
  auto b = one_block(4, 32, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    const Array a = l.alloc(DType::F32, 4);
    l.loop(Level::Vector, 4, [&](const IndexExpr& j) { l.set(a, j, l.literal(DType::F32, 0)); });
    l.store_vector(o, lane * 6, a, 4);
  });
  CHECK_MESSAGE_HAS(failure(b, {out.data()}), "lane 1: index 6 is not aligned to the width 4");
  auto past = one_block(4, 30, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    l.load_vector(l.alloc(DType::F32, 8), o, lane * 8, 8);
  });
  CHECK_MESSAGE_HAS(failure(past, {out.data()}), "lane 3: index 31 is outside 0..30");
}

TEST_CASE("interpreter refuses: array elements that were never written") {
  std::vector<float> out(8);
  auto b = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    const Array a = l.alloc(DType::F32, 2);
    l.set(a, 0, l.literal(DType::F32, 1));
    l.store(o, lane, l.get(a, 1));
  });
  CHECK_MESSAGE_HAS(failure(b, {out.data()}), "lane 0: reads a1[1], which was never written");
  auto shared = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array s) {
    l.when(lane, 0, 5, [&] { l.set(s, lane, l.literal(DType::F32, 1)); });
    l.barrier();
    l.store(o, lane, l.get(s, lane));
  });
  CHECK_MESSAGE_HAS(failure(shared, {out.data()}), "lane 5: reads a0[5], which was never written");
  // What an earlier block or iteration wrote does not count.
  auto stale = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    l.loop(Level::Serial, 2, [&](const IndexExpr& i) {
      const Array a = l.alloc(DType::F32, 1);
      l.when(i, 0, 1, [&] { l.set(a, 0, l.literal(DType::F32, 1)); });
      l.store(o, lane, l.get(a, 0));
    });
  });
  CHECK_MESSAGE_HAS(failure(stale, {out.data()}), "never written");
}

TEST_CASE("interpreter refuses: races on shared memory") {
  std::vector<float> out(8);
  const auto trial = [&](bool barrier, auto&& first, auto&& second) {
    auto b = one_block(8, 8, [&](LoopBuilder& l, const IndexExpr& lane, int o, Array s) {
      l.set(s, lane, l.literal(DType::F32, 1));
      l.barrier();
      first(l, lane, o, s);
      if (barrier) l.barrier();
      second(l, lane, o, s);
    });
    return failure(b, {out.data()});
  };
  const auto write = [](LoopBuilder& l, const IndexExpr& lane, int, Array s) {
    l.set(s, lane, l.literal(DType::F32, 2));
  };
  const auto read_other = [](LoopBuilder& l, const IndexExpr& lane, int o, Array s) {
    l.store(o, lane, l.get(s, mod(lane + 1, 8)));
  };
  CHECK(trial(true, write, read_other) == "");
  CHECK(trial(true, read_other, write) == "");
  CHECK_MESSAGE_HAS(trial(false, write, read_other),
                    "lane 0: reads a0[1], which lane 1 wrote without a barrier between");
  CHECK_MESSAGE_HAS(trial(false, read_other, write),
                    "lane 0: writes a0[0], which lane 7 read without a barrier between");
  const auto write_one = [](LoopBuilder& l, const IndexExpr&, int, Array s) {
    l.set(s, 0, l.literal(DType::F32, 2));
  };
  CHECK_MESSAGE_HAS(trial(true, write_one, write),
                    "lane 1: writes a0[0], which lane 0 wrote without a barrier between");
}

TEST_CASE("interpreter refuses: lanes that part at a barrier or a lane reduction") {
  std::vector<float> out(8);
  auto b = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int, Array) {
    l.when(lane, 0, 5, [&] { l.barrier(); });
  });
  CHECK_MESSAGE_HAS(failure(b, {out.data()}), "`barrier`: block 0, lane 0: only 5 of 8 lanes");
  auto reduce = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    const Var v = l.literal(DType::F32, 1);
    l.when(lane, 0, 7, [&] { l.store(o, lane, l.lane_reduce(Fn::Add, v, 8)); });
  });
  CHECK_MESSAGE_HAS(failure(reduce, {out.data()}), "only 7 of 8 lanes arrive here");
}

TEST_CASE("interpreter refuses: lanes or blocks that meet on an element of global memory") {
  std::vector<float> out(8);
  auto b = one_block(8, 8, [](LoopBuilder& l, const IndexExpr& lane, int o, Array) {
    l.store(o, floordiv(lane, 2), l.literal(DType::F32, 1));
  });
  CHECK_MESSAGE_HAS(failure(b, {out.data()}),
                    "lane 1: writes element 0, which block 0, lane 0 writes too");
  LoopBuilder blocks("trial", "sm_80", 4);
  const int o = blocks.output(DType::F32, {8});
  blocks.loop(Level::Grid, 2, [&](const IndexExpr& block) {
    blocks.loop(Level::Lane, 4, [&](const IndexExpr& lane) {
      blocks.store(o, lane + block * 3, blocks.literal(DType::F32, 1));
    });
  });
  CHECK_MESSAGE_HAS(failure(blocks, {out.data()}),
                    "block 1, lane 0: writes element 3, which block 0, lane 3 writes too");
  // In place, but each lane reads what its neighbour overwrites.
  for (int64_t shift : {1, 7}) {
    LoopBuilder place("trial", "sm_80", 8);
    const int in = place.input(DType::F32, {8}), to = place.output(DType::F32, {8});
    place.loop(Level::Grid, 1, [&](const IndexExpr&) {
      place.loop(Level::Lane, 8, [&](const IndexExpr& lane) {
        place.store(to, lane, place.load(in, mod(lane + shift, 8)));
      });
    });
    std::vector<float> other(8);
    CHECK(failure(place, {out.data(), other.data()}) == "");
    CHECK_MESSAGE_HAS(failure(place, {out.data(), out.data()}), "lane 0: writes element 0, which");
    CHECK_MESSAGE_HAS(failure(place, {out.data(), reinterpret_cast<char*>(out.data()) + 4}),
                      "overlaps out0 without being the same storage");
  }
}

TEST_CASE("interpreter refuses: programs of wrong form") {
  std::vector<float> out(8);
  LoopBuilder twice("trial", "host");
  const int o = twice.output(DType::F32, {8});
  twice.loop(Level::Cores, 8, [&](const IndexExpr& i) {
    Var v = -1;
    twice.when(i, 0, 4, [&] { v = twice.literal(DType::F32, 1); });
    twice.store(o, i, v);
  });
  CHECK_MESSAGE_HAS(failure(twice, {out.data()}), "v0 is read outside the block that wrote it");
  LoopBuilder types("trial", "host");
  const int t = types.output(DType::F32, {8});
  types.loop(Level::Cores, 8,
             [&](const IndexExpr& i) { types.store(t, i, types.literal(DType::I32, 1)); });
  CHECK_MESSAGE_HAS(failure(types, {out.data()}), "a value of i32 for a buffer of f32");
  LoopBuilder loose("trial", "host");
  const int l = loose.output(DType::F32, {8});
  loose.loop(Level::Cores, 8, [&](const IndexExpr&) {
    loose.store(l, IndexExpr::axis(5, 8), loose.literal(DType::F32, 1));
  });
  CHECK_MESSAGE_HAS(failure(loose, {out.data()}), "i5 is no loop around this statement");
}

TEST_CASE("interpreter: constants, conversions, integers, random bits and faults are exact") {
  for (const char* arch : {"host", "sm_90a"}) {
    for (ExactCase& t : exact_cases(arch)) {
      CAPTURE(t.program.symbol);
      std::vector<void*> buffers;
      for (auto& bytes : t.inputs) buffers.push_back(bytes.data());
      std::vector<std::vector<uint8_t>> got;
      for (auto& bytes : t.outputs) got.emplace_back(bytes.size());
      for (auto& bytes : got) buffers.push_back(bytes.data());
      auto faults = no_faults(t.program);
      interpret(t.program, buffers, faults);
      CHECK(difference(t, got) == "");
      REQUIRE(faults.size() == t.faults.size());
      for (size_t f = 0; f < faults.size(); ++f) {
        CHECK(faults[f].position == t.faults[f].position);
        CHECK(faults[f].value == t.faults[f].value);
      }
    }
  }
}
