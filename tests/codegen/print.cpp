#include <doctest/doctest.h>
#include <sinter/codegen/kernel.h>
#include <sinter/codegen/loops.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/tests/codegen/exact_cases.h>

#include <cmath>
#include <limits>
#include <locale>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("loops print as indented text") {
  LoopBuilder b("trial_1f3a", "sm_80", 64);
  const int in = b.input(DType::BF16, {7, 64}), ids = b.input(DType::I64, {7});
  const int out = b.output(DType::F32, {7});
  const int fault = b.fault("token", 0, 64);
  b.loop(Level::Grid, 7, [&](const IndexExpr& row) {
    const Array shared = b.alloc(DType::F32, 2, Space::Shared);
    b.loop(Level::Lane, 64, [&](const IndexExpr& lane) {
      const Var id = b.check(b.load(ids, row), fault, 0, 64, -100, row);
      const IndexExpr at = IndexExpr::gathered(id, 0, 64);
      Guard g;
      g.add(at + lane, 0, 64);
      Cell otherwise{};
      otherwise.f = 0.5;
      const Var x = b.cast(b.load(in, row * 64 + at + lane, g, otherwise), DType::F32);
      const Var sum = b.lane_reduce(Fn::Add, x, 32);
      b.when(mod(lane, 32), 0, 1, [&] { b.set(shared, floordiv(lane, 32), sum); });
      b.barrier();
      b.when(lane, 0, 1, [&] {
        b.store(out, row, b.let(Fn::Add, {b.get(shared, 0), b.get(shared, 1)}));
      });
    });
  });
  CHECK(
      print(b.p) ==
      R"(loops @trial_1f3a(in0: bf16[7,64], in1: i64[7], out out0: f32[7]) sm_80 {grid = 7, block = 64, shared = 8} {
  fault 0 "token" in 0..64
  for grid i0 in 0..7 {
    alloc shared a0 : f32[2]
    for lane i1 in 0..64 {
      let v0 = load in1[i0] : i64
      let v1 = check v0 in 0..64 {ignore = -100, fault = 0} at i0 : i64
      let v2 = load in0[64*i0 + i1 + v1] if i1 + v1 < 64 else 0.5 : bf16
      let v3 = cast v2 : f32
      let v4 = lane_reduce add v3 {width = 32} : f32
      if (i1 % 32) < 1 {
        a0[(i1 / 32)] = v4
      }
      barrier
      if i1 < 1 {
        let v5 = a0[0] : f32
        let v6 = a0[1] : f32
        let v7 = add v5, v6 : f32
        store out0[i0] = v7
      }
    }
  }
}
)");
}

TEST_CASE("kernels print their nodes with types and what they vary over") {
  Kernel k;
  k.kind = Kernel::Row;
  k.stem = "mean_sub";
  k.extent[0] = 4;
  k.extent[1] = 100;
  k.buffers = {{"in0", {DType::BF16, {4, 100}}, false}, {"out0", {DType::F32, {4}}, true}};
  const IndexExpr p = IndexExpr::axis(kAxisP, 4), q = IndexExpr::axis(kAxisQ, 100);
  KernelNode load;
  load.kind = KernelNode::Load;
  load.type = DType::BF16;
  load.domain = axis_bit(kAxisP) | axis_bit(kAxisQ);
  load.buffer = 0;
  load.index = p * 100 + q;
  load.guard.add(q, 1, 100);
  KernelNode wide = load;
  wide.kind = KernelNode::Scalar;
  wide.fn = Fn::Cast;
  wide.type = DType::F32;
  wide.args = {0};
  KernelNode sum = wide;
  sum.kind = KernelNode::Reduce;
  sum.fn = Fn::Add;
  sum.args = {1};
  sum.axis = kAxisQ;
  sum.order = {32, 4};
  sum.domain = axis_bit(kAxisP);
  KernelNode factor = sum;
  factor.kind = KernelNode::Literal;
  factor.literal.f = 0.01;
  factor.domain = 0;
  KernelNode mean = sum;
  mean.kind = KernelNode::Scalar;
  mean.fn = Fn::Mul;
  mean.args = {2, 3};
  k.nodes = {load, wide, sum, factor, mean};
  KernelStore store;
  store.node = 4;
  store.buffer = 1;
  store.at = p;
  store.axes = axis_bit(kAxisP);
  k.stores = {store};
  CHECK(print(k) == R"(kernel @mean_sub(p: 4, q: 100) {
  in0: bf16[4,100]
  out out0: f32[4]
  %0 = load in0[100*p + q] if 1 <= q else 0.0 : bf16
  %1 = cast %0 : f32
  %2 = reduce add %1 over q {lanes = 32, vector = 4} : f32  // over p
  %3 = 0.01 : f32
  %4 = mul %2, %3 : f32  // over p
  store out0[p] = %4 over p
}
)");
}

namespace {

// What follows the prelude.
std::string body_of(const std::string& text, const std::string& head) {
  const size_t at = text.find(head);
  return at == std::string::npos ? "" : text.substr(at);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// 1.234,5
struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InternalError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("CUDA C: a vector add with a tail reads as one would write it") {
  const std::string text =
      body_of(print_cuda(vector_add("sm_90a", DType::BF16, 1001)), "extern \"C\" __global__");
  CHECK(
      text ==
      R"(extern "C" __global__ void __launch_bounds__(64) vector_add(const bf16* in0, const bf16* in1, bf16* out0) {
  const int i0 = static_cast<int>(blockIdx.x);
  const int i1 = static_cast<int>(threadIdx.x);
  if (i0 * 256 + i1 * 4 < 998) {
    float a0[4];
    float a1[4];
    float a2[4];
    sn_load_vector<4>(a0, in0 + (i0 * 256 + i1 * 4));
    sn_load_vector<4>(a1, in1 + (i0 * 256 + i1 * 4));
    #pragma unroll
    for (int i2 = 0; i2 < 4; ++i2) {
      const float v0 = a0[i2];
      const float v1 = a1[i2];
      const float v2 = v0;
      const float v3 = v1;
      const float v4 = v2 + v3;
      const float v5 = sn_round_bf16(v4);
      a2[i2] = v5;
    }
    sn_store_vector<4>(out0 + (i0 * 256 + i1 * 4), a2);
  }
  if (i0 * 256 + i1 * 4 >= 998 && i0 * 256 + i1 * 4 < 1001) {
    #pragma unroll
    for (int i3 = 0; i3 < 4; ++i3) {
      if (i0 * 256 + i1 * 4 + i3 < 1001) {
        const float v6 = bf16_to_f32(in0[i0 * 256 + i1 * 4 + i3]);
        const float v7 = bf16_to_f32(in1[i0 * 256 + i1 * 4 + i3]);
        const float v8 = v6;
        const float v9 = v7;
        const float v10 = v8 + v9;
        const float v11 = sn_round_bf16(v10);
        out0[i0 * 256 + i1 * 4 + i3] = exact_bf16(v11);
      }
    }
  }
}
)");
}

TEST_CASE("index arithmetic is 32 bits wide only where no partial sum can leave it") {
  for (int64_t row : {int64_t{1} << 20, int64_t{1} << 22}) {
    LoopBuilder b("wide", "sm_90a", 32);
    const int in = b.input(DType::F32, {1024, row}), out = b.output(DType::F32, {1024 * 32});
    b.loop(Level::Grid, 1024, [&](const IndexExpr& i) {
      b.loop(Level::Lane, 32, [&](const IndexExpr& l) {
        b.store(out, i * 32 + l, b.load(in, i * row + floordiv(l * -5 + 3, 7) + 30));
      });
    });
    const std::string text = print_cuda(b.p);
    if (row == int64_t{1} << 20)
      CHECK(has(text, "in0[i0 * 1048576 + sn_floordiv(-i1 * 5 + 3, 7) + 30]"));
    else
      CHECK(has(text, "in0[int64_t(i0) * 4194304 + int64_t(sn_floordiv(-i1 * 5 + 3, 7)) + 30]"));
    CHECK(has(text, "out0[i0 * 32 + i1] ="));
  }
}

TEST_CASE("literals are exact C tokens, whatever the locale") {
  const LoopProgram p = test::detail::constants("host").program;
  const std::string plain = print_host(p),
                    cuda = print_cuda(test::detail::constants("sm_80").program);
  for (const char* token :
       {"= f32_from_bits(0xff800000u);", "= f32_from_bits(0x7f800000u);",
        "= f32_from_bits(0x7fc00000u);", "= -0x1.fffffep127f;", "= -0.0f;",
        "= f32_from_bits(0x00000001u);", "= 0x1.99999ap-4f;  // 0.1", "= 1234567.25f;",
        "= f64_from_bits(0xfff0000000000000ull);", "= 0x1.999999999999ap-4;  // 0.1",
        "= 16777217ll;", "= (-9223372036854775807ll - 1);", "= (-2147483647 - 1);",
        "= 4294967295u;"}) {
    CAPTURE(std::string(token));
    CHECK(has(plain, token));
    CHECK(has(cuda, token));
  }
  const std::string loops = print(p);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const bool same = print_host(p) == plain && print(p) == loops &&
                    print_cuda(test::detail::constants("sm_80").program) == cuda;
  std::locale::global(before);
  CHECK(same);
}

TEST_CASE("printers refuse what their target cannot run") {
  CHECK(has(refusal([] { print_host(vector_add("sm_80", DType::F32, 8)); }), "grid"));
  CHECK(has(refusal([] { print_cuda(vector_add("host", DType::F32, 8)); }), "cores"));
  const std::vector<DType> many(600, DType::F32);
  const LoopProgram p = elementwise(
      "many", "sm_80", 8, many, {DType::F32},
      [](LoopBuilder&, const std::vector<Var>& v, const IndexExpr&) { return std::vector{v[0]}; });
  CHECK(has(refusal([&] { print_cuda(p); }), "601 buffers are too many for a kernel's arguments"));
  LoopBuilder odd("odd", "sm_80", 48);
  const int out = odd.output(DType::F32, {48});
  odd.loop(Level::Grid, 1, [&](const IndexExpr&) {
    odd.loop(Level::Lane, 48, [&](const IndexExpr& l) {
      odd.store(out, l, odd.lane_reduce(Fn::Add, odd.literal(DType::F32, 1), 16));
    });
  });
  CHECK(has(refusal([&] { print_cuda(odd.p); }), "a lane reduction in a block of 48"));
}
