// The order in which the Hopper backward kernel walks, and in which it sums dQ. It follows
// flash_hopper_common.cuh.
//
// Order. An item is (batch, key head, part): of the head's key tiles, dealt forwards and backwards
// in turn, part 0 … parts-1 each get every parts-th. A block walks over its items, their key tiles,
// the query tiles and the heads of the group, always in the same order. With one part, that order
// is the order in which dQ is summed. With more, the parts of a head take turns at each query tile:
// `turns` counts the sums added, and hopper_rank says which one a step is. Steps are so arranged
// that blocks in step meet different query tiles: each begins at its own diagonal (or, without one,
// at its own place in a cycle) and finds its turn come. The first sum of a tile is stored, not
// added: nothing is to be cleared. Without kDeterministic sums are added as they come, and
// flash_hopper_prepare clears them.

// Without a diagonal, key tiles begin at different places of a cycle over the query tiles.
constexpr bool kCyclic = !kCausal && !kWindow && !kDocuments;

SN_FN int hopper_query_tiles(const FlashParams& p) {
  return (p.queries + kTileM - 1) / kTileM;
}
SN_FN int hopper_key_tiles(const FlashParams& p) {
  return (p.keys + kTileN - 1) / kTileN;
}

// One key tile and the query tiles that see it.
struct HopperWork {
  int batch, kv_head, tile, round;
  int length;
  int first, count, start;  // query tiles first … first + count - 1, from first + start around
};
SN_FN HopperWork hopper_work(const FlashParams& p, int parts, int item, int round) {
  HopperWork work{};
  const int head = item / parts, part = item - head * parts;
  work.batch = head / p.kv_heads;
  work.kv_head = head - work.batch * p.kv_heads;
  work.round = round;
  work.tile = round * parts + ((round & 1) != 0 ? parts - 1 - part : part);
  work.length = flash_length(p, work.batch);
  const int first_key = work.tile * kTileN;
  const int last_key = min(min(first_key + kTileN, p.keys), work.length) - 1;
  work.first = work.count = work.start = 0;
  if (last_key >= first_key) {
    const int begin = flash_queries(p, work.batch, work.length, first_key).begin;
    const int end = flash_queries(p, work.batch, work.length, last_key).end;
    work.first = begin / kTileM;
    work.count = end > begin ? (end + kTileM - 1) / kTileM - work.first : 0;
    if constexpr (kCyclic) work.start = work.tile * work.count / hopper_key_tiles(p);
  }
  return work;
}
// The steps of a key tile: its query tiles around the cycle, and of each the heads of the group. So
// parts of a head that begin at different times of a walk keep their distance over all heads.
struct HopperSteps {
  int left, head, tile;
  uint32_t range, heads;  // the first and the one behind the last, in one register
  SN_FN_MEMBER HopperSteps(const FlashParams& p, const HopperWork& work)
      : left(work.count * (p.heads / p.kv_heads)),
        head(work.kv_head * (p.heads / p.kv_heads)),
        tile(work.first + work.start),
        range(static_cast<uint32_t>(work.first) | static_cast<uint32_t>(work.first + work.count)
                                                      << 16),
        heads(static_cast<uint32_t>(head) | static_cast<uint32_t>(head + p.heads / p.kv_heads)
                                                << 16) {}
  SN_FN_MEMBER bool more() const { return left > 0; }
  SN_FN_MEMBER void next() {
    --left;
    if (++head != static_cast<int>(heads >> 16)) return;
    head = static_cast<int>(heads & 0xffffu);
    if (++tile == static_cast<int>(range >> 16)) tile = static_cast<int>(range & 0xffffu);
  }
};

// Key tiles [begin, end) that some query of a tile sees.
SN_FN Interval hopper_tiles_seen(const FlashParams& p, int batch, int length, int query_tile) {
  const Interval keys = hopper_rows_see(p, batch, length, query_tile * kTileM,
                                        min((query_tile + 1) * kTileM, p.queries) - 1);
  if (keys.end <= keys.begin) return {0, 0};
  return {keys.begin / kTileN, (keys.end + kTileN - 1) / kTileN};
}
// How many sums are added to this query tile before that of `work`.
SN_FN int hopper_rank(const FlashParams& p, const HopperWork& work, int parts, int query_tile) {
  const Interval seen = hopper_tiles_seen(p, work.batch, work.length, query_tile);
  const int round_begin = max(work.round * parts, seen.begin);
  const int round_end = min(work.round * parts + parts, seen.end);
  const int before = max(0, min(work.round * parts, seen.end) - seen.begin);
  if constexpr (kCyclic) {
    // Tiles that began at or before this query tile have it first, the last of them before others.
    const int began = ((query_tile + 1) * hopper_key_tiles(p) - 1) / work.count;
    const int turn = min(round_end, began + 1);
    if (work.tile >= turn) return before + max(0, turn - round_begin) + round_end - 1 - work.tile;
    return before + turn - 1 - work.tile;
  }
  return before + round_end - 1 - work.tile;
}
SN_FN int64_t hopper_query_tile_index(const FlashParams& p, int batch, int head, int query_tile) {
  return (static_cast<int64_t>(batch) * p.heads + head) * hopper_query_tiles(p) + query_tile;
}

// Key tile number `n` of this block, item after item and round after round; false behind the last.
SN_FN bool hopper_nth_work(const FlashParams& p, int parts, int n, HopperWork& work) {
  int zero = 0;  // unknown to the compiler, which so keeps no product in a register
  hopper::forget(zero);
  const int rounds = (hopper_key_tiles(p) + zero + parts - 1) / parts;
  const int item = static_cast<int>(blockIdx.x) + n / rounds * static_cast<int>(gridDim.x);
  if (item >= (p.batch + zero) * p.kv_heads * parts) return false;
  work = hopper_work(p, parts, item, n % rounds);
  return true;
}
template <typename Use>
SN_FN void hopper_for_each_tile(const FlashParams& p, int parts, Use use) {
  HopperWork work{};
#pragma unroll 1
  for (int n = 0; hopper_nth_work(p, parts, n, work); ++n)
    if (work.tile < hopper_key_tiles(p)) use(work);
}
