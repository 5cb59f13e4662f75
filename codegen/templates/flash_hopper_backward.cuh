// Attention backward on Hopper: dQ, dK and dV from Q, K, V, dY and the forward's rows.
//
// Three kernels, one after another:
//   flash_hopper_prepare   for each row: lse in base 2, and delta = sum(dY * Y) - dlse
//   flash_hopper_backward  all products; dK and dV leave finished, dQ as sums in f32
//   flash_hopper_finish    dQ = scale * sums, converted, into its strided place
//
// Tiling of the main kernel. A step is kTileM queries of one head against kTileN = 128 keys. Two
// warpgroups own 64 keys each and hold dK and dV of theirs in registers over all queries of all
// heads that share the key head; a third has a feeding thread and an adding thread. Scores are
// computed transposed, S' = K Q' and dP' = V dY', so that P' and dS' come out as the register
// operands of dV += P' dY and dK += dS' Q. dS' alone goes through shared memory, for dQ = dS K.
//
// Order: flash_hopper_order.cuh, which comes before this file.
//
// Shared memory, from a multiple of 1024 (W: 64 or 128, whatever the head sizes are filled up to):
//   K, V   [128][W]
//   Q, dY  [kTileM][W]      x 2 each
//   dS'    [128][kTileM]    x 2; at a tile's end dV on its way out
//   dQ     [kTileM][W] f32  in the order of registers; at a tile's end dK on its way out
//   rows   [kTileM] lse, [kTileM] delta and a flag, x 2
//   mbarriers; work [2]: which key tile K and V are of, and the one before
//
// Pipeline of a step, in each warpgroup: issue S' and dP'; wait for S', make P'; wait for dP', make
// dS'; issue dV; write dS'; issue dK and dQ; wait for each, and put dQ into shared memory, where
// the adding thread takes it. dQ needs the other warpgroup's dS': with kLag it is that of the step
// before, so that nobody waits for it, and the warpgroups fall half a step apart, where one's
// products run under the other's arithmetic. A tile then ends with the dQ of its last step, and its
// first step throws a product away: a branch around wgmma would serialize all of them.
//
// Registers of a consumer thread: W 64, kTileM 128: S' 64 + dP' 64 + dK 32 + dV 32 of 232, dQ 32
// where S' was; W 128, kTileM 64: 32 + 32 + 64 + 64, dQ 32. Instructions for one score, outside of
// wgmma: 1 FFMA, 1 MUFU, 1 FADD, 1 FMUL, 1 F2FP, 1/4 LDS.

constexpr int kSpread = kHeadDim <= 64 && kValueDim <= 64 ? 64 : 128;

struct HopperBackward {
  using K = HopperTile<kTileN, kSpread>;
  using Q = HopperTile<kTileM, kSpread>;
  using S = HopperTile<kTileN, kTileM>;
  using Out = HopperTile<64, kSpread>;  // dK or dV of a warpgroup

  static constexpr uint32_t kRowBytes = kTileM * 8 + 16;
  static constexpr uint32_t kSumBytes = kTileM * kSpread * 2;  // dQ of a warpgroup
  static constexpr uint32_t kK = 0;
  static constexpr uint32_t kV = kK + K::kBytes;
  static constexpr uint32_t kQ = kV + K::kBytes;
  static constexpr uint32_t kDy = kQ + 2 * Q::kBytes;
  static constexpr uint32_t kS = kDy + 2 * Q::kBytes;
  static constexpr uint32_t kSums = kS + 2 * S::kBytes;
  static constexpr uint32_t kRows = kSums + 2 * kSumBytes;
  static constexpr uint32_t kBarriers = kRows + 2 * kRowBytes;
  enum : uint32_t {
    kKFull,
    kVFull,
    kKeysEmpty,
    kQFull,  // x 2, like all that follow
    kQEmpty = kQFull + 2,
    kDyFull = kQEmpty + 2,
    kDyEmpty = kDyFull + 2,
    kSumFull = kDyEmpty + 2,  // of a warpgroup
    kSumEmpty = kSumFull + 2,
    kStepDone = kSumEmpty + 2,  // one; by both warpgroups
    kBarrierCount = kStepDone + 1
  };
  static constexpr uint32_t kWork = (kBarriers + 8 * kBarrierCount + 15) / 16 * 16;
  static constexpr uint32_t kUsedBytes = kWork + 2 * 32;
  static_assert(kUsedBytes + 1024 <= kSharedBytes, "with room to begin at a multiple of 1024");
  static_assert(kTileN == 128 && kStages == 2 && kWarps == 12, "two warpgroups of 64 keys");
  static_assert(kTileM == (kSpread == 64 ? 128 : 64), "dQ is split by rows, or by whole boxes");
  static_assert(2 * Out::kBytes <= 2 * S::kBytes && Out::kBytes <= kSumBytes, "places to leave by");
};

// --- Rows ---

// A block for each (batch, head, query tile): kTileM times lse * log2(e) and kTileM times delta,
// which make P 0 in rows that see nothing and in those beyond the last, and a flag: scores are so
// large that rounding could make P more than 1.
constexpr int kPrepareThreads = 256;
SN_KERNEL void __launch_bounds__(kPrepareThreads)
    flash_hopper_prepare(const __grid_constant__ FlashParams p, float* rows, float* sums,
                         uint32_t* turns) {
  constexpr int kChunks = kValueDim / 8;
  constexpr int kLanes = kChunks > 16 ? 32 : kChunks > 8 ? 16 : kChunks > 4 ? 8 : 4;
  const int tiles = hopper_query_tiles(p);
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int of = static_cast<int>(blockIdx.x) / tiles, batch = of / p.heads, head = of % p.heads;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float* to = rows + static_cast<int64_t>(blockIdx.x) * (HopperBackward::kRowBytes / 4);
  bool huge = false;
  for (int r = static_cast<int>(threadIdx.x) / kLanes; r < kTileM; r += kPrepareThreads / kLanes) {
    const int row = tile * kTileM + r;
    float sum = 0;
    if (row < p.queries && lane < kChunks) {
      const uint4 y = reinterpret_cast<const uint4*>(
          flash_row(static_cast<const uint16_t*>(p.y), p.y_strides, batch, head, row))[lane];
      const uint4 dy = reinterpret_cast<const uint4*>(
          flash_row(static_cast<const uint16_t*>(p.dy), p.dy_strides, batch, head, row))[lane];
      const uint32_t a[4] = {y.x, y.y, y.z, y.w}, b[4] = {dy.x, dy.y, dy.z, dy.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = __fmaf_rn(hopper_low(a[i]), hopper_low(b[i]), sum);
        sum = __fmaf_rn(hopper_high(a[i]), hopper_high(b[i]), sum);
      }
    }
#pragma unroll
    for (int i = 1; i < kLanes; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    float lse = -flash_inf(), delta = 0;
    if (row < p.queries) {
      const int64_t at = hopper_row_index(p, batch, head, row);
      lse = static_cast<const float*>(p.lse)[at];
      delta = p.dlse == nullptr ? sum : sum - static_cast<const float*>(p.dlse)[at];
    }
    const bool seen = lse != -flash_inf();
    huge |= seen && fabsf(lse) > 2048.0f;
    if (lane == 0) {
      to[r] = seen ? lse * kLog2E : flash_inf();
      to[kTileM + r] = seen ? delta : 0.0f;
    }
  }
  huge = __syncthreads_or(huge ? 1 : 0) != 0;
  if (threadIdx.x == 0) {
    to[2 * kTileM] = huge ? 1.0f : 0.0f;
    if (turns != nullptr) turns[blockIdx.x] = 0;
  }
  if constexpr (!kDeterministic) {
    float4* clear =
        reinterpret_cast<float4*>(sums) + static_cast<int64_t>(blockIdx.x) * (kTileM * kSpread / 4);
    for (int i = static_cast<int>(threadIdx.x); i < kTileM * kSpread / 4; i += kPrepareThreads)
      clear[i] = make_float4(0, 0, 0, 0);
  }
}

// --- The main kernel ---

// The feeder works key tiles out and leaves them in shared memory, where they come and go with K.
SN_FN uint32_t hopper_work_place(uint32_t shared, uint32_t tiles) {
  return shared + HopperBackward::kWork + (tiles & 1u) * 32;
}
SN_FN void hopper_tell_work(uint32_t place, const HopperWork& work) {
  hopper::store_int4(place, make_int4(work.tile, work.kv_head, work.batch, work.length));
  hopper::store_int4(place + 16, make_int4(work.first, work.count, work.start, work.round));
}
SN_FN HopperWork hopper_read_work(uint32_t place) {
  const int4 a = hopper::load_int4(place), b = hopper::load_int4(place + 16);
  HopperWork work;
  work.tile = a.x;
  work.kv_head = a.y;
  work.batch = a.z;
  work.length = a.w;
  work.first = b.x;
  work.count = b.y;
  work.start = b.z;
  work.round = b.w;
  return work;
}

SN_FN void hopper_backward_feed(const hopper::TensorMap& q_map, const hopper::TensorMap& k_map,
                                const hopper::TensorMap& v_map, const hopper::TensorMap& dy_map,
                                const FlashParams& p, const float* rows, int parts,
                                uint32_t shared) {
  using B = HopperBackward;
  const auto barrier = [&](uint32_t i) { return shared + B::kBarriers + 8 * i; };
  uint32_t steps = 0, tiles = 0;
  hopper_for_each_tile(p, parts, [&](const HopperWork& work) {
    hopper::barrier_wait(barrier(B::kKeysEmpty), (tiles & 1u) ^ 1u);
    hopper_tell_work(hopper_work_place(shared, tiles++), work);
    if (work.count == 0) {
      hopper::barrier_arrive(barrier(B::kKFull));
      hopper::barrier_arrive(barrier(B::kVFull));
      return;
    }
    hopper::barrier_arrive_expect(barrier(B::kKFull), B::K::kBytes);
    B::K::load(shared + B::kK, k_map, barrier(B::kKFull), work.tile * kTileN, work.kv_head,
               work.batch);
    hopper::barrier_arrive_expect(barrier(B::kVFull), B::K::kBytes);
    B::K::load(shared + B::kV, v_map, barrier(B::kVFull), work.tile * kTileN, work.kv_head,
               work.batch);
    HopperSteps at(p, work);
#pragma unroll 1
    for (; at.more(); at.next(), ++steps) {
      const int head = at.head, tile = at.tile;
      const uint32_t stage = steps & 1u, parity = (steps >> 1 & 1u) ^ 1u;
      const uint32_t q_full = barrier(B::kQFull + stage), dy_full = barrier(B::kDyFull + stage);
      hopper::barrier_wait(barrier(B::kQEmpty + stage), parity);
      hopper::barrier_arrive_expect(q_full, B::Q::kBytes + B::kRowBytes);
      B::Q::load(shared + B::kQ + stage * B::Q::kBytes, q_map, q_full, tile * kTileM, head,
                 work.batch);
      hopper::bulk_load(shared + B::kRows + stage * B::kRowBytes,
                        rows + hopper_query_tile_index(p, work.batch, head, tile) *
                                   static_cast<int64_t>(B::kRowBytes / 4),
                        B::kRowBytes, q_full);
      hopper::barrier_wait(barrier(B::kDyEmpty + stage), parity);
      hopper::barrier_arrive_expect(dy_full, B::Q::kBytes);
      B::Q::load(shared + B::kDy + stage * B::Q::kBytes, dy_map, dy_full, tile * kTileM, head,
                 work.batch);
    }
  });
  hopper::barrier_wait(barrier(B::kKeysEmpty), (tiles & 1u) ^ 1u);
  HopperWork none{};
  none.tile = -1;
  hopper_tell_work(hopper_work_place(shared, tiles), none);
  hopper::barrier_arrive(barrier(B::kKFull));
}

// Adds each step's dQ to the sums in global memory: one thread.
SN_FN void hopper_backward_add(const FlashParams& p, float* sums, uint32_t* turns, int parts,
                               uint32_t shared) {
  using B = HopperBackward;
  const auto barrier = [&](uint32_t i) { return shared + B::kBarriers + 8 * i; };
  uint32_t steps = 0;
  hopper_for_each_tile(p, parts, [&](const HopperWork& work) {
    HopperSteps at(p, work);
#pragma unroll 1
    for (; at.more(); at.next(), ++steps) {
      const int tile = at.tile;
      const int64_t index = hopper_query_tile_index(p, work.batch, at.head, tile);
      const int rank = kDeterministic ? hopper_rank(p, work, parts, tile) : 1;
      float* to = sums + index * (kTileM * kSpread);
      if (kDeterministic && parts > 1) {
        hopper::wait_for(turns + index, static_cast<uint32_t>(rank));
        hopper::fence_async_global();
      }
#pragma unroll
      for (uint32_t group = 0; group < 2; ++group) {
        hopper::barrier_wait(barrier(B::kSumFull + group), steps & 1u);
        const uint32_t from = shared + B::kSums + group * B::kSumBytes;
        float* part = to + group * (B::kSumBytes / 4);
        if (rank == 0)
          hopper::bulk_store(part, from, B::kSumBytes);
        else
          hopper::bulk_add(part, from, B::kSumBytes);
        hopper::bulk_commit();
      }
      hopper::bulk_wait_read<0>();
      hopper::barrier_arrive(barrier(B::kSumEmpty));
      hopper::barrier_arrive(barrier(B::kSumEmpty + 1));
      if constexpr (kDeterministic) {
        // The next sum at the same place, here or in another block, comes after this one.
        hopper::bulk_wait<0>();
        if (parts > 1) {
          hopper::fence_async_global();
          hopper::release_store(turns + index, static_cast<uint32_t>(rank + 1));
        }
      }
    }
  });
  hopper::bulk_wait<0>();
}

template <int Count>
SN_FN void hopper_pack_words(uint32_t (&to)[Count / 2], const float (&s)[Count]) {
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) to[i] = hopper::pack_pair<kF16>(s[2 * i], s[2 * i + 1]);
}
// d = a[64 rows] b', both K-major.
SN_FN void hopper_issue_transposed(float (&d)[kTileM / 2], uint64_t a, uint32_t b_tile) {
  using B = HopperBackward;
  const uint64_t b = B::Q::k_major(b_tile);
  hopper::touch(d);
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSpread / 16; ++step)
    hopper::wgmma_shared<kTileM, kF16, false, false>(d, hopper::advance(a, B::K::k_step(step)),
                                                     hopper::advance(b, B::Q::k_step(step)),
                                                     step != 0);
  hopper::wgmma_commit();
}
// d += words b, b being a tile of queries.
template <int Step = 0>
SN_FN void hopper_gradient_steps(float (&d)[kSpread / 2], const uint32_t (&words)[kTileM / 4],
                                 uint64_t b) {
  if constexpr (Step < kTileM / 16) {
    hopper::wgmma_registers<kSpread, kF16, true, 4 * Step>(
        d, words, hopper::advance(b, HopperBackward::Q::mn_step(Step)), true);
    hopper_gradient_steps<Step + 1>(d, words, b);
  }
}
SN_FN void hopper_issue_gradient(float (&d)[kSpread / 2], uint32_t (&words)[kTileM / 4],
                                 uint32_t b_tile) {
  hopper::touch(d);
  hopper::touch(words);
  hopper::wgmma_fence();
  hopper_gradient_steps(d, words, HopperBackward::Q::mn_major(b_tile));
  hopper::wgmma_commit();
}
constexpr int kSumColumns = kTileM == 128 ? kSpread : kSpread / 2;  // of a warpgroup's dQ
SN_FN void hopper_issue_sums(float (&d)[kSumColumns / 2], uint32_t shared, uint32_t s_tile,
                             int group) {
  using B = HopperBackward;
  constexpr bool kByRows = kTileM == 128;
  const auto which = static_cast<uint32_t>(group);
  const uint64_t a = B::S::mn_major(s_tile + (kByRows ? which * B::S::kBoxBytes : 0u));
  const uint64_t b = B::K::mn_major(shared + B::kK + (kByRows ? 0u : which * B::K::kBoxBytes));
  hopper::touch(d);
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step)
    hopper::wgmma_shared<kSumColumns, kF16, true, true>(d, hopper::advance(a, B::S::mn_step(step)),
                                                        hopper::advance(b, B::K::mn_step(step)),
                                                        step != 0);
  hopper::wgmma_commit();
}
// A warpgroup's [64][kSpread] gradient, times `scale`, to shared memory.
SN_FN void hopper_put_gradient(const float (&d)[kSpread / 2], float scale, uint32_t tile,
                               int thread) {
  using O = HopperBackward::Out;
#pragma unroll
  for (int j = 0; j < kSpread / 8; j += 2) {
    const float* from = d + 4 * j;
    hopper::store_matrices(O::chunk(tile, thread / 32 * 16 + (thread & 15), j + (thread & 31) / 16),
                           hopper::pack_pair<kF16>(from[0] * scale, from[1] * scale),
                           hopper::pack_pair<kF16>(from[2] * scale, from[3] * scale),
                           hopper::pack_pair<kF16>(from[4] * scale, from[5] * scale),
                           hopper::pack_pair<kF16>(from[6] * scale, from[7] * scale));
  }
}

constexpr bool kHopperScaled = kSoftcap || kSlopes;
constexpr bool kUnseenRows = kUnseen || kCausal;

// S' to P', in place, in the layout of scores transposed: s[4j + 2r + e] is the key
// first_key + 8r and the query first_query + 8j + e. `row`: address of the lse of first_query.
SN_FN void hopper_probabilities(float (&s)[kTileM / 2], const FlashParams& p, int batch, int head,
                                int length, int first_key, int first_query, uint32_t row, float c) {
  if constexpr (kHopperScaled) {
    const float slope = kSlopes ? p.slopes[head] * kLog2E : 0.0f;
    const float to_log2 = static_cast<float>(p.scale * 1.4426950408889634);
    const float to_cap = kSoftcap ? static_cast<float>(p.scale / p.softcap) : 0.0f;
    const float cap = kSoftcap ? static_cast<float>(p.softcap * 1.4426950408889634) : 0.0f;
    const int own = first_query + length - p.queries;
#pragma unroll
    for (int i = 0; i < kTileM / 2; ++i) {
      s[i] = kSoftcap ? cap * hopper_tanh(s[i] * to_cap) : s[i] * to_log2;
      if constexpr (kSlopes)
        s[i] = __fmaf_rn(
            -slope, static_cast<float>(abs(first_key + i / 2 % 2 * 8 - own - i / 4 * 8 - i % 2)),
            s[i]);
    }
  }
  // Are all of the warpgroup's keys visible to all of the tile's queries?
  const int tile_key = first_key - static_cast<int>((threadIdx.x & 127u) / 4 % 8) -
                       static_cast<int>((threadIdx.x & 127u) / 32 * 16);
  const int tile_query = first_query - 2 * static_cast<int>(threadIdx.x & 3u);
  const int valid = min(length, p.keys);
  if constexpr (kCyclic) {
    // Only keys can be too many: the lse of queries beyond the last makes their P 0.
    if (tile_key + 64 > valid) {
#pragma unroll
      for (int i = 0; i < kTileM / 2; ++i)
        if (first_key + i / 2 % 2 * 8 >= valid) s[i] = -flash_inf();
    }
  } else if (tile_key + 64 > valid ||
             tile_query < flash_queries(p, batch, length, tile_key + 63).begin ||
             tile_query + kTileM > flash_queries(p, batch, length, tile_key).end) {
    uint32_t begins[2], widths[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Interval queries = flash_queries(p, batch, length, first_key + 8 * r);
      begins[r] = static_cast<uint32_t>(queries.begin - first_query);
      widths[r] = static_cast<uint32_t>(max(queries.end - queries.begin, 0));
    }
#pragma unroll
    for (int i = 0; i < kTileM / 2; ++i) {
      const uint32_t query = static_cast<uint32_t>(i / 4 * 8 + i % 2);
      if (query - begins[i / 2 % 2] >= widths[i / 2 % 2]) s[i] = -flash_inf();
    }
  }
  // Exponents; above 0 only by rounding, which shows where scores are enormous.
  const bool huge =
      hopper::load_float2(row - static_cast<uint32_t>(4 * (first_query - tile_query)) + kTileM * 8)
          .x != 0.0f;
  if (huge) {
#pragma unroll
    for (int j = 0; j < kTileM / 8; ++j) {
      const float2 lse = hopper::load_float2(row + static_cast<uint32_t>(32 * j));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] =
            fast_exp2(min(__fmaf_rn(s[4 * j + i], c, -(i % 2 == 0 ? lse.x : lse.y)), 0.0f));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kTileM / 8; ++j) {
      const float2 lse = hopper::load_float2(row + static_cast<uint32_t>(32 * j));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] = fast_exp2(__fmaf_rn(s[4 * j + i], c, -(i % 2 == 0 ? lse.x : lse.y)));
    }
  }
}

// A warpgroup of consumers, `group` 0 or 1.
SN_FN void hopper_backward_consume(const hopper::TensorMap& dk_map, const hopper::TensorMap& dv_map,
                                   const FlashParams& p, uint32_t shared, int group) {
  using B = HopperBackward;
  constexpr uint32_t kBoth = 1;
  const int thread = static_cast<int>(threadIdx.x & 127u);
  const auto barrier = [&](uint32_t i) { return shared + B::kBarriers + 8 * i; };
  const auto release = [&](uint32_t i) {
    if (thread == 0) hopper::barrier_arrive(barrier(i));
  };
  const auto own = static_cast<uint32_t>(group);
  const float c = kHopperScaled ? 1.0f : static_cast<float>(p.scale * 1.4426950408889634);
  // kLag: until both warpgroups are done with the step before.
  const auto await_step = [&](uint32_t steps) {
    hopper::barrier_wait(barrier(B::kStepDone), (steps & 1u) ^ 1u);
  };
  // A step's dQ to the adding thread; `parity`: of the phase in which its place is empty.
  const auto put_sums = [&](const float(&dq)[kSumColumns / 2], uint32_t parity, int at) {
    hopper::barrier_wait(barrier(B::kSumEmpty + own), parity);
#pragma unroll
    for (int j = 0; j < kSumColumns / 8; ++j)
      hopper::store_float4(
          shared + B::kSums + own * B::kSumBytes + static_cast<uint32_t>((j * 128 + at) * 16),
          make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]));
    hopper::fence_async();
    hopper::named_sync(2 + own, 128);
    release(B::kSumFull + own);
  };
  // In one register: steps that went by modulo 4, then the parity of tiles, then whether a step of
  // this tile went by.
  constexpr uint32_t kTileParity = 4, kBegun = 8;
  uint32_t state = 0;
  float dk[kSpread / 2], dv[kSpread / 2];

#pragma unroll 1
  for (;;) {
    hopper::barrier_wait(barrier(B::kKFull), (state & kTileParity) >> 2);
    const HopperWork work = hopper_read_work(hopper_work_place(shared, (state & kTileParity) >> 2));
    if (work.tile < 0) break;
    const int first_tile_key = work.tile * kTileN + 64 * group;
    HopperSteps steps(p, work);
    const uint64_t k = B::K::k_major(shared + B::kK, 64 * group);
#pragma unroll
    for (int i = 0; i < kSpread / 2; ++i) dk[i] = dv[i] = 0.0f;
    // Zeros in the rows of a tile of queries that see nothing.
    const auto clear_rows = [&](uint32_t tile) {
      if constexpr (kUnseenRows) {
        const int query_tile = steps.tile;
        const int last = min(work.length, p.keys) - 1;
        const int from = flash_queries(p, work.batch, work.length, 0).begin - query_tile * kTileM;
        const int to = flash_queries(p, work.batch, work.length, last).end - query_tile * kTileM;
        if (from > 0 || to < min(kTileM, p.queries - query_tile * kTileM)) {
          B::Q::clear_outside(tile, from, to, thread);
          hopper::fence_async();
          hopper::named_sync(2 + own, 128);
        }
      }
      (void)tile;
    };
    if (steps.more()) {
      if constexpr (kUnseen) {
        const Interval all = hopper_rows_see(p, work.batch, work.length, 0, p.queries - 1);
        const int from = all.begin - work.tile * kTileN, to = all.end - work.tile * kTileN;
        if (from > 0 || to < kTileN) {
          hopper::barrier_wait(barrier(B::kVFull), (state & kTileParity) >> 2);
          B::K::clear_outside(shared + B::kK, from, to, thread);
          B::K::clear_outside(shared + B::kV, from, to, thread);
          hopper::fence_async();
          hopper::named_sync(2 + own, 128);
        }
      }
    }
    hopper::barrier_wait(barrier(B::kVFull), (state & kTileParity) >> 2);
    state ^= kTileParity;
    state &= ~kBegun;
#pragma unroll 1
    for (; steps.more(); steps.next()) {
      const uint32_t stage = state & 1u, parity = state >> 1 & 1u;
      // Fresh in each step: registers that no value is carried in.
      float s[kTileM / 2], dp[kTileM / 2], dq[kSumColumns / 2];
      uint32_t probabilities[kTileM / 4], gradients[kTileM / 4];
      // Addresses are worked out in each step rather than kept.
      int at = thread;
      hopper::forget(at);
      const int first_key = first_tile_key + at / 32 * 16 + (at & 31) / 4;
      const uint32_t q_tile = shared + B::kQ + stage * B::Q::kBytes;
      const uint32_t dy_tile = shared + B::kDy + stage * B::Q::kBytes;
      const uint32_t s_tile = shared + B::kS + stage * B::S::kBytes;
      const int head = steps.head, query_tile = steps.tile;
      const int first_query = query_tile * kTileM + 2 * (at & 3);
      const uint32_t row =
          shared + B::kRows + stage * B::kRowBytes + static_cast<uint32_t>(8 * (at & 3));
      hopper::barrier_wait(barrier(B::kQFull + stage), parity);
      clear_rows(q_tile);
      hopper_issue_transposed(s, k, q_tile);
      hopper::barrier_wait(barrier(B::kDyFull + stage), parity);
      clear_rows(dy_tile);
      hopper_issue_transposed(dp, hopper::advance(k, B::kV - B::kK), dy_tile);
      hopper::wgmma_wait<1>(s);
      hopper_probabilities(s, p, work.batch, head, work.length, first_key, first_query, row, c);
      hopper::wgmma_wait<0>(dp);

      // dS' = P' (dP' - delta).
      uint32_t kept[(kTileM + 63) / 64];
      if constexpr (kDropout) {
        const FlashDropout dropout = flash_dropout(p, work.batch, head);
        const int64_t corner = dropout.element(query_tile * kTileM, first_key - (at & 31) / 4);
#pragma unroll
        for (int part = 0; part < kTileM / 64; ++part)
          kept[part] = hopper_kept_columns(dropout, corner, p.keys, part);
      }
      const float keep_scale = kDropout ? static_cast<float>(p.keep_scale) : 1.0f;
#pragma unroll
      for (int j = 0; j < kTileM / 8; ++j) {
        const float2 delta = hopper::load_float2(row + static_cast<uint32_t>(32 * j + 4 * kTileM));
        float2 lse = make_float2(0, 0);
        if constexpr (kSoftcap) lse = hopper::load_float2(row + static_cast<uint32_t>(32 * j));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int index = 4 * j + e;
          const bool keep = !kDropout || (kept[index / 32] >> (index % 32) & 1u) != 0;
          float d = dp[index];
          if constexpr (kDropout) d = keep ? d * keep_scale : 0.0f;
          d = s[index] * (d - (e % 2 == 0 ? delta.x : delta.y));
          if constexpr (kSoftcap) {
            const float cap = static_cast<float>(p.softcap * 1.4426950408889634);
            float bias = 0;
            if constexpr (kSlopes) {
              const int place = first_query + e % 2 + 8 * j + work.length - p.queries;
              bias =
                  -p.slopes[head] * kLog2E * static_cast<float>(abs(first_key + e / 2 * 8 - place));
            }
            // tanh again, from P; where that is 0, so is d.
            const float level = (sn_log2(s[index]) + (e % 2 == 0 ? lse.x : lse.y) - bias) / cap;
            const float tanh = max(-1.0f, min(1.0f, level));
            d *= 1.0f - tanh * tanh;
          }
          dp[index] = d;
          if constexpr (kDropout) s[index] = keep ? s[index] : 0.0f;
        }
        probabilities[2 * j] = hopper::pack_pair<kF16>(s[4 * j], s[4 * j + 1]);
        probabilities[2 * j + 1] = hopper::pack_pair<kF16>(s[4 * j + 2], s[4 * j + 3]);
        gradients[2 * j] = hopper::pack_pair<kF16>(dp[4 * j], dp[4 * j + 1]);
        gradients[2 * j + 1] = hopper::pack_pair<kF16>(dp[4 * j + 2], dp[4 * j + 3]);
      }
      hopper_issue_gradient(dv, probabilities, dy_tile);

      // dS' to shared memory, whose last tenants have left.
      if ((state & kBegun) == 0) {
        if (thread == 0) hopper::bulk_wait_read<0>();
        hopper::named_sync(kBoth, 256);
      }
      if constexpr (kLag) await_step(state);
#pragma unroll
      for (int j = 0; j < kTileM / 8; j += 2)
        hopper::store_matrices(
            B::S::chunk(s_tile, 64 * group + at / 32 * 16 + (at & 15), j + (at & 31) / 16),
            gradients[2 * j], gradients[2 * j + 1], gradients[2 * j + 2], gradients[2 * j + 3]);
      hopper::fence_async();
      hopper_issue_gradient(dk, gradients, q_tile);
      if constexpr (!kLag) hopper::named_sync(kBoth, 256);
      hopper::wgmma_wait<1>(dv, probabilities);
      release(B::kDyEmpty + stage);
      // With kLag, of the step before; in a tile's first, of none, and thrown away.
      hopper_issue_sums(dq, shared, kLag ? shared + B::kS + (stage ^ 1u) * B::S::kBytes : s_tile,
                        group);
      hopper::wgmma_wait<1>(dk, gradients);
      // Each warp for itself: it has read the rows, which come and go with Q.
      if ((at & 31) == 0) hopper::barrier_arrive(barrier(B::kQEmpty + stage));
      hopper::wgmma_wait<0>(dq);
      if (!kLag || (state & kBegun) != 0)
        put_sums(dq, (state & 1u) ^ (kLag ? 0u : 1u), at);
      else
        hopper::named_sync(2 + own, 128);
      if constexpr (kLag) release(B::kStepDone);
      state = (state & kTileParity) | kBegun | ((state + 1) & 3u);
    }
    if constexpr (kLag) {
      if ((state & kBegun) != 0) {
        float dq[kSumColumns / 2];
        await_step(state);
        hopper_issue_sums(dq, shared, shared + B::kS + ((state & 1u) ^ 1u) * B::S::kBytes, group);
        hopper::wgmma_wait<0>(dq);
        put_sums(dq, state & 1u, thread);
      }
    }
    // Without a step, nothing has yet made sure that the others saw this phase of the barriers.
    if ((state & kBegun) == 0) hopper::named_sync(2 + own, 128);
    release(B::kKeysEmpty);

    // dV by way of dS', dK by way of dQ. The tile is read again rather than kept.
    int late = thread;
    hopper::forget(late);
    const HopperWork done =
        hopper_read_work(hopper_work_place(shared, ((state & kTileParity) >> 2) ^ 1u));
    if (thread == 0) hopper::bulk_wait_read<0>();
    hopper::named_sync(kBoth, 256);
    hopper::barrier_wait(barrier(B::kSumEmpty + own), (state & 1u) ^ 1u);
    const uint32_t sums = shared + B::kSums + own * B::kSumBytes;
    const uint32_t dv_tile = shared + B::kS + own * B::Out::kBytes;
    hopper_put_gradient(dv, kDropout ? static_cast<float>(p.keep_scale) : 1.0f, dv_tile, late);
    hopper_put_gradient(dk, static_cast<float>(p.scale), sums, late);
    hopper::fence_async();
    hopper::named_sync(2 + own, 128);
    const int row = done.tile * kTileN + 64 * group;
    if (thread == 0 && row < p.keys) {
#pragma unroll
      for (int box = 0; box < B::Out::kBoxes; ++box) {
        const uint32_t at = static_cast<uint32_t>(box) * B::Out::kBoxBytes;
        hopper::tma_store(dv_map, dv_tile + at, box * B::Out::kColumns, row, done.kv_head,
                          done.batch);
        hopper::tma_store(dk_map, sums + at, box * B::Out::kColumns, row, done.kv_head, done.batch);
      }
      hopper::bulk_commit();
    }
  }
  if (thread == 0) hopper::bulk_wait<0>();
}

SN_KERNEL void __launch_bounds__(kThreads, 1)
    flash_hopper_backward(const __grid_constant__ hopper::TensorMap q_map,
                          const __grid_constant__ hopper::TensorMap k_map,
                          const __grid_constant__ hopper::TensorMap v_map,
                          const __grid_constant__ hopper::TensorMap dy_map,
                          const __grid_constant__ hopper::TensorMap dk_map,
                          const __grid_constant__ hopper::TensorMap dv_map,
                          const __grid_constant__ FlashParams p, const float* rows, float* sums,
                          uint32_t* turns, int parts) {
  using B = HopperBackward;
  SN_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = (shared_address(dynamic) + 1023u) & ~1023u;
  const auto barrier = [&](uint32_t i) { return shared + B::kBarriers + 8 * i; };
  if (threadIdx.x == 0) {
    hopper::barrier_init(barrier(B::kKFull), 1);
    hopper::barrier_init(barrier(B::kVFull), 1);
    hopper::barrier_init(barrier(B::kKeysEmpty), 2);
    hopper::barrier_init(barrier(B::kStepDone), 2);
    for (uint32_t i = 0; i < 2; ++i) {
      hopper::barrier_init(barrier(B::kQFull + i), 1);
      hopper::barrier_init(barrier(B::kQEmpty + i), 8);  // by all warps that multiply
      hopper::barrier_init(barrier(B::kDyFull + i), 1);
      hopper::barrier_init(barrier(B::kDyEmpty + i), 2);
      hopper::barrier_init(barrier(B::kSumFull + i), 1);
      hopper::barrier_init(barrier(B::kSumEmpty + i), 1);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 7), 0);
  if (warpgroup == 0) {
    hopper::registers_release<kFeederRegisters>();
    const int warp = static_cast<int>(threadIdx.x >> 5);
    if (warp == 0 && hopper::elect_one())
      hopper_backward_feed(q_map, k_map, v_map, dy_map, p, rows, parts, shared);
    if (warp == 1 && hopper::elect_one()) hopper_backward_add(p, sums, turns, parts, shared);
  } else {
    hopper::registers_take<kConsumerRegisters>();
    hopper_backward_consume(dk_map, dv_map, p, shared, warpgroup - 1);
  }
}

// --- dQ ---

// A warp for each 16 rows and 32 columns that one warp of a warpgroup made: from the order of its
// registers to rows. A block for each (batch, head, query tile).
constexpr int kFinishThreads = 256;
SN_KERNEL void __launch_bounds__(kFinishThreads)
    flash_hopper_finish(const __grid_constant__ FlashParams p, const float* sums) {
  constexpr int kPieces = kSumColumns / 32;  // of a warp's columns
  const int tiles = hopper_query_tiles(p);
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int of = static_cast<int>(blockIdx.x) / tiles, batch = of / p.heads, head = of % p.heads;
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31u);
  const int quad = lane & 3;
  const Interval seen = hopper_tiles_seen(p, batch, flash_length(p, batch), tile);
  const bool any = seen.end > seen.begin;  // where no sum was stored, none may be read
  const float scale = static_cast<float>(p.scale);
  const float* from = sums + static_cast<int64_t>(blockIdx.x) * (kTileM * kSpread);
  for (int unit = warp; unit < 8 * kPieces; unit += kFinishThreads / 32) {
    const int of_warp = unit / kPieces, piece = unit % kPieces;
    const int group = of_warp / 4, row16 = of_warp % 4 * 16;
    uint32_t words[2][4];  // of the two rows, of four blocks of 8 columns
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float4 x = make_float4(0, 0, 0, 0);
      if (any)
        x = reinterpret_cast<const float4*>(
            from)[group * (kTileM * kSpread / 8) + (4 * piece + j) * 128 + of_warp % 4 * 32 + lane];
      words[0][j] = hopper::pack_pair<kF16>(x.x * scale, x.y * scale);
      words[1][j] = hopper::pack_pair<kF16>(x.z * scale, x.w * scale);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Each lane of a quad gets the eight columns of one block.
      uint32_t w0 = words[r][0], w1 = words[r][1], w2 = words[r][2], w3 = words[r][3];
      const bool upper = (quad & 2) != 0, odd = (quad & 1) != 0;
      const uint32_t a = __shfl_xor_sync(0xffffffffu, upper ? w0 : w2, 2);
      const uint32_t b = __shfl_xor_sync(0xffffffffu, upper ? w1 : w3, 2);
      if (upper) {
        w0 = a;
        w1 = b;
      } else {
        w2 = a;
        w3 = b;
      }
      const uint32_t c = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1);
      const uint32_t d = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
      if (odd) {
        w0 = c;
        w2 = d;
      } else {
        w1 = c;
        w3 = d;
      }
      const int row = tile * kTileM + (kTileM == 128 ? 64 * group : 0) + row16 + lane / 4 + 8 * r;
      const int column = (kTileM == 128 ? 0 : group * kSumColumns) + 32 * piece + 8 * quad;
      if (row < p.queries && column < kHeadDim)
        *reinterpret_cast<uint4*>(
            flash_row(static_cast<uint16_t*>(p.dq), p.dq_strides, batch, head, row) + column) =
            make_uint4(w0, w1, w2, w3);
    }
  }
}
