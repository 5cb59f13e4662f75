// Flash attention backward for sm_80 and later, the gradients of keys and values.
//
// Tiling. A block has kTileN keys of one key head, kTileN / kWarps (16 or 32) to a warp, and walks
// over the query heads that share it and over the queries that see its keys, kTileM at a time. So
// dK and dV stay in registers, are written once, and add up in one fixed order: no atomics. Grid:
// kv_heads * batch * ceil(keys / kTileN) blocks of kWarps warps; with kSplit (head sizes beyond
// 128, whose two sums do not fit into registers) twice as many, the even ones for dV and the odd
// ones for dK.
//
// Shared memory (16-bit elements, swizzled tiles as flash_fragments.cuh has them):
//   K  kTileN x kHeadPad,  V  kTileN x kValuePad               later dK and dV
//   kStages times: Q  kTileM x kHeadPad,  dY  kTileM x kValuePad,  lse, delta  kTileM f32 each
//
// Pipeline. The rows of step i + kStages - 1 are on their way while step i is computed; one block
// barrier a step. All products are of keys by queries, so that P^T and dS^T come out of the
// registers of one product as first operand of the next and never see memory:
//   S^T = K Q^T,  P^T = exp(S^T - lse),  dV += P^T dY,
//   dP^T = V dY^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q.
// The scale of the scores and that of dropout are applied once, to the sums.

static_assert(kTileN % (16 * kWarps) == 0 && kTileM % 16 == 0 && kTileM <= 64 && kStages >= 2, "");

constexpr bool kSplit = kHeadPad > 128 || kValuePad > 128;
constexpr int kKBytes = kTileN * kHeadPad * 2, kVBytes = kTileN * kValuePad * 2;
constexpr int kQBytes = kTileM * kHeadPad * 2, kYBytes = kTileM * kValuePad * 2;
constexpr int kStageBytes = kQBytes + kYBytes + 8 * kTileM;
static_assert(kKBytes + kVBytes + kStages * kStageBytes == kSharedBytes, "as flash_tiles.h has it");

constexpr int kBlocksM = kTileN / kWarps / 16, kBlocksN = kTileM / 8;
constexpr int kQuerySteps = kTileM / 16;

// What a thread holds: rows are keys, 16 m + 8 half + lane / 4 from its warp's first on; columns
// are queries, 8 n + lane % 4 * 2 + {0, 1} of a step.
template <bool kKeys, bool kValues>
struct FlashBackwardKv {
  int batch, key, column;          // key: of m = 0 and half = 0
  Interval document[kBlocksM][2];  // with kDocuments: the queries that may see each row
  float dk[kBlocksM][kKeys ? kHeadPad / 8 : 1][4];
  float dv[kBlocksM][kValues ? kValuePad / 8 : 1][4];

  template <bool kMasked>
  SN_FN_MEMBER void step(const FlashParams& p, int head, const FlashScores& scores,
                         const FlashDropout& dropout, uint32_t k_tile, uint32_t q_tile,
                         const float* rows, int warp_row, int first_query) {
    const uint32_t v_tile = k_tile + kKBytes, y_tile = q_tile + kQBytes;
    float s[kBlocksM][kBlocksN][4] = {};
    multiply_rows<kBlocksM, kBlocksN, kHeadPad>(s, k_tile, warp_row, q_tile);

    Interval queries[kBlocksM][2];
    if (kMasked) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          queries[m][half] = kDocuments ? document[m][half]
                                        : flash_queries(p, batch, scores.shift + p.queries,
                                                        key + 16 * m + 8 * half);
    }
    uint32_t seen = 0, kept[kBlocksM];
    float slope[kSoftcap ? kBlocksM : 1][kBlocksN][4];
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
      float lse[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        lse[c] = rows[8 * n + column + c] * kLog2E;
        // A row that sees nothing: all its probabilities are 0.
        if (lse[c] == -flash_inf()) lse[c] = flash_inf();
      }
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = first_query + 8 * n + column + e % 2, j = key + 16 * m + e / 2 * 8;
          float saturation;
          const float score = scores.score(p, s[m][n][e], i, j, saturation);
          if (kSoftcap) slope[m][n][e] = __fmaf_rn(-saturation, saturation, 1.0f);
          float probability = fast_exp2(__fmaf_rn(score, scores.factor, -lse[e % 2]));
          if (kMasked) {
            bool visible = queries[m][e / 2].begin <= i && i < queries[m][e / 2].end;
            if (kMask && visible) visible = flash_mask(p, batch, head, i, j);
            probability = visible ? probability : 0.0f;
            seen |= (visible ? 1u : 0u) << (2 * n + e % 2);
          }
          s[m][n][e] = probability;
        }
    }
    if (kMasked) seen = join_rows(seen);
    if (kDropout) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
        kept[m] = dropout_by_key<kBlocksN>(dropout, first_query, key - column_row() + 16 * m);
    }

    uint32_t a[kBlocksM][kQuerySteps][4];
    if constexpr (kValues) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m) {
        float dropped[kBlocksN][4];
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            dropped[n][e] = kDropout && (kept[m] >> (4 * n + e) & 1u) == 0 ? 0.0f : s[m][n][e];
#pragma unroll
        for (int step = 0; step < kQuerySteps; ++step)
          pack_step<kBlocksN>(a[m][step], dropped, step);
      }
      multiply_columns<kBlocksM, kQuerySteps, kValuePad, kMasked>(dv, a, y_tile, seen);
    }

    if constexpr (kKeys) {
      float dp[kBlocksM][kBlocksN][4] = {};
      multiply_rows<kBlocksM, kBlocksN, kValuePad>(dp, v_tile, warp_row, y_tile);
      const float keep_scale = static_cast<float>(p.keep_scale);
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float delta = rows[kTileM + 8 * n + column + c];
#pragma unroll
          for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
            for (int e = c; e < 4; e += 2) {
              float change = dp[m][n][e];
              if (kDropout)
                change = (kept[m] >> (4 * n + e) & 1u) == 0 ? 0.0f : change * keep_scale;
              change -= delta;
              if (kSoftcap) change *= slope[m][n][e];
              // What is not seen counts nothing, whatever v and dy hold there.
              const float ds = s[m][n][e] * change;
              s[m][n][e] = s[m][n][e] == 0.0f ? 0.0f : ds;
            }
        }
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int step = 0; step < kQuerySteps; ++step) pack_step<kBlocksN>(a[m][step], s[m], step);
      multiply_columns<kBlocksM, kQuerySteps, kHeadPad, kMasked>(dk, a, q_tile, seen);
    }
  }

  // This lane's row in a block of 8.
  static SN_FN_MEMBER int column_row() {
    return static_cast<int>(threadIdx.x % 32 / 4);
  }
};

// The queries that see any of `count` keys from `key` on, all of which count.
SN_FN Interval flash_any_query(const FlashParams& p, int batch, int length, int key, int count) {
  if (count == 0) return {0, 0};
  return {flash_queries(p, batch, length, key).begin,
          flash_queries(p, batch, length, key + count - 1).end};
}

template <bool kKeys, bool kValues>
SN_FN void flash_backward_kv_block(const FlashParams& p, int block) {
  SN_DYNAMIC_SHARED(memory);
  const uint32_t k_tile = shared_address(memory), v_tile = k_tile + kKBytes;
  const uint32_t stages = v_tile + kVBytes;

  const int tiles = (p.keys + kTileN - 1) / kTileN;
  const int batch = block / tiles / p.kv_heads, kv_head = block / tiles % p.kv_heads;
  const int group = p.heads / p.kv_heads;
  const int first_key = block % tiles * kTileN;
  const int length = flash_length(p, batch), limit = flash_min(length, p.keys);
  const int there = flash_max(flash_min(kTileN, limit - first_key), 0);  // keys that count

  // The queries that see any of the block's keys; of a warp's keys any, and all.
  const Interval block_queries = flash_any_query(p, batch, length, first_key, there);
  const int first_step = block_queries.begin / kTileM;
  const int steps = flash_max((block_queries.end + kTileM - 1) / kTileM - first_step, 0);
  const int total = steps * group;

  load_tile<kTileN, kHeadPad, kHeadDim>(
      k_tile, flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, first_key),
      p.k_strides.row, there);
  if (kKeys)
    load_tile<kTileN, kValuePad, kValueDim>(
        v_tile, flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, first_key),
        p.v_strides.row, there);

  // Step i: head i / steps of the group, queries from first_step + i % steps on.
  auto load_step = [&](int i, int slot) {
    const int head = kv_head * group + i / steps, query = (first_step + i % steps) * kTileM;
    const int valid = p.queries - query;
    const uint32_t at = stages + static_cast<uint32_t>(slot * kStageBytes);
    load_tile<kTileM, kHeadPad, kHeadDim>(
        at, flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, head, query),
        p.q_strides.row, valid);
    load_tile<kTileM, kValuePad, kValueDim>(
        at + kQBytes,
        flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, head, query),
        p.dy_strides.row, valid);
    const int64_t row = (static_cast<int64_t>(batch) * p.heads + head) * p.queries + query;
    const int t = static_cast<int>(threadIdx.x);
    if (t < kTileM) {
      const uint32_t to = at + kQBytes + kYBytes + static_cast<uint32_t>(4 * t);
      const int clipped = flash_min(t, valid - 1);
      cp_async_4_or_zero(to, static_cast<const float*>(p.lse) + row + clipped, t < valid);
      cp_async_4_or_zero(to + 4 * kTileM, static_cast<const float*>(p.delta) + row + clipped,
                         t < valid);
    }
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < total) load_step(i, i);
    cp_async_commit();
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = flash_warp() * 16 * kBlocksM;
  const int warp_there = flash_max(flash_min(16 * kBlocksM, there - warp_row), 0);
  const Interval any = flash_any_query(p, batch, length, first_key + warp_row, warp_there);
  Interval all{0, 0};
  if (warp_there == 16 * kBlocksM) {
    all.begin = flash_queries(p, batch, length, first_key + warp_row + warp_there - 1).begin;
    all.end = flash_queries(p, batch, length, first_key + warp_row).end;
  }
  FlashBackwardKv<kKeys, kValues> f;
  f.batch = batch;
  f.key = first_key + warp_row + lane / 4;
  f.column = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (kDocuments)
        f.document[m][half] = flash_queries(p, batch, length, f.key + 16 * m + 8 * half);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int n = 0; n < (kKeys ? kHeadPad / 8 : 1); ++n) f.dk[m][n][e] = 0.0f;
#pragma unroll
      for (int n = 0; n < (kValues ? kValuePad / 8 : 1); ++n) f.dv[m][n][e] = 0.0f;
    }
  }

  FlashScores scores = flash_scores(p, batch, kv_head * group, length);
  FlashDropout dropout;
  int slot = 0, next_slot = kStages - 1;
  for (int i = 0; i < total; ++i) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    if (i + kStages - 1 < total) load_step(i + kStages - 1, next_slot);
    cp_async_commit();
    const int head = kv_head * group + i / steps;
    const int first_query = (first_step + i % steps) * kTileM;
    if (kBias || kSlopes) scores = flash_scores(p, batch, head, length);
    if (kDropout) dropout = flash_dropout(p, batch, head);
    const int at = kKBytes + kVBytes + slot * kStageBytes;
    const uint32_t q_tile = k_tile + static_cast<uint32_t>(at);
    const float* rows = reinterpret_cast<const float*>(memory + at + kQBytes + kYBytes);
    if (!kMask && all.begin <= first_query && first_query + kTileM <= all.end)
      f.template step<false>(p, head, scores, dropout, k_tile, q_tile, rows, warp_row, first_query);
    else if (any.begin < first_query + kTileM && first_query < any.end)
      f.template step<true>(p, head, scores, dropout, k_tile, q_tile, rows, warp_row, first_query);
    slot = slot + 1 == kStages ? 0 : slot + 1;
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
  }
  cp_async_wait<0>();
  __syncthreads();

  float factor[kBlocksM][2];
  const int valid = p.keys - first_key;
  if constexpr (kKeys) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) factor[m][0] = factor[m][1] = static_cast<float>(p.scale);
    write_tile<kBlocksM, kHeadPad>(memory, k_tile, warp_row, f.dk, factor);
    __syncwarp();
    store_rows<16 * kBlocksM, kHeadPad, kHeadDim>(
        memory, k_tile, warp_row,
        flash_row(static_cast<Element*>(p.dk), p.dk_strides, batch, kv_head, first_key),
        p.dk_strides.row, valid);
  }
  if constexpr (kValues) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
      factor[m][0] = factor[m][1] = kDropout ? static_cast<float>(p.keep_scale) : 1.0f;
    write_tile<kBlocksM, kValuePad>(memory, v_tile, warp_row, f.dv, factor);
    __syncwarp();
    store_rows<16 * kBlocksM, kValuePad, kValueDim>(
        memory, v_tile, warp_row,
        flash_row(static_cast<Element*>(p.dv), p.dv_strides, batch, kv_head, first_key),
        p.dv_strides.row, valid);
  }
}

SN_KERNEL void __launch_bounds__(kThreads) flash_backward_kv(const FlashParams p) {
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (!kSplit) {
    flash_backward_kv_block<true, true>(p, block);
  } else {
    if (block % 2 == 0)
      flash_backward_kv_block<false, true>(p, block / 2);
    else
      flash_backward_kv_block<true, false>(p, block / 2);
  }
}
