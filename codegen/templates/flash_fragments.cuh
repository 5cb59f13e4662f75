// Tiles in shared memory and their products by mma.sync, for the portable attention kernels. It
// follows ptx.cuh and flash_common.cuh, and the constants kWarpsM, kTurns and kHoldV (as
// flash_tiles.h has them) and kDeterministic.
//
// A tile holds rows of Columns 16-bit elements (a multiple of 16) in chunks of 16 bytes. Chunk c of
// a row lies at c ^ swizzle(row), so that the eight rows that one matrix of ldmatrix takes lie in
// different banks, however many chunks a row has.

// Head sizes are filled up to what divides among warps side by side: those of a product of kTileM
// rows, or kWarpsM.
constexpr int kPad = 16 * flash_max(kWarpsM, (16 * kWarps + kTileM - 1) / kTileM);
constexpr int kHeadPad = (kHeadDim + kPad - 1) / kPad * kPad;
constexpr int kValuePad = (kValueDim + kPad - 1) / kPad * kPad;

// The bytes from a tile's begin to the chunk `known + chunk` of a row, where the two have no bit in
// common. What is known when compiled has terms of its own, so that it becomes part of the
// instruction and threads need few registers for addresses.
template <int Columns>
SN_FN uint32_t tile_offset(uint32_t row, uint32_t known, uint32_t chunk) {
  constexpr uint32_t kChunks = Columns / 8;
  constexpr uint32_t kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  const uint32_t swizzle = (row & 7u) / (8u / kGroup);
  return row * (16 * kChunks) + ((swizzle ^ chunk) ^ (known & (kGroup - 1))) * 16 +
         (known & ~(kGroup - 1)) * 16;
}

// The same from column Span * span on, where what comes is a constant `known` and a `chunk`.
template <int Columns, int Span>
SN_FN uint32_t span_offset(uint32_t row, int span, uint32_t known, uint32_t chunk) {
  constexpr uint32_t kChunks = Span / 8;
  if constexpr (Span == Columns)
    return tile_offset<Columns>(row, known, chunk);
  else if constexpr ((kChunks & (kChunks - 1)) == 0)
    return tile_offset<Columns>(row, known, static_cast<uint32_t>(span) * kChunks | chunk);
  else
    return tile_offset<Columns>(row, 0, static_cast<uint32_t>(span) * kChunks + known + chunk);
}

// Rows x Columns from global memory, of which Used columns and `valid` rows are there; the rest is
// filled with zeros.
template <int Rows, int Columns, int Used>
SN_FN void load_tile(uint32_t tile, const Element* from, int64_t row_stride, int valid) {
  constexpr int kChunks = Columns / 8, kTotal = Rows * kChunks;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kThreads % (8 * kChunks) == 0 && kTotal % kThreads == 0) {
    // A thread has one chunk of each row, and one pointer that moves on.
    constexpr int kStep = kThreads / kChunks;
    const int first = thread / kChunks, chunk = thread % kChunks;
    const Element* at = from + (first * row_stride + chunk * 8);
    const uint32_t to =
        tile + tile_offset<Columns>(static_cast<uint32_t>(first), 0, static_cast<uint32_t>(chunk));
#pragma unroll
    for (int row = 0; row < Rows; row += kStep) {
      const bool there = first + row < valid && chunk * 8 < Used;
      cp_async_16_or_zero(to + static_cast<uint32_t>(row * Columns * 2), at, there);
      at += kStep * row_stride;
    }
  } else {
#pragma unroll
    for (int i = thread; i < kTotal; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool there = row < valid && chunk * 8 < Used;
      cp_async_16_or_zero(
          tile + tile_offset<Columns>(static_cast<uint32_t>(row), 0, static_cast<uint32_t>(chunk)),
          from + (row * row_stride + chunk * 8), there);
    }
  }
}

// The other way, by the threads of one warp: `Rows` rows from `first` on.
template <int Rows, int Columns, int Used>
SN_FN void store_rows(const unsigned char* memory, uint32_t tile, int first, Element* to,
                      int64_t row_stride, int valid) {
  constexpr int kChunks = Used / 8, kTotal = Rows * kChunks;
  const uint32_t base = shared_address(memory);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 32); i < kTotal; i += 32) {
    const int row = first + i / kChunks, chunk = i % kChunks;
    const uint32_t at =
        tile - base +
        tile_offset<Columns>(static_cast<uint32_t>(row), 0, static_cast<uint32_t>(chunk));
    if (row < valid)
      *reinterpret_cast<uint4*>(to + (row * row_stride + chunk * 8)) =
          *reinterpret_cast<const uint4*>(memory + at);
  }
}

// A whole tile by all threads of the block.
template <int Rows, int Columns, int Used>
SN_FN void store_tile(const unsigned char* tile, Element* to, int64_t row_stride, int valid) {
  constexpr int kChunks = Used / 8, kTotal = Rows * kChunks;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTotal; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    if (row < valid)
      *reinterpret_cast<uint4*>(to + (row * row_stride + chunk * 8)) =
          *reinterpret_cast<const uint4*>(
              tile +
              tile_offset<Columns>(static_cast<uint32_t>(row), 0, static_cast<uint32_t>(chunk)));
  }
}

// Zeros in a row.
template <int Columns>
SN_FN void clear_row(unsigned char* tile, int row) {
#pragma unroll 1
  for (int i = 0; i < Columns / 8; ++i)
    reinterpret_cast<uint4*>(tile + row * (2 * Columns))[i] = make_uint4(0, 0, 0, 0);
}

// The warp's number in the block. A shuffle would tell the compiler that all lanes agree on it, and
// costs registers that the kernels lack.
SN_FN int flash_warp() {
  return static_cast<int>(threadIdx.x / 32);
}

// Two values in one word, in the type of `type`.
SN_FN uint32_t pack_pair(bf16 type, float low, float high) {
  (void)type;
  return pack_bf16(low, high);
}
SN_FN uint32_t pack_pair(f16 type, float low, float high) {
  (void)type;
  return pack_f16(low, high);
}

// 16 rows from `row` on, columns 16 step .. + 15 of span `span`, as a first operand.
template <int Columns, int Span = Columns>
SN_FN void load_a(uint32_t (&a)[4], uint32_t tile, int row, int step, int span = 0) {
  const uint32_t lane = threadIdx.x % 32;
  ldmatrix_x4(a, tile + static_cast<uint32_t>(row) * (2 * Columns) +
                     span_offset<Columns, Span>(lane % 16, span, static_cast<uint32_t>(2 * step),
                                                lane / 16));
}

// The same of a tile that holds A's transpose: A's rows are columns 16 m .. of span `span`, and its
// columns the tile's rows 16 step .. + 15.
template <int Columns, int Span>
SN_FN void load_a_trans(uint32_t (&a)[4], uint32_t tile, int span, int m, int step) {
  const uint32_t lane = threadIdx.x % 32;
  ldmatrix_x4_trans(a, tile + static_cast<uint32_t>(step * 32 * Columns) +
                           span_offset<Columns, Span>(lane / 16 * 8 + lane % 8, span,
                                                      static_cast<uint32_t>(2 * m), lane / 8 % 2));
}

// sums += A B^T: B's rows 0 .. 8 Blocks_N - 1 are the columns of the result, step the place in the
// common axis. a: this step of A, for each block of 16 rows.
template <int BlocksM, int BlocksN, int Columns>
SN_FN void multiply_step(float (&sums)[BlocksM][BlocksN][4], const uint32_t (&a)[BlocksM][4],
                         uint32_t b_tile, int step) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < BlocksN; n += 2) {
    uint32_t b[4];
    ldmatrix_x4(b, b_tile + static_cast<uint32_t>(n * 16 * Columns) +
                       tile_offset<Columns>(lane / 16 * 8 + lane % 8,
                                            static_cast<uint32_t>(2 * step), lane / 8 % 2));
#pragma unroll
    for (int m = 0; m < BlocksM; ++m) {
      mma_16x8x16<Element>(sums[m][n], a[m], b[0], b[1]);
      mma_16x8x16<Element>(sums[m][n + 1], a[m], b[2], b[3]);
    }
  }
}
// The whole of it, A being rows from a_row on of a tile too.
template <int BlocksM, int BlocksN, int Columns>
SN_FN void multiply_rows(float (&sums)[BlocksM][BlocksN][4], uint32_t a_tile, int a_row,
                         uint32_t b_tile) {
#pragma unroll
  for (int step = 0; step < Columns / 16; ++step) {
    uint32_t a[BlocksM][4];
#pragma unroll
    for (int m = 0; m < BlocksM; ++m) load_a<Columns>(a[m], a_tile, a_row + 16 * m, step);
    multiply_step<BlocksM, BlocksN, Columns>(sums, a, b_tile, step);
  }
}

// Of two values of 16 bits, keeps those whose bit is set.
SN_FN uint32_t keep_halves(uint32_t pair, uint32_t bits) {
  return pair & (((bits & 1u) != 0 ? 0xffffu : 0u) | ((bits & 2u) != 0 ? 0xffff0000u : 0u));
}

// sums += A B: A [16 BlocksM rows, 16 Steps], as fragments; B's rows are the common axis, and B its
// columns of span `span`. With Clean, row k of B counts as zeros unless seen by some row of A: this
// thread's rows 8j + 2t + c (t = lane % 4) have bit 2j + c of `seen`. What such a row holds may be
// NaN.
template <int BlocksM, int Steps, int Columns, bool Clean, int Span = Columns>
SN_FN void multiply_columns(float (&sums)[BlocksM][Span / 8][4],
                            const uint32_t (&a)[BlocksM][Steps][4], uint32_t b_tile, uint32_t seen,
                            int span = 0) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
#pragma unroll
    for (int n = 0; n < Span / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(
          b, b_tile + static_cast<uint32_t>(step * 32 * Columns) +
                 span_offset<Columns, Span>(lane % 16, span, static_cast<uint32_t>(n), lane / 16));
      if (Clean) {
        b[0] = keep_halves(b[0], seen >> (4 * step));
        b[1] = keep_halves(b[1], seen >> (4 * step + 2));
        b[2] = keep_halves(b[2], seen >> (4 * step));
        b[3] = keep_halves(b[3], seen >> (4 * step + 2));
      }
#pragma unroll
      for (int m = 0; m < BlocksM; ++m) {
        mma_16x8x16<Element>(sums[m][n], a[m][step], b[0], b[1]);
        mma_16x8x16<Element>(sums[m][n + 1], a[m][step], b[2], b[3]);
      }
    }
  }
}

// What a warp's rows see of its columns: or over the lanes that hold the same columns.
SN_FN uint32_t join_rows(uint32_t seen) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) seen |= __shfl_xor_sync(0xffffffffu, seen, lanes);
  return seen;
}

// Sums of a product as the first operand of the next: column blocks 2 step, 2 step + 1.
template <int BlocksN>
SN_FN void pack_step(uint32_t (&a)[4], const float (&sums)[BlocksN][4], int step) {
  a[0] = pack_pair(Element(), sums[2 * step][0], sums[2 * step][1]);
  a[1] = pack_pair(Element(), sums[2 * step][2], sums[2 * step][3]);
  a[2] = pack_pair(Element(), sums[2 * step + 1][0], sums[2 * step + 1][1]);
  a[3] = pack_pair(Element(), sums[2 * step + 1][2], sums[2 * step + 1][3]);
}

// Writes 16-row blocks of results, times `factor`, into rows from `row` on of a tile, the columns
// of span `span`.
template <int BlocksM, int Columns, int Span = Columns>
SN_FN void write_tile(unsigned char* tile, int row, const float (&sums)[BlocksM][Span / 8][4],
                      const float (&factor)[BlocksM][2], int span = 0) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < BlocksM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t r = static_cast<uint32_t>(row + 16 * m + 8 * half) + lane / 4;
#pragma unroll
      for (int n = 0; n < Span / 8; ++n)
        *reinterpret_cast<uint32_t*>(
            tile + span_offset<Columns, Span>(r, span, static_cast<uint32_t>(n), 0) +
            lane % 4 * 4) = pack_pair(Element(), sums[m][n][2 * half] * factor[m][half],
                                      sums[m][n][2 * half + 1] * factor[m][half]);
    }
  }
}

// --- Dropout in fragments of scores. Bit 4n + e of the result stands for element e of column block
//     n. A call of Philox gives 8 elements, so the lanes that hold them share it. ---

// Rows are queries: `query` is this lane's (the upper half; the lower is 8 more), `key` the first.
template <int BlocksN>
SN_FN uint32_t dropout_by_query(const FlashDropout& d, int query, int key) {
  static_assert(BlocksN <= 8, "one word");
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  uint32_t kept = 0;
// One copy of Philox: it is most of the code.
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    if (d.aligned) {
#pragma unroll 1
      for (int n = 0; n < BlocksN; n += 4) {
        uint32_t mine = 0;
        if (n + static_cast<int>(t) < BlocksN)
          mine = d.call(d.element(query + 8 * half, key + 8 * (n + static_cast<int>(t))));
#pragma unroll
        for (int u = 0; u < 4 && n + u < BlocksN; ++u) {
          const uint32_t bits = __shfl_sync(0xffffffffu, mine, static_cast<int>((lane & ~3u) + u));
          kept |= (bits >> (2 * t) & 3u) << (4 * (n + u) + 2 * half);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < 2 * BlocksN; ++i) {
        const int at = key + 8 * (i / 2) + static_cast<int>(2 * t) + i % 2;
        kept |= (d.keeps(query + 8 * half, at) ? 1u : 0u) << (4 * (i / 2) + 2 * half + i % 2);
      }
    }
  }
  return kept;
}

// Columns are queries: `query` is the first, `key` (a multiple of 16) the first of the 16 rows.
template <int BlocksN>
SN_FN uint32_t dropout_by_key(const FlashDropout& d, int query, int key) {
  static_assert(BlocksN <= 8 && BlocksN % 2 == 0, "one word");
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t kept = 0;
  if (d.aligned) {
#pragma unroll 1
    for (int n = 0; n < BlocksN; n += 2) {
      // Lane g of the eight makes the call of element g of the eight: 2 blocks of 4 elements.
      const uint32_t mine = d.call(
          d.element(query + 8 * (n + static_cast<int>(g / 4)) + static_cast<int>(2 * t + g % 2),
                    key + static_cast<int>(g / 2 % 2 * 8)));
#pragma unroll
      for (int u = 0; u < 8; ++u) {
        const uint32_t bits = __shfl_sync(0xffffffffu, mine, static_cast<int>(4u * u + t));
        kept |= (bits >> g & 1u) << (4 * n + u);
      }
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < 4 * BlocksN; ++i) {
      const int at = query + 8 * (i / 4) + static_cast<int>(2 * t) + i % 2;
      kept |= (d.keeps(at, key + i / 2 % 2 * 8 + static_cast<int>(g)) ? 1u : 0u) << i;
    }
  }
  return kept;
}

// --- Scores ---

// Whether a score is the product times a factor and nothing else.
constexpr bool kPlainScores = !(kSoftcap || kBias || kSlopes);

// From products q k to scores in units of log 2. With kPlainScores the factor is left to the
// exponential's fused multiply-add.
struct FlashScores {
  float factor;  // of what score() gives, to units of log 2
  float scale, softcap, softcap_scale, slope;
  int batch, head, shift;  // own place = query + shift

  // The score before masking; `saturation` gets tanh(score / softcap).
  SN_FN_MEMBER float score(const FlashParams& p, float product, int query, int key,
                           float& saturation) const {
    if constexpr (kPlainScores) return product;
    float x = product * scale;
    if (kSoftcap) {
      // 1 - 2 / (1 + exp(2 x)), exact in both limits.
      saturation = 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp2(product * softcap_scale));
      x = softcap * saturation;
    }
    if (kBias) {
      const int q = flash_min(query, p.queries - 1), k = flash_min(key, p.keys - 1);
      x += static_cast<float>(flash_bias(p, batch, head, q, k));
    }
    if (kSlopes) {
      const int distance = query + shift - key;
      x -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
    return x * kLog2E;
  }
};

SN_FN FlashScores flash_scores(const FlashParams& p, int batch, int head, int length) {
  FlashScores s;
  s.scale = static_cast<float>(p.scale);
  s.factor = kPlainScores ? static_cast<float>(p.scale * 1.4426950408889634) : 1.0f;
  s.softcap = static_cast<float>(p.softcap);
  s.softcap_scale =
      kSoftcap ? static_cast<float>(2.0 * 1.4426950408889634 * p.scale / p.softcap) : 0.0f;
  s.slope = kSlopes ? p.slopes[head] : 0.0f;
  s.batch = batch;
  s.head = head;
  s.shift = length - p.queries;
  return s;
}
