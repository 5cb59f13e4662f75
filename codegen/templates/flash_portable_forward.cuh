// Flash attention forward for sm_80 and later: mma.sync, ldmatrix, cp.async.
//
// Tiling. A block has kTileM queries of one head, kTileM / kWarps (16 or 32) to a warp, and walks
// over the keys that they may see, kTileN at a time. Grid: heads * batch * ceil(queries / kTileM)
// blocks of kWarps warps; with causal the last queries, which see most, come first.
//
// Shared memory (16-bit elements, swizzled tiles as flash_fragments.cuh has them):
//   Q  kTileM x kHeadPad                         later the result, kTileM x kValuePad
//   kStages times: K  kTileN x kHeadPad,  V  kTileN x kValuePad
//
// Pipeline. K and V of step i + kStages - 1 are on their way while step i is computed; one wait and
// one block barrier a step, after which the slot of step i - 1 is free. Within a step: S = Q K^T,
// row maxima joined over the quads, P = exp2(S * factor - max * factor) as one fused multiply-add
// and one exponential, O rescaled, O += P V with P straight from the registers of S. Row sums stay
// with the threads and are joined at the end. A warp tests elements only in steps of which it sees
// a part, and passes over those of which it sees nothing.

static_assert(kTileM % (16 * kWarps) == 0 && kTileN % 16 == 0 && kTileN <= 64 && kStages >= 2, "");

constexpr int kQBytes = kTileM * kHeadPad * 2;
constexpr int kKBytes = kTileN * kHeadPad * 2, kVBytes = kTileN * kValuePad * 2;
static_assert(kQBytes + kStages * (kKBytes + kVBytes) == kSharedBytes, "as flash_tiles.h has it");
static_assert(kTileM * kValuePad * 2 <= kSharedBytes, "the result goes through shared memory");

constexpr int kBlocksM = kTileM / kWarps / 16, kBlocksN = kTileN / 8;
constexpr int kHeadSteps = kHeadPad / 16, kKeySteps = kTileN / 16;
// Q stays in registers where it is small.
constexpr bool kHoldQ = kBlocksM * kHeadSteps <= 8;

// What a thread holds. Its rows are 16 m + 8 half + lane / 4 from its warp's first on, its columns
// of a step 8 n + lane % 4 * 2 + {0, 1}.
struct FlashForward {
  int batch, head, query, column;  // query: of m = 0 and half = 0
  Interval document[kBlocksM][2];  // with kDocuments: the keys that each row may see
  FlashScores scores;
  FlashDropout dropout;
  uint32_t q[kHoldQ ? kHeadSteps : 1][kBlocksM][4];
  float o[kBlocksM][kValuePad / 8][4];
  float largest[kBlocksM][2], total[kBlocksM][2];

  // The keys that the rows of block m may see: held where they are costly to find.
  SN_FN_MEMBER void rows_keys(const FlashParams& p, int m, Interval (&keys)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      keys[half] = kDocuments ? document[m][half]
                              : flash_keys(p, batch, scores.shift + p.queries,
                                           flash_min(query + 16 * m + 8 * half, p.queries - 1));
  }

  // One tile of keys.
  template <bool kMasked>
  SN_FN_MEMBER void step(const FlashParams& p, uint32_t q_tile, int warp_row, uint32_t k_tile,
                         int first_key) {
    float s[kBlocksM][kBlocksN][4] = {};
    if constexpr (kHoldQ) {
#pragma unroll
      for (int step = 0; step < kHeadSteps; ++step)
        multiply_step<kBlocksM, kBlocksN, kHeadPad>(s, q[step], k_tile, step);
    } else {
      multiply_rows<kBlocksM, kBlocksN, kHeadPad>(s, q_tile, warp_row, k_tile);
    }

    uint32_t seen = 0;
    if constexpr (kMasked || !kPlainScores) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m) {
        Interval keys[2];
        if (kMasked) rows_keys(p, m, keys);
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = query + 16 * m + e / 2 * 8, j = first_key + 8 * n + column + e % 2;
            float saturation;
            s[m][n][e] = scores.score(p, s[m][n][e], i, j, saturation);
            if (!kMasked) continue;
            bool visible = keys[e / 2].begin <= j && j < keys[e / 2].end;
            if (kMask && visible) visible = i < p.queries && flash_mask(p, batch, head, i, j);
            s[m][n][e] = visible ? s[m][n][e] : -flash_inf();
            seen |= (visible ? 1u : 0u) << (2 * n + e % 2);
          }
      }
      if (kMasked) seen = join_rows(seen);
    }

    // The maxima of all rows together, so that their shuffles wait for each other no longer than
    // once.
    float rescale[kBlocksM][2], shift[kBlocksM][2];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = largest[m][half];
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
          top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        shift[m][half] = top;
      }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          shift[m][half] =
              fmaxf(shift[m][half], __shfl_xor_sync(0xffffffffu, shift[m][half], lanes));
    bool changed = false;
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = shift[m][half];
        // A row that has seen nothing yet: any finite number does.
        shift[m][half] = (top == -flash_inf() ? 0.0f : top) * scores.factor;
        rescale[m][half] = fast_exp2(__fmaf_rn(largest[m][half], scores.factor, -shift[m][half]));
        changed |= rescale[m][half] != 1.0f;
        largest[m][half] = top;
        total[m][half] *= rescale[m][half];
      }
    // After the first tiles, maxima seldom change.
    if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int n = 0; n < kValuePad / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[m][n][e] *= rescale[m][e / 2];
    }

    uint32_t a[kBlocksM][kKeySteps][4];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            s[m][n][c] = fast_exp2(__fmaf_rn(s[m][n][c], scores.factor, -shift[m][half]));
            sum += s[m][n][c];
          }
        total[m][half] += sum;
      }
      if (kDropout) {
        const uint32_t kept = dropout_by_query<kBlocksN>(dropout, query + 16 * m, first_key);
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if ((kept >> (4 * n + e) & 1u) == 0) s[m][n][e] = 0.0f;
      }
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) pack_step<kBlocksN>(a[m][step], s[m], step);
    }
    multiply_columns<kBlocksM, kKeySteps, kValuePad, kMasked>(o, a, k_tile + kKBytes, seen);
  }
};

SN_KERNEL void __launch_bounds__(kThreads) flash_forward(const FlashParams p) {
  SN_DYNAMIC_SHARED(memory);
  const uint32_t q_tile = shared_address(memory), stages = q_tile + kQBytes;

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
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (first_step + i < last_step) load_step(first_step + i, i);
    cp_async_commit();
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = flash_warp() * 16 * kBlocksM;
  FlashForward f;
  f.batch = batch;
  f.head = head;
  f.query = first_query + warp_row + lane / 4;
  f.column = lane % 4 * 2;
  f.scores = flash_scores(p, batch, head, length);
  if (kDropout) f.dropout = flash_dropout(p, batch, head);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (kDocuments)
        f.document[m][half] =
            flash_keys(p, batch, length, flash_min(f.query + 16 * m + 8 * half, p.queries - 1));
      f.largest[m][half] = -flash_inf();
      f.total[m][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kValuePad / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f.o[m][n][e] = 0.0f;
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
    if constexpr (kHoldQ) {
      if (step == first_step) {
#pragma unroll
        for (int i = 0; i < kHeadSteps; ++i)
#pragma unroll
          for (int m = 0; m < kBlocksM; ++m)
            load_a<kHeadPad>(f.q[i][m], q_tile, warp_row + 16 * m, i);
      }
    }
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
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = f.total[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factor[m][half] = sum == 0.0f ? 0.0f : 1.0f / sum;
      if (kDropout) factor[m][half] *= static_cast<float>(p.keep_scale);
      const int i = f.query + 16 * m + 8 * half;
      if (p.lse != nullptr && lane % 4 == 0 && i < p.queries) {
        const float lse = sum == 0.0f
                              ? -flash_inf()
                              : __fmaf_rn(f.largest[m][half] * f.scores.factor, kLn2, sn_log(sum));
        static_cast<float*>(p.lse)[(static_cast<int64_t>(batch) * p.heads + head) * p.queries + i] =
            lse;
      }
    }
  write_tile<kBlocksM, kValuePad>(memory, warp_row, f.o, factor);
  __syncwarp();
  store_rows<16 * kBlocksM, kValuePad, kValueDim>(
      memory, q_tile, warp_row,
      flash_row(static_cast<Element*>(p.y), p.y_strides, batch, head, first_query), p.y_strides.row,
      valid);
}
