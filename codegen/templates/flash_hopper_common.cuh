// What the Hopper attention kernels share: tiles in shared memory, items of work, and the bits of
// dropout. It follows ptx_hopper.cuh and flash_common.cuh, whose constants hold here too, with
// kMask and kBias false and kWarps counting the feeder's warpgroup.

// Head sizes are filled up, with zeros that TMA gives, to what wgmma and the swizzles take.
SN_FN constexpr int hopper_width(int size) {
  return size > 192 ? 256 : (size + 31) / 32 * 32;
}
constexpr int kWidth = hopper_width(kHeadDim), kValueWidth = hopper_width(kValueDim);

template <typename T>
constexpr bool kIsF16 = false;
template <>
constexpr bool kIsF16<f16> = true;
constexpr bool kF16 = kIsF16<Element>;

// [Rows][Width] 16-bit elements as TMA lays them out: boxes of up to 64 columns, one behind
// another, each row of a box 128 (or 64) bytes, whose 16-byte chunks are swizzled by the row. As an
// operand the tile is K-major (its columns are K) or MN-major (its rows are K).
template <int Rows, int Width>
struct HopperTile {
  static_assert(Width % 32 == 0 && Rows % 8 == 0, "whole swizzle atoms");
  static constexpr int kSpan = Width % 64 == 0 ? 128 : 64;
  static constexpr int kColumns = kSpan / 2;
  static constexpr int kBoxes = Width / kColumns;
  static constexpr uint32_t kBoxBytes = Rows * kSpan;
  static constexpr uint32_t kBytes = kBoxBytes * kBoxes;

  // `row`: where the operand begins, a multiple of 8.
  SN_FN_MEMBER static uint64_t k_major(uint32_t tile, int row = 0) {
    return hopper::at_address(hopper::matrix_descriptor<kSpan>(16, 8 * kSpan),
                              tile + static_cast<uint32_t>(row * kSpan));
  }
  SN_FN_MEMBER static uint64_t mn_major(uint32_t tile, int row = 0) {
    return hopper::at_address(hopper::matrix_descriptor<kSpan>(kBoxBytes, 8 * kSpan),
                              tile + static_cast<uint32_t>(row * kSpan));
  }
  // Bytes from K to K + 16 * step.
  SN_FN_MEMBER static constexpr uint32_t k_step(int step) {
    return static_cast<uint32_t>(step * 16 / kColumns) * kBoxBytes +
           static_cast<uint32_t>(step * 16 % kColumns * 2);
  }
  SN_FN_MEMBER static constexpr uint32_t mn_step(int step) {
    return static_cast<uint32_t>(step * 16 * kSpan);
  }

  // Address of the 16 bytes from column 8 * chunk of `row`; boxes lie `BoxBytes` apart.
  template <uint32_t BoxBytes = kBoxBytes>
  SN_FN_MEMBER static uint32_t chunk(uint32_t tile, int row, int chunk) {
    constexpr int kChunks = kColumns / 8;
    const uint32_t at = tile + static_cast<uint32_t>(chunk / kChunks) * BoxBytes +
                        static_cast<uint32_t>(row * kSpan + chunk % kChunks * 16);
    return at ^ (at >> 7 & static_cast<uint32_t>(kChunks - 1)) << 4;
  }

  // One thread asks for the whole tile, from row `row` on, in `load` of boxes.
  SN_FN_MEMBER static void load(uint32_t to, const hopper::TensorMap& map, uint32_t barrier,
                                int row, int head, int batch) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box)
      hopper::tma_load(to + static_cast<uint32_t>(box) * kBoxBytes, map, barrier, box * kColumns,
                       row, head, batch);
  }
  // Zeros in the rows outside of [begin, end), by the 128 threads of a warpgroup; afterwards each
  // of them fences, and they meet.
  SN_FN_MEMBER static void clear_outside(uint32_t tile, int begin, int end, int thread) {
    constexpr int kChunks = Width / 8;
    for (int i = thread; i < Rows * kChunks; i += 128) {
      const int row = i / kChunks;
      if (row < begin || row >= end) hopper::store_zeros(chunk(tile, row, i % kChunks));
    }
  }
};

// The keys that some row of first … last may see.
SN_FN Interval hopper_rows_see(const FlashParams& p, int batch, int length, int first, int last) {
  return {flash_keys(p, batch, length, first).begin, flash_keys(p, batch, length, last).end};
}
// Whether there can be keys that no query sees: what they hold must not matter.
constexpr bool kUnseen = kKvLength || kWindow || kDocuments;

SN_FN int64_t hopper_row_index(const FlashParams& p, int batch, int head, int row) {
  return (static_cast<int64_t>(batch) * p.heads + head) * p.queries + row;
}
// The elements of a pair.
SN_FN float hopper_low(uint32_t pair) {
  return kF16 ? low_f16(pair) : low_bf16(pair);
}
SN_FN float hopper_high(uint32_t pair) {
  return kF16 ? high_f16(pair) : high_bf16(pair);
}
SN_FN float hopper_tanh(float x) {
  return 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp2(2.0f * kLog2E * x));
}

// Tile number `count` of those that go through a ring of `Stages`: its stage, and the parity of the
// phase in which it is there.
template <int Stages>
SN_FN uint32_t hopper_stage(uint32_t count) {
  return count % Stages;
}
template <int Stages>
SN_FN uint32_t hopper_parity(uint32_t count) {
  return count / Stages & 1u;
}

SN_FN sn_words hopper_words(const FlashDropout& d, int64_t element) {
  return sn_philox(d.key0, d.key1, d.step, d.site, static_cast<uint64_t>(element) / 8);
}
SN_FN bool hopper_keeps(const FlashDropout& d, int64_t element) {
  return static_cast<uint32_t>(sn_half(hopper_words(d, element), static_cast<uint64_t>(element))) >=
         d.threshold;
}

// Zero where an element is dropped, otherwise as it is, for s[4j + 2r + e]: row r of the two that a
// thread holds, column 8j + 2(lane % 4) + e. `rows[r]` is the element of row r, column 0.
template <int Count>
SN_FN void hopper_drop_rows(const FlashDropout& dropout, const int64_t (&rows)[2],
                            float (&s)[Count]) {
  const int quad = static_cast<int>(threadIdx.x & 3u);
  if (dropout.aligned) {
    // One call holds the eight columns of the four lanes that share a row: each lane makes the
    // words of every fourth call, and a transposition hands them out.
#pragma unroll
    for (int group = 0; group < Count / 16; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sn_words w = hopper_words(dropout, rows[r] + 8 * (4 * group + quad));
        const bool upper = (quad & 2) != 0, odd = (quad & 1) != 0;
        const uint32_t a = __shfl_xor_sync(0xffffffffu, upper ? w.w0 : w.w2, 2);
        const uint32_t b = __shfl_xor_sync(0xffffffffu, upper ? w.w1 : w.w3, 2);
        w = upper ? sn_words{a, b, w.w2, w.w3} : sn_words{w.w0, w.w1, a, b};
        const uint32_t c = __shfl_xor_sync(0xffffffffu, odd ? w.w0 : w.w1, 1);
        const uint32_t d = __shfl_xor_sync(0xffffffffu, odd ? w.w2 : w.w3, 1);
        w = odd ? sn_words{c, w.w1, d, w.w3} : sn_words{w.w0, c, w.w2, d};
        const uint32_t own[4] = {w.w0, w.w1, w.w2, w.w3};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = 4 * (4 * group + j) + 2 * r;
          if ((own[j] & 0xffffu) < dropout.threshold) s[i] = 0.0f;
          if ((own[j] >> 16) < dropout.threshold) s[i + 1] = 0.0f;
        }
      }
    }
  } else {
    // The bits first, in a loop: registers have no index.
#pragma unroll
    for (int group = 0; group < Count / 16; ++group) {
      uint32_t kept = 0;
      for (int i = 0; i < 16; ++i) {
        const int column = 8 * (4 * group + i / 4) + 2 * quad + i % 2;
        if (hopper_keeps(dropout, ((i & 2) != 0 ? rows[1] : rows[0]) + column)) kept |= 1u << i;
      }
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if ((kept >> i & 1u) == 0) s[16 * group + i] = 0.0f;
    }
  }
}

// The same bits for scores that lie transposed: use(i, kept) for i = 4j + 2r + e, which is the
// query 8j + 2(lane % 4) + e and the key lane / 4 + 8r. `first` is the element of query 0 and the
// warp's key 0; queries are `stride` elements apart. At most 32 values: bit i of the result is
// whether values[i + 32 * part] is kept.
SN_FN uint32_t hopper_kept_columns(const FlashDropout& dropout, int64_t first, int stride,
                                   int part) {
  const int quad = static_cast<int>(threadIdx.x & 3u);
  const int eighth = static_cast<int>(threadIdx.x >> 2 & 7u);
  uint32_t kept = 0;
  if (dropout.aligned) {
    // One call holds the keys of the eight lanes that share a query: each lane makes the words of
    // one of eight (query, key block), and a transposition of 16-bit halves hands them out.
    for (int group = 0; group < 4; ++group) {
      const int j = 8 * part + 2 * group + (eighth >> 2);
      const int query = 8 * j + 2 * quad + (eighth & 1);
      sn_words w = hopper_words(
          dropout, first + static_cast<int64_t>(query) * stride + 8 * (eighth >> 1 & 1));
      const bool b2 = (eighth & 4) != 0, b1 = (eighth & 2) != 0, b0 = (eighth & 1) != 0;
      uint32_t x = __shfl_xor_sync(0xffffffffu, b2 ? w.w0 : w.w2, 16);
      uint32_t y = __shfl_xor_sync(0xffffffffu, b2 ? w.w1 : w.w3, 16);
      w = b2 ? sn_words{x, y, w.w2, w.w3} : sn_words{w.w0, w.w1, x, y};
      x = __shfl_xor_sync(0xffffffffu, b1 ? w.w0 : w.w1, 8);
      y = __shfl_xor_sync(0xffffffffu, b1 ? w.w2 : w.w3, 8);
      w = b1 ? sn_words{x, w.w1, y, w.w3} : sn_words{w.w0, x, w.w2, y};
      // The halves that the neighbour needs: the low ones of an odd lane, the high ones of an even.
      const uint32_t give = b0 ? 0x5410u : 0x7632u;
      x = __shfl_xor_sync(0xffffffffu, __byte_perm(w.w0, w.w1, give), 4);
      y = __shfl_xor_sync(0xffffffffu, __byte_perm(w.w2, w.w3, give), 4);
      // Word k of `own`: items 2k and 2k + 1.
      const uint32_t own[4] = {b0 ? __byte_perm(x, w.w0, 0x7610u) : __byte_perm(w.w0, x, 0x5410u),
                               b0 ? __byte_perm(x, w.w1, 0x7632u) : __byte_perm(w.w1, x, 0x7610u),
                               b0 ? __byte_perm(y, w.w2, 0x7610u) : __byte_perm(w.w2, y, 0x5410u),
                               b0 ? __byte_perm(y, w.w3, 0x7632u) : __byte_perm(w.w3, y, 0x7610u)};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((own[k] & 0xffffu) >= dropout.threshold) kept |= 1u << (8 * group + 2 * k);
        if ((own[k] >> 16) >= dropout.threshold) kept |= 1u << (8 * group + 2 * k + 1);
      }
    }
  } else {
    for (int i = 0; i < 32; ++i) {
      const int query = 8 * (8 * part + i / 4) + 2 * quad + i % 2;
      const int key = eighth + 8 * (i >> 1 & 1);
      if (hopper_keeps(dropout, first + static_cast<int64_t>(query) * stride + key))
        kept |= 1u << i;
    }
  }
  return kept;
}
