// Flash attention backward for sm_80 and later: dQ, dK and dV in one pass over the keys.
//
// Two kernels, after flash_delta:
//   flash_backward         all five products; dK and dV leave finished, dQ as sums in f32
//   flash_backward_finish  dQ = scale * sums, converted, into its strided place
//
// Tiling. A block has kTileN keys of one key head and walks over the queries that see them, kTileM
// at a time, and at each tile over the heads that share its keys. Its warps stand in a grid of
// kWarpsN by kWarpsM: for scores (keys by queries) and for dK and dV (keys by columns). So a warp
// holds dK and dV of its keys and columns in registers over all steps. For dQ (queries by columns)
// the grid is kSumRows by kSumColumns.
// Grid: kv_heads * batch * ceil(keys / kTileN) blocks of kWarps warps.
//
// Shared memory (16-bit elements, swizzled tiles as flash_fragments.cuh has them):
//   K  kTileN x kHeadPad,  V  kTileN x kValuePad               later dK and dV
//      with kHoldV V has no place of its own: on its way to registers it lies where stages will
//   kStages times: Q  kTileM x kHeadPad,  dY  kTileM x kValuePad,  lse, delta  kTileM f32 each
//   dS^T  kTileN x kTileM,  P^T  the same where kWarpsM > 1
//   with kMask the keys that each part of the warps saw: kWarpsM x kTileN bytes;  kTurns turns
//
// Pipeline. The rows of step i + kStages - 1 are on their way while step i is computed. A step:
//   S^T = K Q^T,  dP^T = V dY^T,  P^T = exp(S^T - lse),  dS^T = P^T (dP^T - delta)
//   P^T and dS^T to shared memory
//   dV += P^T dY,  dK += dS^T Q  for the warp's own queries: from registers
//   --- barrier ---
//   dQ = dS K, added to the sums; dV and dK for the queries of the other warps
// The scale of the scores and that of dropout are applied once, to the sums.
//
// Order. The grid goes through sections of p.section key heads, and through the key tiles of a
// section's heads side by side. It begins with the last keys, of which a diagonal leaves least to
// do; but with the first ones in the last section, so that blocks that begin late end early. There
// the queries are walked through from the last to the first.
// With kDeterministic the sums of a query tile are added in the order of the blocks in the grid:
// `turns` counts them. So a block waits for such as come before it alone. Where there is a diagonal
// these have been there a step or more earlier: waits are rare. The first sum is stored, not added,
// so nothing is to be cleared but the turns. A turn is passed on in a later step, when the sums are
// long in memory, and with kTurns 2 two at a time: the fence before it costs some percent of a
// step, and where a tile of keys is two of queries long nobody waits for it yet. Without
// kDeterministic sums are added as they come, and have to be cleared.

static_assert(kWarps % kWarpsM == 0, "a grid of warps");
constexpr int kWarpsN = kWarps / kWarpsM;
static_assert(kTileN % (16 * kWarpsN) == 0 && kTileM % (16 * kWarpsM) == 0, "");
static_assert(kTileM % 32 == 0 && kTileM <= kThreads, "a thread loads a row's lse and delta");

constexpr int kKBytes = kTileN * kHeadPad * 2, kVBytes = kHoldV ? 0 : kTileN * kValuePad * 2;
constexpr int kQBytes = kTileM * kHeadPad * 2, kYBytes = kTileM * kValuePad * 2;
constexpr int kStageBytes = kQBytes + kYBytes + 8 * kTileM;
constexpr int kScoreBytes = kTileN * kTileM * 2;
constexpr int kStagesAt = kKBytes + kVBytes;
constexpr int kChangesAt = kStagesAt + kStages * kStageBytes;  // dS^T
constexpr int kSharesAt = kChangesAt + kScoreBytes;            // P^T
constexpr int kSeenAt = kSharesAt + (kWarpsM > 1 ? kScoreBytes : 0);
constexpr int kTurnAt = kSeenAt + kTileN * kWarpsM;
static_assert(kTurnAt + 16 * kTurns == kSharedBytes, "as flash_tiles.h has it");
static_assert(kKBytes + kTileN * kValuePad * 2 <= kTurnAt, "V comes, and dV goes, behind K");

// Of a warp: 16-row blocks of keys, queries, columns of dK and dV.
constexpr int kKeyRows = kTileN / kWarpsN, kBlocksM = kKeyRows / 16;
constexpr int kPart = kTileM / kWarpsM, kBlocksN = kPart / 8, kPartSteps = kPart / 16;
constexpr int kKeyColumns = kHeadPad / kWarpsM, kValueColumns = kValuePad / kWarpsM;
static_assert(kKeyColumns % 16 == 0 && kValueColumns % 16 == 0, "");

// The grid of dQ: that which reads least.
SN_FN constexpr bool sum_rows_fit(int rows) {
  return kWarps % rows == 0 && kTileM % (16 * rows) == 0 && kHeadPad % (16 * (kWarps / rows)) == 0;
}
SN_FN constexpr int sum_rows() {
  int best = 0;
  for (int rows = 1; rows <= kWarps; rows *= 2)
    if (sum_rows_fit(rows) && (best == 0 || kTileM / rows + kHeadPad * rows / kWarps <
                                                kTileM / best + kHeadPad * best / kWarps))
      best = rows;
  return best;
}
constexpr int kSumRows = sum_rows();
static_assert(kSumRows > 0, "no grid for dQ");
constexpr int kSumColumns = kWarps / kSumRows;
constexpr int kSumBlocksM = kTileM / kSumRows / 16, kSumWidth = kHeadPad / kSumColumns;

// --- The sums: of a query tile, those of one warp after another, in the order of registers ---

SN_FN int flash_query_tiles(const FlashParams& p) {
  return (p.queries + kTileM - 1) / kTileM;
}
SN_FN float* flash_sums(const FlashParams& p, int64_t query_tile, int warp) {
  return static_cast<float*>(p.sums) + query_tile * (kTileM * kHeadPad) +
         warp * (kTileM * kHeadPad / kWarps);
}
// The turn number `rank` of a query tile.
struct Turn {
  int64_t at;
  uint32_t rank;
};
constexpr int kPassAfter = kCausal || kWindow ? kTurns : 1;  // steps

// What a block of the grid has: key head `head` of all batches' in turn, a tile of its keys, and
// whether it walks through the queries backwards.
struct FlashWork {
  int head, tile;
  bool backwards;
};
SN_FN FlashWork flash_work(const FlashParams& p, int block) {
  const int tiles = (p.keys + kTileN - 1) / kTileN, heads = p.batch * p.kv_heads;
  const int section = block / (p.section * tiles), begin = section * p.section;
  const int count = flash_min(p.section, heads - begin);
  const int at = block - begin * tiles, place = at / count;
  const bool backwards = kCausal && begin != 0 && begin + count == heads;
  return {begin + at - place * count, backwards ? place : tiles - 1 - place, backwards};
}

// How many keys of a tile count.
SN_FN int flash_keys_there(const FlashParams& p, int length, int tile) {
  return flash_max(flash_min(kTileN, flash_min(length, p.keys) - tile * kTileN), 0);
}
// Query tiles [begin, end) that see some key of a tile; and, what is the same, key tiles that some
// query of a tile sees.
SN_FN Interval flash_tiles_seeing(const FlashParams& p, int batch, int length, int tile) {
  const int first = tile * kTileN, there = flash_keys_there(p, length, tile);
  if (there == 0) return {0, 0};
  const Interval queries{flash_queries(p, batch, length, first).begin,
                         flash_queries(p, batch, length, first + there - 1).end};
  if (queries.end <= queries.begin) return {0, 0};
  return {queries.begin / kTileM, (queries.end + kTileM - 1) / kTileM};
}
SN_FN Interval flash_tiles_seen(const FlashParams& p, int batch, int length, int query_tile) {
  const int first = query_tile * kTileM, last = flash_min(first + kTileM, p.queries) - 1;
  const Interval keys{flash_keys(p, batch, length, first).begin,
                      flash_keys(p, batch, length, last).end};
  if (keys.end <= keys.begin) return {0, 0};
  return {keys.begin / kTileN, (keys.end + kTileN - 1) / kTileN};
}
// Whether each document begins where the one before it ended or later. If not, who sees whom is not
// told, and no block may wait for another. By all threads of the block.
SN_FN bool flash_documents_rise(const FlashParams& p, int batch) {
  const int* starts = p.cu_lengths + static_cast<int64_t>(batch) * (p.documents + 1);
  bool rise = true;
  for (int i = static_cast<int>(threadIdx.x); i < p.documents; i += kThreads)
    rise &= starts[i] <= starts[i + 1];
  return __syncthreads_and(rise ? 1 : 0) != 0;
}

// --- A step's scores ---

// What a thread holds of them: rows are keys, 16 m + 8 half + lane / 4 from its warp's first on;
// columns are queries, 8 n + lane % 4 * 2 + {0, 1} of its warp's part. As operands they are in
// words, 16 rows by 16 queries each.
struct FlashBackward {
  int batch, key, column;          // key: of m = 0 and half = 0
  Interval document[kBlocksM][2];  // with kDocuments: the queries that may see each row
  uint32_t v[kHoldV ? kValuePad / 16 : 1][kBlocksM][4];
  uint32_t shares[kBlocksM][kPartSteps][4], changes[kBlocksM][kPartSteps][4];

  // `rows`: lse in units of log 2 (infinite where a row sees nothing) and delta of the part.
  template <bool kMasked>
  SN_FN_MEMBER void step(const FlashParams& p, int head, const FlashScores& scores,
                         const FlashDropout& dropout, uint32_t k_tile, uint32_t q_part,
                         uint32_t y_part, const float* rows, int warp_row, int first_query,
                         unsigned char* seen_keys) {
    float s[kBlocksM][kBlocksN][4] = {}, dp[kBlocksM][kBlocksN][4] = {};
    multiply_rows<kBlocksM, kBlocksN, kHeadPad>(s, k_tile, warp_row, q_part);
    if constexpr (kHoldV) {
#pragma unroll
      for (int i = 0; i < kValuePad / 16; ++i)
        multiply_step<kBlocksM, kBlocksN, kValuePad>(dp, v[i], y_part, i);
    } else {
      multiply_rows<kBlocksM, kBlocksN, kValuePad>(dp, k_tile + kKBytes, warp_row, y_part);
    }

    Interval queries[kBlocksM][2];
    bool seen[kBlocksM][2] = {};
    uint32_t kept[kBlocksM];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
      if (kMasked) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          queries[m][half] = kDocuments ? document[m][half]
                                        : flash_queries(p, batch, scores.shift + p.queries,
                                                        key + 16 * m + 8 * half);
      }
      if (kDropout)
        kept[m] = dropout_by_key<kBlocksN>(dropout, first_query,
                                           key - static_cast<int>(threadIdx.x % 32 / 4) + 16 * m);
    }
    const float keep_scale = kDropout ? static_cast<float>(p.keep_scale) : 1.0f;
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(rows + 8 * n + column);
      const float2 delta = *reinterpret_cast<const float2*>(rows + kTileM + 8 * n + column);
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = first_query + 8 * n + column + e % 2, j = key + 16 * m + e / 2 * 8;
          float saturation;
          const float score = scores.score(p, s[m][n][e], i, j, saturation);
          float share = fast_exp2(__fmaf_rn(score, scores.factor, e % 2 == 0 ? -lse.x : -lse.y));
          if (kMasked) {
            bool visible = queries[m][e / 2].begin <= i && i < queries[m][e / 2].end;
            if (kMask && visible) visible = flash_mask(p, batch, head, i, j);
            share = visible ? share : 0.0f;
            seen[m][e / 2] |= visible;
          }
          const bool keep = !kDropout || (kept[m] >> (4 * n + e) & 1u) != 0;
          float change = dp[m][n][e];
          if (kDropout) change = keep ? change * keep_scale : 0.0f;
          change -= e % 2 == 0 ? delta.x : delta.y;
          if (kSoftcap) change *= __fmaf_rn(-saturation, saturation, 1.0f);
          change *= share;
          // What is not seen counts nothing, whatever v and dy hold there.
          if (kMasked || kBias) change = share == 0.0f ? 0.0f : change;
          dp[m][n][e] = change;
          s[m][n][e] = keep ? share : 0.0f;
        }
    }
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int i = 0; i < kPartSteps; ++i) {
        pack_step<kBlocksN>(shares[m][i], s[m], i);
        pack_step<kBlocksN>(changes[m][i], dp[m], i);
      }
    if constexpr (kMask) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t quads = __ballot_sync(0xffffffffu, seen[m][half]);
          const uint32_t lane = threadIdx.x % 32;
          if (lane % 4 == 0)
            seen_keys[16 * m + 8 * half + static_cast<int>(lane / 4)] =
                (quads >> lane & 15u) != 0 ? 1 : 0;
        }
    }
  }
};

// Writes operands to rows from `row` on and the columns of a part of a tile of scores.
SN_FN void write_operands(unsigned char* tile, int row, int part,
                          const uint32_t (&a)[kBlocksM][kPartSteps][4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t r = static_cast<uint32_t>(row + 16 * m + 8 * half) + lane / 4;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
        *reinterpret_cast<uint32_t*>(
            tile + span_offset<kTileM, kPart>(r, part, static_cast<uint32_t>(n), 0) +
            lane % 4 * 4) = a[m][n / 2][n % 2 * 2 + half];
    }
}

// Which of the 16 keys from `first` on were seen, as multiply_columns wants it for a step of dS K.
SN_FN uint32_t flash_seen_bits(const unsigned char* seen, int first) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = first + 8 * j + static_cast<int>(threadIdx.x % 4 * 2) + c;
      bool any = false;
#pragma unroll
      for (int part = 0; part < kWarpsM; ++part) any |= seen[part * kTileN + row] != 0;
      bits |= (any ? 1u : 0u) << (2 * j + c);
    }
  return bits;
}

// write_tile with one factor.
template <int BlocksM, int Columns, int Span>
SN_FN void write_scaled(unsigned char* tile, int row, const float (&sums)[BlocksM][Span / 8][4],
                        float by, int span) {
  float factor[BlocksM][2];
#pragma unroll
  for (int m = 0; m < BlocksM; ++m) factor[m][0] = factor[m][1] = by;
  write_tile<BlocksM, Columns, Span>(tile, row, sums, factor, span);
}

// --- The kernel ---

SN_KERNEL void __launch_bounds__(kThreads) flash_backward(const FlashParams p) {
  SN_DYNAMIC_SHARED(memory);
  const uint32_t k_tile = shared_address(memory), stages = k_tile + kStagesAt;
  const int thread = static_cast<int>(threadIdx.x);

  const FlashWork work = flash_work(p, static_cast<int>(blockIdx.x));
  const int tile = work.tile, first_key = tile * kTileN, group = p.heads / p.kv_heads;
  const int batch = work.head / p.kv_heads, kv_head = work.head - batch * p.kv_heads;
  const int length = flash_length(p, batch), there = flash_keys_there(p, length, tile);
  Interval walk = flash_tiles_seeing(p, batch, length, tile);
  if (kDocuments && !flash_documents_rise(p, batch)) walk.end = walk.begin;
  const int total = (walk.end - walk.begin) * group;

  load_tile<kTileN, kHeadPad, kHeadDim>(
      k_tile, flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, first_key),
      p.k_strides.row, there);
  const uint32_t v_tile = k_tile + kKBytes;
  load_tile<kTileN, kValuePad, kValueDim>(
      v_tile, flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, first_key),
      p.v_strides.row, there);

  const int lane = thread % 32, warp = flash_warp();
  const int warp_row = warp % kWarpsN * kKeyRows, part = warp / kWarpsN;
  FlashBackward f;
  if constexpr (kHoldV) {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kValuePad / 16; ++i)
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m) load_a<kValuePad>(f.v[i][m], v_tile, warp_row + 16 * m, i);
    __syncthreads();
  }

  // The rows of the next step: of each query tile, the heads of the group.
  const int onwards = work.backwards ? -1 : 1;
  int query_tile = work.backwards ? walk.end - 1 : walk.begin, head = kv_head * group;
  int next_head = head, next_query = query_tile * kTileM;
  auto load_step = [&](int slot) {
    const int of_head = next_head, query = next_query, valid = p.queries - query;
    if (++next_head == (kv_head + 1) * group) {
      next_head = kv_head * group;
      next_query += onwards * kTileM;
    }
    const uint32_t at = stages + static_cast<uint32_t>(slot * kStageBytes);
    load_tile<kTileM, kHeadPad, kHeadDim>(
        at, flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, of_head, query),
        p.q_strides.row, valid);
    load_tile<kTileM, kValuePad, kValueDim>(
        at + kQBytes,
        flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, of_head, query),
        p.dy_strides.row, valid);
    if (thread < kTileM) {
      const int64_t row = (static_cast<int64_t>(batch) * p.heads + of_head) * p.queries + query;
      const uint32_t to = at + kQBytes + kYBytes + static_cast<uint32_t>(4 * thread);
      const int clipped = flash_min(thread, valid - 1);
      cp_async_4_or_zero(to, static_cast<const float*>(p.lse) + row + clipped, thread < valid);
      cp_async_4_or_zero(to + 4 * kTileM, static_cast<const float*>(p.delta) + row + clipped,
                         thread < valid);
    }
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < total) load_step(i);
    cp_async_commit();
  }

  f.batch = batch;
  f.key = first_key + warp_row + lane / 4;
  f.column = lane % 4 * 2;
  if (kDocuments) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        f.document[m][half] = flash_queries(p, batch, length, f.key + 16 * m + 8 * half);
  }
  // The queries that see all of the warp's keys.
  Interval all{0, 0};
  if (!kMask && warp_row + kKeyRows <= there) {
    all.begin = flash_queries(p, batch, length, first_key + warp_row + kKeyRows - 1).begin;
    all.end = flash_queries(p, batch, length, first_key + warp_row).end;
  }
  float dk[kBlocksM][kKeyColumns / 8][4] = {}, dv[kBlocksM][kValueColumns / 8][4] = {};

  FlashScores scores = flash_scores(p, batch, kv_head * group, length);
  FlashDropout dropout;
  unsigned char* const seen_keys = memory + kSeenAt;
  const int query_tiles = flash_query_tiles(p);
  // Turns that were this block's, for thread 0 to pass on once all threads have added their sums.
  Turn* const taken = reinterpret_cast<Turn*>(memory + kTurnAt);
  auto pass_turns = [&](int count) {
    if (!kDeterministic || thread != 0) return;
    fence_release();
    for (int t = 0; t < count; ++t) store_relaxed(p.turns + taken[t].at, taken[t].rank + 1);
  };
  int slot = 0, next_slot = kStages - 1;
#pragma unroll 1
  for (int i = 0; i < total; ++i) {
    if constexpr (kStages == 1) {
      __syncthreads();
      load_step(0);
      cp_async_commit();
    }
    cp_async_wait<(kStages > 1 ? kStages - 2 : 0)>();
    const int at = kStagesAt + slot * kStageBytes;
    float* rows = reinterpret_cast<float*>(memory + at + kQBytes + kYBytes);
    // Each thread makes ready what it has loaded itself.
    bool blind = false;
    if (thread < kTileM) {
      const float lse = rows[thread];
      blind = lse == -flash_inf();
      rows[thread] = blind ? flash_inf() : lse * kLog2E;
    }
    const bool any_blind = __syncthreads_or(blind ? 1 : 0) != 0;
    if (i != 0 && i % kPassAfter == 0) pass_turns(kPassAfter);
    if constexpr (kStages > 1) {
      if (i + kStages - 1 < total) load_step(next_slot);
      cp_async_commit();
    }
    const uint32_t q_tile = k_tile + static_cast<uint32_t>(at), y_tile = q_tile + kQBytes;
    if (any_blind) {
      // Rows that see nothing may hold anything.
      for (int r = thread; r < kTileM; r += kThreads)
        if (rows[r] == flash_inf()) {
          clear_row<kHeadPad>(memory + at, r);
          clear_row<kValuePad>(memory + at + kQBytes, r);
        }
    }
    if (i == 0) {
      // So may keys that no query sees.
      const int begin = flash_keys(p, batch, length, 0).begin - first_key;
      const int end = flash_keys(p, batch, length, p.queries - 1).end - first_key;
      for (int r = thread; r < kTileN; r += kThreads)
        if (r < begin || r >= end) clear_row<kHeadPad>(memory, r);
    }
    if (any_blind || i == 0) __syncthreads();

    const int first_query = query_tile * kTileM + part * kPart;
    if (kBias || kSlopes) scores = flash_scores(p, batch, head, length);
    if (kDropout) dropout = flash_dropout(p, batch, head);
    const auto part_rows = static_cast<uint32_t>(part * kPart);
    const uint32_t q_part = q_tile + part_rows * (kHeadPad * 2);
    const uint32_t y_part = y_tile + part_rows * (kValuePad * 2);
    unsigned char* const seen_of_warp = seen_keys + part * kTileN + warp_row;
    if (all.begin <= first_query && first_query + kPart <= all.end)
      f.template step<false>(p, head, scores, dropout, k_tile, q_part, y_part, rows + part * kPart,
                             warp_row, first_query, seen_of_warp);
    else
      f.template step<true>(p, head, scores, dropout, k_tile, q_part, y_part, rows + part * kPart,
                            warp_row, first_query, seen_of_warp);
    write_operands(memory + kChangesAt, warp_row, part, f.changes);
    if (kWarpsM > 1) write_operands(memory + kSharesAt, warp_row, part, f.shares);
    multiply_columns<kBlocksM, kPartSteps, kValuePad, false, kValueColumns>(dv, f.shares, y_part, 0,
                                                                            part);
    multiply_columns<kBlocksM, kPartSteps, kHeadPad, false, kKeyColumns>(dk, f.changes, q_part, 0,
                                                                         part);
    __syncthreads();

    {
      const int64_t tile_at =
          (static_cast<int64_t>(batch) * p.heads + head) * query_tiles + query_tile;
      uint32_t rank = 1, passed = 1;
      if constexpr (kDeterministic) {
        const Interval seen = flash_tiles_seen(p, batch, length, query_tile);
        rank = static_cast<uint32_t>(work.backwards ? tile - seen.begin : seen.end - 1 - tile);
        if (rank != 0) passed = load_relaxed(p.turns + tile_at);
      }
      float dq[kSumBlocksM][kSumWidth / 8][4] = {};
#pragma unroll
      for (int step = 0; step < kTileN / 16; ++step) {
        uint32_t a[kSumBlocksM][1][4];
#pragma unroll
        for (int m = 0; m < kSumBlocksM; ++m)
          load_a_trans<kTileM, 16 * kSumBlocksM>(a[m][0], k_tile + kChangesAt, warp % kSumRows, m,
                                                 step);
        const uint32_t seen = kMask ? flash_seen_bits(seen_keys, 16 * step) : 0;
        multiply_columns<kSumBlocksM, 1, kHeadPad, kMask, kSumWidth>(
            dq, a, k_tile + static_cast<uint32_t>(step * 32 * kHeadPad), seen, warp / kSumRows);
      }
      float* const to = flash_sums(p, tile_at, warp);
      // No sum is on its way before the flag that lets it go has been read.
      if constexpr (kDeterministic)
        while (passed < rank) passed = load_acquire(p.turns + tile_at);
#pragma unroll
      for (int m = 0; m < kSumBlocksM; ++m)
#pragma unroll
        for (int n = 0; n < kSumWidth / 8; ++n) {
          float* fragment = to + (m * (kSumWidth / 8) + n) * 128;
          if (rank == 0)
            store_fragment(fragment, dq[m][n]);
          else
            add_fragment(fragment, dq[m][n]);
        }
      if (kDeterministic && thread == 0) taken[i % kPassAfter] = {tile_at, rank};
    }
#pragma unroll
    for (int other = 1; other < kWarpsM; ++other) {
      const int from = (part + other) % kWarpsM;
      uint32_t a[kBlocksM][kPartSteps][4];
#pragma unroll
      for (int step = 0; step < kPartSteps; ++step)
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m)
          load_a<kTileM, kPart>(a[m][step], k_tile + kSharesAt, warp_row + 16 * m, step, from);
      const auto from_rows = static_cast<uint32_t>(from * kPart);
      multiply_columns<kBlocksM, kPartSteps, kValuePad, false, kValueColumns>(
          dv, a, y_tile + from_rows * (kValuePad * 2), 0, part);
#pragma unroll
      for (int step = 0; step < kPartSteps; ++step)
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m)
          load_a<kTileM, kPart>(a[m][step], k_tile + kChangesAt, warp_row + 16 * m, step, from);
      multiply_columns<kBlocksM, kPartSteps, kHeadPad, false, kKeyColumns>(
          dk, a, q_tile + from_rows * (kHeadPad * 2), 0, part);
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    if (++head == (kv_head + 1) * group) {
      head = kv_head * group;
      query_tile += onwards;
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (total > 0) pass_turns((total - 1) % kPassAfter + 1);

  // dK where K was, dV behind it.
  const int valid = p.keys - first_key;
  write_scaled<kBlocksM, kHeadPad, kKeyColumns>(memory, warp_row, dk, static_cast<float>(p.scale),
                                                part);
  write_scaled<kBlocksM, kValuePad, kValueColumns>(
      memory + kKBytes, warp_row, dv, kDropout ? static_cast<float>(p.keep_scale) : 1.0f, part);
  __syncthreads();
  store_tile<kTileN, kHeadPad, kHeadDim>(
      memory, flash_row(static_cast<Element*>(p.dk), p.dk_strides, batch, kv_head, first_key),
      p.dk_strides.row, valid);
  store_tile<kTileN, kValuePad, kValueDim>(
      memory + kKBytes,
      flash_row(static_cast<Element*>(p.dv), p.dv_strides, batch, kv_head, first_key),
      p.dv_strides.row, valid);
}

// A block for each (batch, head, query tile).
SN_KERNEL void __launch_bounds__(kThreads) flash_backward_finish(const FlashParams p) {
  SN_DYNAMIC_SHARED(memory);
  const int tiles = flash_query_tiles(p), block = static_cast<int>(blockIdx.x),
            tile = block % tiles;
  const int batch = block / tiles / p.heads, head = block / tiles % p.heads;
  const int first = tile * kTileM, warp = flash_warp();
  // Where no sum was stored, none may be read.
  bool any = true;
  if (kDeterministic) {
    const Interval seen = flash_tiles_seen(p, batch, flash_length(p, batch), tile);
    any = seen.end > seen.begin;
    if (kDocuments && !flash_documents_rise(p, batch)) any = false;
  }
  float dq[kSumBlocksM][kSumWidth / 8][4] = {};
  const float* from = flash_sums(p, block, warp);
  if (any) {
#pragma unroll
    for (int m = 0; m < kSumBlocksM; ++m)
#pragma unroll
      for (int n = 0; n < kSumWidth / 8; ++n)
        load_fragment(dq[m][n], from + (m * (kSumWidth / 8) + n) * 128);
  }
  write_scaled<kSumBlocksM, kHeadPad, kSumWidth>(memory, warp % kSumRows * kSumBlocksM * 16, dq,
                                                 static_cast<float>(p.scale), warp / kSumRows);
  __syncthreads();
  store_tile<kTileM, kHeadPad, kHeadDim>(
      memory, flash_row(static_cast<Element*>(p.dq), p.dq_strides, batch, head, first),
      p.dq_strides.row, p.queries - first);
}
