#include <doctest/doctest.h>
#include <sinter/codegen/kernel.h>
#include <sinter/codegen/loops.h>
#include <sinter/tests/codegen/loop_builder.h>

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
