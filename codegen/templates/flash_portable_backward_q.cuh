// Flash attention backward for sm_80 and later, the gradient of queries.
//
// A kernel of its own, since the blocks of flash_backward_kv would have to add to dQ together: in
// no fixed order by atomics, or waiting for each other. Scores and dP are computed a second time (7
// products instead of 5), but nothing is written in f32, nothing is zeroed first, and the bits do
// not depend on timing.
//
// Tiling. A block has kTileM queries of one head, kTileM / kWarps (16 or 32) to a warp, and walks
// over the keys that they see, kTileN at a time. Grid: heads * batch * ceil(queries / kTileM)
// blocks of kWarps warps; with causal the last queries, which see most, come first.
//
// Shared memory (16-bit elements, swizzled tiles as flash_fragments.cuh has them):
//   Q  kTileM x kHeadPad,  dY  kTileM x kValuePad              Q later holds dQ
//   kStages times: K  kTileN x kHeadPad,  V  kTileN x kValuePad
//
// Pipeline. As in the forward kernel. A step: S = Q K^T, P = exp(S - lse), dP = dY V^T,
// dS = P (dP - delta), dQ += dS K with dS from the registers.

static_assert(kTileM % (16 * kWarps) == 0 && kTileN % 16 == 0 && kTileN <= 64 && kStages >= 2, "");

constexpr int kQBytes = kTileM * kHeadPad * 2, kYBytes = kTileM * kValuePad * 2;
constexpr int kKBytes = kTileN * kHeadPad * 2, kVBytes = kTileN * kValuePad * 2;
static_assert(kQBytes + kYBytes + kStages * (kKBytes + kVBytes) == kSharedBytes,
              "as flash_tiles.h has it");

constexpr int kBlocksM = kTileM / kWarps / 16, kBlocksN = kTileN / 8;
constexpr int kKeySteps = kTileN / 16;

// What a thread holds, as in the forward kernel.
struct FlashBackwardQ {
  int batch, head, query, column;
  Interval document[kBlocksM][2];  // with kDocuments: the keys that each row may see
  FlashScores scores;
  FlashDropout dropout;
  float lse[kBlocksM][2], delta[kBlocksM][2];  // lse in units of log 2
  float dq[kBlocksM][kHeadPad / 8][4];

  // The keys that the rows of block m may see: held where they are costly to find.
  SN_FN_MEMBER void rows_keys(const FlashParams& p, int m, Interval (&keys)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      keys[half] = kDocuments ? document[m][half]
                              : flash_keys(p, batch, scores.shift + p.queries,
                                           flash_min(query + 16 * m + 8 * half, p.queries - 1));
  }

  template <bool kMasked>
  SN_FN_MEMBER void step(const FlashParams& p, uint32_t q_tile, int warp_row, uint32_t k_tile,
                         int first_key) {
    float s[kBlocksM][kBlocksN][4] = {};
    multiply_rows<kBlocksM, kBlocksN, kHeadPad>(s, q_tile, warp_row, k_tile);
    float dp[kBlocksM][kBlocksN][4] = {};
    multiply_rows<kBlocksM, kBlocksN, kValuePad>(dp, q_tile + kQBytes, warp_row, k_tile + kKBytes);

    uint32_t seen = 0;
    const float keep_scale = static_cast<float>(p.keep_scale);
    uint32_t a[kBlocksM][kKeySteps][4];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
      Interval keys[2];
      if (kMasked) rows_keys(p, m, keys);
      uint32_t kept = 0;
      if (kDropout) kept = dropout_by_query<kBlocksN>(dropout, query + 16 * m, first_key);
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = query + 16 * m + e / 2 * 8, j = first_key + 8 * n + column + e % 2;
          float saturation;
          const float score = scores.score(p, s[m][n][e], i, j, saturation);
          const float probability = fast_exp2(__fmaf_rn(score, scores.factor, -lse[m][e / 2]));
          float change = dp[m][n][e];
          if (kDropout) change = (kept >> (4 * n + e) & 1u) == 0 ? 0.0f : change * keep_scale;
          change -= delta[m][e / 2];
          if (kSoftcap) change *= __fmaf_rn(-saturation, saturation, 1.0f);
          float ds = probability == 0.0f ? 0.0f : probability * change;
          if (kMasked) {
            bool visible = keys[e / 2].begin <= j && j < keys[e / 2].end;
            if (kMask && visible) visible = i < p.queries && flash_mask(p, batch, head, i, j);
            ds = visible ? ds : 0.0f;
            seen |= (visible ? 1u : 0u) << (2 * n + e % 2);
          }
          s[m][n][e] = ds;
        }
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) pack_step<kBlocksN>(a[m][step], s[m], step);
    }
    if (kMasked) seen = join_rows(seen);
    multiply_columns<kBlocksM, kKeySteps, kHeadPad, kMasked>(dq, a, k_tile, seen);
  }
};

SN_KERNEL void __launch_bounds__(kThreads) flash_backward_q(const FlashParams p) {
  SN_DYNAMIC_SHARED(memory);
  const uint32_t q_tile = shared_address(memory), stages = q_tile + kQBytes + kYBytes;

  const int tiles = (p.queries + kTileM - 1) / kTileM;
  const int row_of_tiles = static_cast<int>(blockIdx.x) / tiles;
  const int place = static_cast<int>(blockIdx.x) % tiles;
  const int batch = row_of_tiles / p.heads, head = row_of_tiles % p.heads;
  const int kv_head = head / (p.heads / p.kv_heads);
  const int first_query = (kCausal ? tiles - 1 - place : place) * kTileM;
  const int valid = flash_min(kTileM, p.queries - first_query);

  const int length = flash_length(p, batch), limit = flash_min(length, p.keys);
  const Interval lowest = flash_keys(p, batch, length, first_query);
  const Interval highest = flash_keys(p, batch, length, first_query + valid - 1);
  const int first_step = flash_max(lowest.begin, 0) / kTileN;
  const int last_step = flash_max((highest.end + kTileN - 1) / kTileN, first_step);

  const Element* k_rows =
      flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, 0);
  const Element* v_rows =
      flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, 0);
  auto load_step = [&](int step, int slot) {
    const uint32_t at = stages + static_cast<uint32_t>(slot * (kKBytes + kVBytes));
    const int key = step * kTileN;
    load_tile<kTileN, kHeadPad, kHeadDim>(at, k_rows + key * p.k_strides.row, p.k_strides.row,
                                          limit - key);
    load_tile<kTileN, kValuePad, kValueDim>(at + kKBytes, v_rows + key * p.v_strides.row,
                                            p.v_strides.row, limit - key);
  };
  load_tile<kTileM, kHeadPad, kHeadDim>(
      q_tile, flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, head, first_query),
      p.q_strides.row, valid);
  load_tile<kTileM, kValuePad, kValueDim>(
      q_tile + kQBytes,
      flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, head, first_query),
      p.dy_strides.row, valid);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (first_step + i < last_step) load_step(first_step + i, i);
    cp_async_commit();
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = flash_warp() * 16 * kBlocksM;
  FlashBackwardQ f;
  f.batch = batch;
  f.head = head;
  f.query = first_query + warp_row + lane / 4;
  f.column = lane % 4 * 2;
  f.scores = flash_scores(p, batch, head, length);
  if (kDropout) f.dropout = flash_dropout(p, batch, head);
  const int64_t statistics = (static_cast<int64_t>(batch) * p.heads + head) * p.queries;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = flash_min(f.query + 16 * m + 8 * half, p.queries - 1);
      if (kDocuments) f.document[m][half] = flash_keys(p, batch, length, i);
      const float lse = static_cast<const float*>(p.lse)[statistics + i] * kLog2E;
      // A row that sees nothing: all its probabilities are 0.
      f.lse[m][half] = lse == -flash_inf() ? flash_inf() : lse;
      f.delta[m][half] = static_cast<const float*>(p.delta)[statistics + i];
    }
#pragma unroll
    for (int n = 0; n < kHeadPad / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f.dq[m][n][e] = 0.0f;
  }

  const Interval first_row =
      flash_keys(p, batch, length, flash_min(first_query + warp_row, p.queries - 1));
  const Interval last_row = flash_keys(
      p, batch, length, flash_min(first_query + warp_row + 16 * kBlocksM, p.queries) - 1);
  int slot = 0, next_slot = kStages - 1;
  for (int step = first_step; step < last_step; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    if (step + kStages - 1 < last_step) load_step(step + kStages - 1, next_slot);
    cp_async_commit();
    const int first_key = step * kTileN;
    const uint32_t k_tile = stages + static_cast<uint32_t>(slot * (kKBytes + kVBytes));
    // What the warp's first row sees ends first, what its last row sees begins last.
    if (!kMask && last_row.begin <= first_key && first_key + kTileN <= first_row.end)
      f.step<false>(p, q_tile, warp_row, k_tile, first_key);
    else if (first_row.begin < first_key + kTileN && first_key < last_row.end)
      f.step<true>(p, q_tile, warp_row, k_tile, first_key);
    slot = slot + 1 == kStages ? 0 : slot + 1;
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
  }
  cp_async_wait<0>();
  __syncthreads();

  float factor[kBlocksM][2];
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) factor[m][0] = factor[m][1] = static_cast<float>(p.scale);
  write_tile<kBlocksM, kHeadPad>(memory, q_tile, warp_row, f.dq, factor);
  __syncwarp();
  store_rows<16 * kBlocksM, kHeadPad, kHeadDim>(
      memory, q_tile, warp_row,
      flash_row(static_cast<Element*>(p.dq), p.dq_strides, batch, head, first_query),
      p.dq_strides.row, valid);
}
