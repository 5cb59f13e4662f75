// The instructions of sm_90a that the Hopper templates use. All inline PTX of those templates is
// here; tests/emulator/hopper.h holds functions of the same names and signatures for the host. It
// follows ptx.cuh.
//
// A shared address is a 32-bit address in the shared window. "Asynchronous" reads and writes (TMA,
// bulk copies, wgmma) go through a proxy of their own: ordinary writes to shared memory must be
// followed by fence_async() in the writing thread, and by a barrier, before they are read so.

namespace hopper {

// What cuTensorMapEncodeTiled wrote.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// The compiler forgets where `value` came from: what follows from it is computed anew instead of
// being kept in registers.
SN_FN void forget(int& value) {
  asm volatile("" : "+r"(value));
}

// --- mbarriers: objects of 8 bytes in shared memory ---

SN_FN void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes the initialisations known to the asynchronous proxy; the block synchronises afterwards.
SN_FN void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
SN_FN void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase wait for `bytes` of asynchronous copies.
SN_FN void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is complete.
SN_FN void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni after;\n"
      "bra.uni again;\n"
      "after:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- Barriers by number, of `count` threads ---

SN_FN void named_sync(uint32_t id, uint32_t count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
SN_FN void named_arrive(uint32_t id, uint32_t count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// True in one lane of a converged warp.
SN_FN bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// A warpgroup gives registers back, or takes some: `Count` for each thread from here on.
template <int Count>
SN_FN void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
SN_FN void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// --- Copies by the tensor memory accelerator ---

SN_FN void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// A box of a tensor of rank 4 to shared memory; its bytes count towards the barrier's phase.
SN_FN void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0, int32_t c1,
                    int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// A box from shared memory; what lies outside of the tensor is left out.
SN_FN void tma_store(const TensorMap& map, uint32_t from, int32_t c0, int32_t c1, int32_t c2,
                     int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// `bytes` (a multiple of 16) of contiguous memory.
SN_FN void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
SN_FN void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// to[i] += from[i] for f32.
SN_FN void bulk_add(float* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Stores and additions of this thread since the last commit are a group.
SN_FN void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most `Pending` groups have yet to read shared memory, or to finish.
template <int Pending>
SN_FN void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
template <int Pending>
SN_FN void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

SN_FN void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Between a bulk copy's write to global memory that is complete and ordinary accesses to it.
SN_FN void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// --- Words in global memory by which blocks order themselves ---

SN_FN void release_store(uint32_t* to, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// Until the word holds `value`.
SN_FN void wait_for(const uint32_t* from, uint32_t value) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
  } while (seen != value);
}

// --- Shared memory ---

SN_FN float2 load_float2(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
SN_FN float4 load_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
SN_FN void store_float4(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}
SN_FN int4 load_int4(uint32_t address) {
  int4 v;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
SN_FN void store_int4(uint32_t address, int4 v) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
SN_FN void store_zeros(uint32_t address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
// Four matrices of 8x8 16-bit elements, one register each; lane i gives the address of row i % 8
// of matrix i / 8, and holds elements 2(i % 4) and the next of row i / 4 of each.
SN_FN void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// 16-bit floats, `low` in the lower half.
template <bool F16>
SN_FN uint32_t pack_pair(float low, float high) {
  if constexpr (F16)
    return pack_f16(low, high);
  else
    return pack_bf16(low, high);
}

// --- wgmma: a warpgroup multiplies [64, 16] by [16, N] into f32 registers ---
//
// d[4j], d[4j + 1] of thread t (warp w, lane l of its warpgroup) are row 16w + l/4 and columns
// 8j + 2(l % 4) and the next; d[4j + 2], d[4j + 3] are 8 rows below. A in registers has the same
// layout in packed pairs. Neither accumulators nor A registers may be touched between the issue and
// the wait for its group.

// Operand in shared memory. `leading` and `stride` are byte offsets: with K-major tiles `stride`
// leads to the next 8 rows; with MN-major ones `leading` to the next swizzle span of rows and
// `stride` to the next 8 of K. Span: bytes of the swizzle, 128, 64 or 32.
template <int Span>
SN_FN uint64_t matrix_descriptor(uint32_t leading, uint32_t stride) {
  constexpr uint64_t kKind = Span == 128 ? 1 : Span == 64 ? 2 : 3;
  return kKind << 62 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16;
}
SN_FN uint64_t at_address(uint64_t descriptor, uint32_t address) {
  return descriptor | (address >> 4 & 0x3fffu);
}
SN_FN uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

SN_FN void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
SN_FN void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler takes accumulators for written where they are issued; this keeps reads behind.
template <int Count>
SN_FN void touch(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int Count>
SN_FN void touch(uint32_t (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
// Until at most `Pending` groups are in flight; `d` are the registers that this makes ready.
template <int Pending, typename... Registers>
SN_FN void wgmma_wait(Registers&... d) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  (touch(d), ...);
}

#define HOPPER_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define HOPPER_R1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HOPPER_R2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HOPPER_R3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOPPER_R4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define HOPPER_R5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define HOPPER_R6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define HOPPER_R7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HOPPER_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HOPPER_F16(i) HOPPER_F4(i), HOPPER_F4(i + 4), HOPPER_F4(i + 8), HOPPER_F4(i + 12)
#define HOPPER_LIST_32 HOPPER_R0
#define HOPPER_LIST_64 HOPPER_LIST_32 "," HOPPER_R1
#define HOPPER_LIST_96 HOPPER_LIST_64 "," HOPPER_R2
#define HOPPER_LIST_128 HOPPER_LIST_96 "," HOPPER_R3
#define HOPPER_LIST_160 HOPPER_LIST_128 "," HOPPER_R4
#define HOPPER_LIST_192 HOPPER_LIST_160 "," HOPPER_R5
#define HOPPER_LIST_256 HOPPER_LIST_192 "," HOPPER_R6 "," HOPPER_R7
#define HOPPER_REGISTERS_32 HOPPER_F16(0)
#define HOPPER_REGISTERS_64 HOPPER_REGISTERS_32, HOPPER_F16(16)
#define HOPPER_REGISTERS_96 HOPPER_REGISTERS_64, HOPPER_F16(32)
#define HOPPER_REGISTERS_128 HOPPER_REGISTERS_96, HOPPER_F16(48)
#define HOPPER_REGISTERS_160 HOPPER_REGISTERS_128, HOPPER_F16(64)
#define HOPPER_REGISTERS_192 HOPPER_REGISTERS_160, HOPPER_F16(80)
#define HOPPER_REGISTERS_256 HOPPER_REGISTERS_192, HOPPER_F16(96), HOPPER_F16(112)

// One instruction; A and what follows are the numbers of the operands behind the accumulators.
#define HOPPER_SS(N, TYPE, A, B, USE, TA, TB)                                                \
  asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, %" #USE                                 \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE         \
               " {" HOPPER_LIST_##N "}, %" #A ", %" #B ", use, 1, 1, %" #TA ", %" #TB ";\n}" \
               : HOPPER_REGISTERS_##N                                                        \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposeA ? 1 : 0), \
                 "n"(TransposeB ? 1 : 0))
#define HOPPER_RS(N, TYPE, A0, A1, A2, A3, B, USE, TB)                                          \
  asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, %" #USE                                    \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE            \
               " {" HOPPER_LIST_##N "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B         \
                                    ", use, 1, 1, %" #TB ";\n}"                                 \
               : HOPPER_REGISTERS_##N                                                           \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(static_cast<int>(accumulate)), \
                 "n"(TransposeB ? 1 : 0))

// d (+)= A B, both in shared memory. Transpose: the operand is MN-major.
template <int N, bool F16, bool TransposeA, bool TransposeB>
SN_FN void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (N == 32 && F16)
    HOPPER_SS(32, "f16", 16, 17, 18, 19, 20);
  else if constexpr (N == 32)
    HOPPER_SS(32, "bf16", 16, 17, 18, 19, 20);
  else if constexpr (N == 64 && F16)
    HOPPER_SS(64, "f16", 32, 33, 34, 35, 36);
  else if constexpr (N == 64)
    HOPPER_SS(64, "bf16", 32, 33, 34, 35, 36);
  else if constexpr (N == 96 && F16)
    HOPPER_SS(96, "f16", 48, 49, 50, 51, 52);
  else if constexpr (N == 96)
    HOPPER_SS(96, "bf16", 48, 49, 50, 51, 52);
  else if constexpr (N == 128 && F16)
    HOPPER_SS(128, "f16", 64, 65, 66, 67, 68);
  else if constexpr (N == 128)
    HOPPER_SS(128, "bf16", 64, 65, 66, 67, 68);
  else if constexpr (N == 160 && F16)
    HOPPER_SS(160, "f16", 80, 81, 82, 83, 84);
  else if constexpr (N == 160)
    HOPPER_SS(160, "bf16", 80, 81, 82, 83, 84);
  else if constexpr (N == 192 && F16)
    HOPPER_SS(192, "f16", 96, 97, 98, 99, 100);
  else if constexpr (N == 192)
    HOPPER_SS(192, "bf16", 96, 97, 98, 99, 100);
  else if constexpr (N == 256 && F16)
    HOPPER_SS(256, "f16", 128, 129, 130, 131, 132);
  else if constexpr (N == 256)
    HOPPER_SS(256, "bf16", 128, 129, 130, 131, 132);
  else
    static_assert(N < 0, "no instruction of this width is spelled out");
}
// A in the four words that begin at a[Word].
template <int N, bool F16, bool TransposeB, int Word, int Words>
SN_FN void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[Words], uint64_t b,
                           bool accumulate) {
  const uint32_t a0 = a[Word], a1 = a[Word + 1], a2 = a[Word + 2], a3 = a[Word + 3];
  if constexpr (N == 32 && F16)
    HOPPER_RS(32, "f16", 16, 17, 18, 19, 20, 21, 22);
  else if constexpr (N == 32)
    HOPPER_RS(32, "bf16", 16, 17, 18, 19, 20, 21, 22);
  else if constexpr (N == 64 && F16)
    HOPPER_RS(64, "f16", 32, 33, 34, 35, 36, 37, 38);
  else if constexpr (N == 64)
    HOPPER_RS(64, "bf16", 32, 33, 34, 35, 36, 37, 38);
  else if constexpr (N == 96 && F16)
    HOPPER_RS(96, "f16", 48, 49, 50, 51, 52, 53, 54);
  else if constexpr (N == 96)
    HOPPER_RS(96, "bf16", 48, 49, 50, 51, 52, 53, 54);
  else if constexpr (N == 128 && F16)
    HOPPER_RS(128, "f16", 64, 65, 66, 67, 68, 69, 70);
  else if constexpr (N == 128)
    HOPPER_RS(128, "bf16", 64, 65, 66, 67, 68, 69, 70);
  else if constexpr (N == 160 && F16)
    HOPPER_RS(160, "f16", 80, 81, 82, 83, 84, 85, 86);
  else if constexpr (N == 160)
    HOPPER_RS(160, "bf16", 80, 81, 82, 83, 84, 85, 86);
  else if constexpr (N == 192 && F16)
    HOPPER_RS(192, "f16", 96, 97, 98, 99, 100, 101, 102);
  else if constexpr (N == 192)
    HOPPER_RS(192, "bf16", 96, 97, 98, 99, 100, 101, 102);
  else if constexpr (N == 256 && F16)
    HOPPER_RS(256, "f16", 128, 129, 130, 131, 132, 133, 134);
  else if constexpr (N == 256)
    HOPPER_RS(256, "bf16", 128, 129, 130, 131, 132, 133, 134);
  else
    static_assert(N < 0, "no instruction of this width is spelled out");
}

#undef HOPPER_SS
#undef HOPPER_RS

}  // namespace hopper
