// Attention forward on Hopper: O = softmax(scale Q K^T) V and the log-sum-exp of each row.
//
// Tiling. A block of kConsumers + 1 warpgroups works through (batch, head, kTileM rows) items; grid
// = multiprocessors. Warpgroup 0 feeds (one thread of it); each other one owns 64 rows and walks
// over the keys in tiles of kTileN, from the last to the first, so that the tiles at the causal
// diagonal and at the end of the keys come first. Shapes by head size:
// passes/flash_hopper_tiles.h.
//
// Items. Blocks are dealt pairs of items, of each head the first and the last, the second and the
// last but one: under a diagonal all pairs are as long, and the blocks that share a head's K and V
// in L2 run at the same time. What would be the last one or two rounds of pairs is dealt one by
// one, the longest first, so that the blocks end together too. Every other round is dealt
// backwards. No counter, and the order is always the same. With kCausal and whole groups of 64
// rows, those that do not fill a tile are the first ones, which see the fewest keys: their item
// begins at a row below 0, by whole warpgroups, since no bulk store may begin there.
//
// Shared memory, from a multiple of 1024:
//   Q   [kTileM][kWidth]        x kQStages; one is freed after the last S of its item
//   K   [kTileN][kWidth]        x kStages
//   V   [kTileN][kValueWidth]   x kStages
//   O   [kTileM][kValueWidth]   in 64-row boxes, or in Q's place (kReuseQ)
//   mbarriers: full and empty of each stage of Q, K and V
//   items [2 kQStages]        what Q's tiles are of, and of those before
//
// Pipeline. The feeder asks for K(n-1) before V(n): the order in which they are read. A warpgroup
// issues S(n-1) = Q K^T and O += P(n) V together, waits for S alone, and makes P(n-1) while P(n) V
// still runs. With kPingPong, barriers by number make the warpgroups issue in turn, so that one's
// products run under another's exponentials. With kJoin, that goes on from item to item: the last
// O += P V of one is issued with the first S of the next, and O leaves behind the next softmax.
//
// Softmax in base 2: P = exp2(S c - m c), one fused multiply-add, c = scale log2(e). Where m c is
// so large that its rounding would show, (S - m) c instead. m follows the row's maximum only when
// that has grown by more than 8 in the exponent; O and the row sum are then rescaled, in few tiles.
//
// Registers of a consumer thread, d128: S 64 + O 64 + P 32 of 240; d64: 64 + 32 + 32 of 160.
// Instructions for one score, outside of wgmma: 1 FFMA, 1 MUFU, 1 FMNMX, 1 FADD, 1/2 F2FP; masks
// only where a tile is not wholly visible. A tile of 192 x 128 at d64 is 1536 clocks of products,
// 1536 of MUFU and about 1050 of issue; at d128 (128 x 128) 2048 of products and 1024 of MUFU.

static_assert(!kJoin || (kQStages == 2 && !kUnseen && !kSlopes && !kDropout),
              "the next item's Q is there, and this one's options are not asked for again");

struct HopperForward {
  using Q = HopperTile<kTileM, kWidth>;
  using K = HopperTile<kTileN, kWidth>;
  using V = HopperTile<kTileN, kValueWidth>;
  using O = HopperTile<64, kValueWidth>;  // of one warpgroup

  static constexpr int kConsumers = kTileM / 64;
  static constexpr uint32_t kQ = 0;
  static constexpr uint32_t kK = kQ + kQStages * Q::kBytes;
  static constexpr uint32_t kV = kK + kStages * K::kBytes;
  static constexpr uint32_t kO = kReuseQ ? kQ : kV + kStages * V::kBytes;
  static constexpr uint32_t kBarriers =
      kV + kStages * V::kBytes + (kReuseQ ? 0u : kConsumers * O::kBytes);
  static_assert(!kReuseQ || (kValueWidth == kWidth && kQStages == 1), "O fits in Q's place");
  static constexpr uint32_t kOBoxBytes = kReuseQ ? Q::kBoxBytes : O::kBoxBytes;
  // Offsets of the barriers from kBarriers, in words of 8 bytes.
  enum : uint32_t {
    kQFull,
    kQEmpty = kQFull + kQStages,
    kKFull = kQEmpty + kQStages,
    kKEmpty = kKFull + kStages,
    kVFull = kKEmpty + kStages,
    kVEmpty = kVFull + kStages,
    kBarrierCount = kVEmpty + kStages
  };
  static constexpr uint32_t kItems = kBarriers + 8 * kBarrierCount;
  // Twice as many as tiles of Q: an item is read again when its tile has been given back.
  static constexpr int kPlaces = 2 * kQStages;
  static constexpr uint32_t kUsedBytes = kItems + kPlaces * 32;
  static_assert(kBarrierCount % 2 == 0, "items begin at a multiple of 16");
  static_assert(kUsedBytes + 1024 <= kSharedBytes, "with room to begin at a multiple of 1024");
  static_assert(kWarps == 4 * (kConsumers + 1), "the feeder's warpgroup counts");
};

// One (batch, head, rows) item.
struct HopperItem {
  int batch, head, row;      // of the tile's first row
  int length;                // keys of the batch that count
  int tile_begin, tile_end;  // key tiles that some row of the item sees
};

SN_FN HopperItem hopper_item(const FlashParams& p, int head, int row_tile) {
  HopperItem item;
  item.batch = head / p.heads;
  item.head = head - item.batch * p.heads;
  item.row = row_tile * kTileM;
  if (kCausal && p.queries % 64 == 0)
    item.row += p.queries - (p.queries + kTileM - 1) / kTileM * kTileM;
  item.length = flash_length(p, item.batch);
  const Interval seen = hopper_rows_see(p, item.batch, item.length, max(item.row, 0),
                                        min(item.row + kTileM, p.queries) - 1);
  item.tile_begin = seen.begin / kTileN;
  item.tile_end = seen.end > seen.begin ? (seen.end + kTileN - 1) / kTileN : item.tile_begin;
  return item;
}

// The items that are dealt to this block, one after another.
struct HopperDeal {
  int round = 0;
  bool second = false;  // of a pair, the short item comes next
  // The head, counted through all batches, and which of its row tiles; false behind the last.
  SN_FN_MEMBER bool next(const FlashParams& p, int& head, int& row_tile) {
    int zero = 0;  // unknown to the compiler, which so keeps none of this for the next item
    hopper::forget(zero);
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x) + zero;
    const int heads = (p.batch + zero) * p.heads;
    const int tiles = (p.queries + zero + kTileM - 1) / kTileM, pairs = (tiles + 1) / 2;
    const int paired_heads = max(heads * pairs / blocks - 1, 0) * blocks / pairs;
    int index = round * blocks + ((round & 1) != 0 ? blocks - 1 - block : block);
    if (index < paired_heads * pairs) {
      head = index / pairs;
      index -= head * pairs;
      row_tile = second ? index : tiles - 1 - index;
      second = !second && 2 * index + 1 != tiles;  // the middle one is alone
      round += second ? 0 : 1;
      return true;
    }
    ++round;
    index -= paired_heads * pairs;
    const int others = heads - paired_heads, late = index / others;
    head = paired_heads + index - late * others;
    row_tile = tiles - 1 - late;
    return row_tile >= 0;
  }
};

// The feeder works items out and leaves them in shared memory, where they come and go with Q.
SN_FN uint32_t hopper_item_place(uint32_t shared, int round) {
  return shared + HopperForward::kItems +
         static_cast<uint32_t>(round & (HopperForward::kPlaces - 1)) * 32;
}
SN_FN void hopper_tell_item(uint32_t place, const HopperItem& item) {
  hopper::store_int4(place, make_int4(item.head, item.batch, item.row, item.length));
  hopper::store_int4(place + 16, make_int4(item.tile_begin, item.tile_end, 0, 0));
}
SN_FN HopperItem hopper_read_item(uint32_t place) {
  const int4 a = hopper::load_int4(place), b = hopper::load_int4(place + 16);
  HopperItem item;
  item.head = a.x;
  item.batch = a.y;
  item.row = a.z;
  item.length = a.w;
  item.tile_begin = b.x;
  item.tile_end = b.y;
  return item;
}

// The feeder: one thread.
SN_FN void hopper_forward_feed(const hopper::TensorMap& q_map, const hopper::TensorMap& k_map,
                               const hopper::TensorMap& v_map, const FlashParams& p,
                               uint32_t shared) {
  using F = HopperForward;
  const auto barrier = [&](uint32_t i) { return shared + F::kBarriers + 8 * i; };
  uint32_t keys_fed = 0, values_fed = 0;
  hopper::prefetch_map(q_map);
  hopper::prefetch_map(k_map);
  hopper::prefetch_map(v_map);
  HopperDeal deal;
  for (uint32_t items = 0;; ++items) {
    const uint32_t q_stage = hopper_stage<kQStages>(items);
    const uint32_t q_parity = hopper_parity<kQStages>(items) ^ 1u;
    const uint32_t place = hopper_item_place(shared, static_cast<int>(items));
    int head = 0, row_tile = 0;
    if (!deal.next(p, head, row_tile)) {
      hopper::barrier_wait(barrier(F::kQEmpty + q_stage), q_parity);
      hopper::store_int4(place, make_int4(-1, 0, 0, 0));
      hopper::barrier_arrive(barrier(F::kQFull + q_stage));
      break;
    }
    const HopperItem item = hopper_item(p, head, row_tile);
    const int kv_head = item.head / (p.heads / p.kv_heads);
    const auto load_k = [&](int tile) {
      const uint32_t stage = hopper_stage<kStages>(keys_fed);
      hopper::barrier_wait(barrier(F::kKEmpty + stage), hopper_parity<kStages>(keys_fed++) ^ 1u);
      const uint32_t full = barrier(F::kKFull + stage);
      hopper::barrier_arrive_expect(full, F::K::kBytes);
      F::K::load(shared + F::kK + stage * F::K::kBytes, k_map, full, tile * kTileN, kv_head,
                 item.batch);
    };
    if (item.tile_end > item.tile_begin) load_k(item.tile_end - 1);
    hopper::barrier_wait(barrier(F::kQEmpty + q_stage), q_parity);
    hopper_tell_item(place, item);
    hopper::barrier_arrive_expect(barrier(F::kQFull + q_stage), F::Q::kBytes);
    F::Q::load(shared + F::kQ + q_stage * F::Q::kBytes, q_map, barrier(F::kQFull + q_stage),
               item.row, item.head, item.batch);
    for (int tile = item.tile_end - 1; tile >= item.tile_begin; --tile) {
      if (tile > item.tile_begin) load_k(tile - 1);
      const uint32_t stage = hopper_stage<kStages>(values_fed);
      hopper::barrier_wait(barrier(F::kVEmpty + stage), hopper_parity<kStages>(values_fed++) ^ 1u);
      const uint32_t full = barrier(F::kVFull + stage);
      hopper::barrier_arrive_expect(full, F::V::kBytes);
      F::V::load(shared + F::kV + stage * F::V::kBytes, v_map, full, tile * kTileN, kv_head,
                 item.batch);
    }
  }
}

// What a consumer thread keeps of its two rows, lane / 4 and 8 below in its warp's 16.
struct HopperRows {
  int row;        // the first one
  float used[2];  // the maximum that exponents are taken from
  float sum[2];   // over this thread's columns
  float slope;    // of the head, in base-2 units
};

// Scores become what exponents are taken of: unscaled, or in base-2 units with softcap or slopes.
constexpr bool kHopperScaled = kSoftcap || kSlopes;
SN_FN void hopper_scores(float (&s)[kTileN / 2], const FlashParams& p, const HopperRows& rows,
                         int length, int first_key) {
  const float to_log2 = static_cast<float>(p.scale * 1.4426950408889634);
  const float to_cap = kSoftcap ? static_cast<float>(p.scale / p.softcap) : 0.0f;
  const float cap = kSoftcap ? static_cast<float>(p.softcap * 1.4426950408889634) : 0.0f;
  if constexpr (kHopperScaled) {
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      const int key = first_key + i / 4 * 8 + i % 2;
      if constexpr (kSoftcap)
        s[i] = cap * hopper_tanh(s[i] * to_cap);
      else
        s[i] *= to_log2;
      if constexpr (kSlopes)
        s[i] = __fmaf_rn(
            -rows.slope,
            static_cast<float>(abs(key - (rows.row + i / 2 % 2 * 8 + length - p.queries))), s[i]);
    }
  }
}
SN_FN void hopper_mask(float (&s)[kTileN / 2], const FlashParams& p, const HopperItem& item,
                       int row, int first_key) {
  constexpr bool kFromZero = !kWindow && !kDocuments;  // the keys that a row sees begin at 0
  int begins[2], widths[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Interval keys =
        flash_keys(p, item.batch, item.length, max(min(row + 8 * r, p.queries - 1), 0));
    begins[r] = kFromZero ? 0 : keys.begin - first_key;
    widths[r] = kFromZero ? keys.end - first_key : max(keys.end - keys.begin, 0);
  }
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const int key = i / 4 * 8 + i % 2, r = i / 2 % 2;
    const bool seen = kFromZero ? key < widths[r]
                                : static_cast<uint32_t>(key) - static_cast<uint32_t>(begins[r]) <
                                      static_cast<uint32_t>(widths[r]);
    if (!seen) s[i] = -flash_inf();
  }
}

// Scores to probabilities (relative to rows.used). True where O must be multiplied by `factor`
// before these are added.
SN_FN bool hopper_softmax(float (&s)[kTileN / 2], HopperRows& rows, float c, float (&factor)[2]) {
  float top[2] = {s[0], s[2]};
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) top[i / 2 % 2] = max(top[i / 2 % 2], s[i]);
  bool grown = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = max(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
    top[r] = max(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
    grown |= top[r] * c > __fmaf_rn(rows.used[r], c, 8.0f);
  }
  const bool rescale = __any_sync(0xffffffffu, grown);
  if (rescale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = max(rows.used[r], top[r]);
      factor[r] = next == -flash_inf() ? 1.0f : fast_exp2((rows.used[r] - next) * c);
      rows.sum[r] *= factor[r];
      rows.used[r] = next;
    }
  }
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) shift[r] = rows.used[r] == -flash_inf() ? 0.0f : rows.used[r] * c;
  // Where the product of maximum and c rounds by more than 2^-12, its error would be seen.
  if (__any_sync(0xffffffffu, max(fabsf(shift[0]), fabsf(shift[1])) > 4096.0f)) {
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i)
      if (shift[i / 2 % 2] != 0.0f) s[i] -= rows.used[i / 2 % 2];
    shift[0] = shift[1] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    s[i] = fast_exp2(__fmaf_rn(s[i], c, -shift[i / 2 % 2]));
    rows.sum[i / 2 % 2] += s[i];
  }
  return rescale;
}

SN_FN void hopper_issue_scores(float (&s)[kTileN / 2], uint64_t q, uint32_t k_tile) {
  using F = HopperForward;
  const uint64_t k = F::K::k_major(k_tile);
  hopper::touch(s);
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step)
    hopper::wgmma_shared<kTileN, kF16, false, false>(s, hopper::advance(q, F::Q::k_step(step)),
                                                     hopper::advance(k, F::K::k_step(step)),
                                                     step != 0);
  hopper::wgmma_commit();
}
template <int Step = 0>
SN_FN void hopper_product_steps(float (&o)[kValueWidth / 2],
                                const uint32_t (&probabilities)[kTileN / 4], uint64_t v) {
  if constexpr (Step < kTileN / 16) {
    hopper::wgmma_registers<kValueWidth, kF16, true, 4 * Step>(
        o, probabilities, hopper::advance(v, HopperForward::V::mn_step(Step)), true);
    hopper_product_steps<Step + 1>(o, probabilities, v);
  }
}
SN_FN void hopper_issue_product(float (&o)[kValueWidth / 2], uint32_t (&probabilities)[kTileN / 4],
                                uint32_t v_tile) {
  hopper::touch(o);
  hopper::touch(probabilities);
  hopper::wgmma_fence();
  hopper_product_steps(o, probabilities, HopperForward::V::mn_major(v_tile));
  hopper::wgmma_commit();
}
SN_FN void hopper_pack(uint32_t (&to)[kTileN / 4], const float (&s)[kTileN / 2]) {
#pragma unroll
  for (int i = 0; i < kTileN / 4; ++i) to[i] = hopper::pack_pair<kF16>(s[2 * i], s[2 * i + 1]);
}

// A warpgroup of consumers; `group` 0 … kConsumers - 1.
SN_FN void hopper_forward_consume(const hopper::TensorMap& o_map, const FlashParams& p,
                                  uint32_t shared, int group) {
  using F = HopperForward;
  const int thread = static_cast<int>(threadIdx.x & 127u);
  const int lane = thread & 31;
  const auto barrier = [&](uint32_t i) { return shared + F::kBarriers + 8 * i; };
  const auto release = [&](uint32_t i) {
    if (thread == 0) hopper::barrier_arrive(barrier(i));
  };
  const uint32_t own_barrier = static_cast<uint32_t>(1 + group);  // this warpgroup alone
  const int turn = 1 + F::kConsumers + group;  // kPingPong: the barrier to wait at
  const auto take_turn = [&] {
    if constexpr (kPingPong) hopper::named_sync(static_cast<uint32_t>(turn), 256);
  };
  const auto pass_turn = [&] {
    if constexpr (kPingPong) {
      int next = turn;
      hopper::forget(next);
      next = next == 2 * F::kConsumers ? 1 + F::kConsumers : next + 1;
      hopper::named_arrive(static_cast<uint32_t>(next), 256);
    }
  };
  if (group == F::kConsumers - 1) pass_turn();

  const float c = kHopperScaled ? 1.0f : static_cast<float>(p.scale * 1.4426950408889634);
  uint32_t count = 0;  // key tiles that went by
  uint32_t due = 0;    // the number of the one whose O += P V is still to be issued
  float s[kTileN / 2], o[kValueWidth / 2], factor[2];
  uint32_t probabilities[kTileN / 4];

  HopperItem item;
  HopperRows rows;
  FlashDropout dropout{};
  Interval whole;        // keys that all rows of the warpgroup see
  int tile, begin, end;  // the tile at hand; those that some row of the warpgroup sees
  int row;               // of this thread
  uint64_t q;
  const auto await_item = [&](int round) {
    const auto of = static_cast<uint32_t>(round);
    hopper::barrier_wait(barrier(F::kQFull + hopper_stage<kQStages>(of)),
                         hopper_parity<kQStages>(of));
    return hopper_read_item(hopper_item_place(shared, round));
  };
  const auto release_q = [&](int round) {
    release(F::kQEmpty + hopper_stage<kQStages>(static_cast<uint32_t>(round)));
  };
  const auto start = [&](const HopperItem& next, int round) {
    item = next;
    q = F::Q::k_major(
        shared + F::kQ + hopper_stage<kQStages>(static_cast<uint32_t>(round)) * F::Q::kBytes,
        64 * group);
    const int above = item.row + 64 * group;  // the first of this warpgroup's rows
    const int first = max(above, 0), last = min(above + 64, p.queries) - 1;
    const Interval seen =
        last < first ? Interval{0, 0} : hopper_rows_see(p, item.batch, item.length, first, last);
    tile = item.tile_end - 1;
    begin = seen.end > seen.begin ? seen.begin / kTileN : item.tile_end;
    end = seen.end > seen.begin ? (seen.end + kTileN - 1) / kTileN : item.tile_end;
    whole = {0, 0x7fffffff};
    row = above + thread / 32 * 16 + lane / 4;
    rows.row = row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.used[r] = -flash_inf();
      rows.sum[r] = 0.0f;
    }
    if (last >= first) {
      const Interval one = flash_keys(p, item.batch, item.length, first);
      const Interval other = flash_keys(p, item.batch, item.length, last);
      whole = {max(one.begin, other.begin), min(one.end, other.end)};
    }
    rows.slope = kSlopes ? p.slopes[item.head] * kLog2E : 0.0f;
    if constexpr (kDropout) dropout = flash_dropout(p, item.batch, item.head);
  };
  // kJoin: whether there is a next item, of which the warpgroup skips so few tiles that their V is
  // there while the last V of this one is still to be read.
  const auto joins = [&](const HopperItem& next) {
    if (next.head < 0) return false;
    const int above = next.row + 64 * group;
    const int first = max(above, 0), last = min(above + 64, p.queries) - 1;
    if (last < first) return false;
    const Interval seen = hopper_rows_see(p, next.batch, next.length, first, last);
    return seen.end > seen.begin && next.tile_end - (seen.end + kTileN - 1) / kTileN < kStages;
  };
  // O and the log-sum-exp leave. The item is read again rather than kept.
  const auto leave = [&](int round, float(&sum)[2], const float(&used)[2]) {
    int at = static_cast<int>(threadIdx.x) - 128;
    hopper::forget(at);
    const int of_group = at / 128;
    at &= 127;
    const uint32_t meet = static_cast<uint32_t>(1 + of_group);
    const uint32_t o_tile = shared + F::kO +
                            (kReuseQ ? static_cast<uint32_t>(64 * of_group * F::Q::kSpan)
                                     : static_cast<uint32_t>(of_group) * F::O::kBytes);
    const HopperItem done = hopper_read_item(hopper_item_place(shared, round));
    const int o_first = done.row + 64 * of_group, o_row = o_first + at / 32 * 16 + (at & 31) / 4;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      inverse[r] = sum[r] == 0.0f ? 0.0f : fast_reciprocal(sum[r]);
      if constexpr (kDropout) inverse[r] *= static_cast<float>(p.keep_scale);
      if (p.lse != nullptr && ((at & 31) & 3) == 0 && o_row + 8 * r >= 0 &&
          o_row + 8 * r < p.queries)
        static_cast<float*>(p.lse)[hopper_row_index(p, done.batch, done.head, o_row + 8 * r)] =
            sum[r] == 0.0f ? -flash_inf() : (used[r] * c + sn_log2(sum[r])) * kLn2;
    }
    if (at == 0) hopper::bulk_wait_read<0>();
    hopper::named_sync(meet, 128);
#pragma unroll
    for (int j = 0; j < kValueWidth / 8; j += 2) {
      const float* d = o + 4 * j;
      const int place = at / 32 * 16 + ((at & 31) & 15);
      hopper::store_matrices(F::O::template chunk<F::kOBoxBytes>(o_tile, place, j + (at & 31) / 16),
                             hopper::pack_pair<kF16>(d[0] * inverse[0], d[1] * inverse[0]),
                             hopper::pack_pair<kF16>(d[2] * inverse[1], d[3] * inverse[1]),
                             hopper::pack_pair<kF16>(d[4] * inverse[0], d[5] * inverse[0]),
                             hopper::pack_pair<kF16>(d[6] * inverse[1], d[7] * inverse[1]));
    }
    hopper::fence_async();
    hopper::named_sync(meet, 128);
    if (at == 0) {
      if (o_first >= 0 && o_first < p.queries) {
#pragma unroll
        for (int box = 0; box < F::O::kBoxes; ++box)
          hopper::tma_store(o_map, o_tile + static_cast<uint32_t>(box) * F::kOBoxBytes,
                            box * F::O::kColumns, o_first, done.head, done.batch);
      }
      hopper::bulk_commit();
      if constexpr (kReuseQ) {
        hopper::bulk_wait_read<0>();
        hopper::barrier_arrive(barrier(F::kQEmpty));
      }
    }
  };
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < kValueWidth / 2; ++i) o[i] = 0.0f;
  };

  for (int round = 0;; ++round) {
    {
      const HopperItem next = await_item(round);
      if (next.head < 0) break;
      start(next, round);
    }
    clear();

    const auto await_k = [&] {
      const uint32_t stage = hopper_stage<kStages>(count);
      hopper::barrier_wait(barrier(F::kKFull + stage), hopper_parity<kStages>(count));
      return shared + F::kK + stage * F::K::kBytes;
    };
    const auto release_k = [&] { release(F::kKEmpty + hopper_stage<kStages>(count)); };
    // A tile that no row of the warpgroup sees. All must have seen its phases of the barriers
    // before one of them lets the stage go; elsewhere wgmma, which the warps issue together, sees
    // to that.
    const auto skip = [&] {
      take_turn();
      pass_turn();
      const uint32_t stage = hopper_stage<kStages>(count);
      await_k();
      hopper::barrier_wait(barrier(F::kVFull + stage), hopper_parity<kStages>(count));
      hopper::named_sync(own_barrier, 128);
      release_k();
      release(F::kVEmpty + stage);
      ++count;
    };
    // Scores of tile `tile` to probabilities, in s.
    const auto soften = [&] {
      const int first_key = tile * kTileN + 2 * (lane & 3);
      hopper_scores(s, p, rows, item.length, first_key);
      if (tile * kTileN < whole.begin || (tile + 1) * kTileN > whole.end)
        hopper_mask(s, p, item, row, first_key);
      const bool rescale = hopper_softmax(s, rows, c, factor);
      if constexpr (kDropout) {
        const int64_t tile_rows[2] = {dropout.element(row, tile * kTileN),
                                      dropout.element(row + 8, tile * kTileN)};
        hopper_drop_rows(dropout, tile_rows, s);
      }
      return rescale;
    };
    // Waits for V of the tile before, `of_tile`, and returns its place.
    const auto await_v = [&](int of_tile) {
      const uint32_t stage = hopper_stage<kStages>(due);
      hopper::barrier_wait(barrier(F::kVFull + stage), hopper_parity<kStages>(due));
      const uint32_t place = shared + F::kV + stage * F::V::kBytes;
      if constexpr (kUnseen) {
        const Interval all = hopper_rows_see(p, item.batch, item.length, 0, p.queries - 1);
        const int from = all.begin - of_tile * kTileN, to = all.end - of_tile * kTileN;
        if (from > 0 || to < kTileN) {
          F::V::clear_outside(place, from, to, thread);
          hopper::fence_async();
          hopper::named_sync(own_barrier, 128);
        }
      }
      (void)of_tile;
      return place;
    };
    const auto release_v = [&] { release(F::kVEmpty + hopper_stage<kStages>(due)); };

#pragma unroll 1
    for (; tile >= max(end, item.tile_begin); --tile) skip();
    if (end > begin) {
      const uint32_t k_tile = await_k();
      take_turn();
      hopper_issue_scores(s, q, k_tile);
      pass_turn();
      hopper::wgmma_wait<0>(s);
      release_k();
      due = count++;
      soften();
      hopper_pack(probabilities, s);
#pragma unroll 1
      for (--tile;; --tile) {
        bool joined = false;
        float sum[2], used[2];  // of the item that ends
        if (tile < begin) {
          if constexpr (!kReuseQ) release_q(round);
          if constexpr (kJoin) {
            const HopperItem next = await_item(round + 1);
            joined = joins(next);
            if (joined) {
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                sum[r] = rows.sum[r];
                used[r] = rows.used[r];
              }
              start(next, ++round);
#pragma unroll 1
              for (; tile >= end; --tile) skip();
            }
          }
          if (!joined) break;
        }
        const uint32_t next_k = await_k();
        take_turn();
        hopper_issue_scores(s, q, next_k);
        hopper_issue_product(o, probabilities, await_v(tile + 1));
        pass_turn();
        hopper::wgmma_wait<1>(s);
        release_k();
        const bool rescale = soften();
        hopper::wgmma_wait<0>(o, probabilities);
        release_v();
        due = count++;
        if constexpr (kJoin) {
          if (joined) {
            leave(round - 1, sum, used);
            clear();
          }
        }
        hopper_pack(probabilities, s);
        if (rescale && !joined) {
#pragma unroll
          for (int i = 0; i < kValueWidth / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
      }
      hopper_issue_product(o, probabilities, await_v(tile + 1));
      hopper::wgmma_wait<0>(o, probabilities);
      release_v();
    } else if constexpr (!kReuseQ) {
      hopper::named_sync(own_barrier, 128);
      release_q(round);
    }
#pragma unroll 1
    for (; tile >= item.tile_begin; --tile) skip();

    leave(round, rows.sum, rows.used);
  }
  if (group == 0) take_turn();  // the one that was passed at the start
  if (thread == 0) hopper::bulk_wait<0>();
}

SN_KERNEL void __launch_bounds__(kThreads, 1)
    flash_hopper_forward(const __grid_constant__ hopper::TensorMap q_map,
                         const __grid_constant__ hopper::TensorMap k_map,
                         const __grid_constant__ hopper::TensorMap v_map,
                         const __grid_constant__ hopper::TensorMap o_map,
                         const __grid_constant__ FlashParams p) {
  using F = HopperForward;
  SN_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = (shared_address(dynamic) + 1023u) & ~1023u;
  const auto barrier = [&](uint32_t i) { return shared + F::kBarriers + 8 * i; };
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < kQStages; ++stage) {
      hopper::barrier_init(barrier(F::kQFull + stage), 1);
      hopper::barrier_init(barrier(F::kQEmpty + stage), F::kConsumers);
    }
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      hopper::barrier_init(barrier(F::kKFull + stage), 1);
      hopper::barrier_init(barrier(F::kKEmpty + stage), F::kConsumers);
      hopper::barrier_init(barrier(F::kVFull + stage), 1);
      hopper::barrier_init(barrier(F::kVEmpty + stage), F::kConsumers);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 7), 0);
  if (warpgroup == 0) {
    hopper::registers_release<kFeederRegisters>();
    if (threadIdx.x < 32 && hopper::elect_one())
      hopper_forward_feed(q_map, k_map, v_map, p, shared);
  } else {
    hopper::registers_take<kConsumerRegisters>();
    hopper_forward_consume(o_map, p, shared, warpgroup - 1);
  }
}
