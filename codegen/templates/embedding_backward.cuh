// The gradient of an embedding: row v of the result is the sum of the rows of dy whose id is v.
//
// Three kernels, in this order; `ranges` is all zeros before them.
//
//   sinter_sort_ids     one block: positions 0..count-1 sorted by id, stable
//   sinter_sum_runs     a block per kRows sorted positions and kSumThreads * kVector columns
//   sinter_finish_rows  a thread per kVector columns of a row of the result
//
// Equal ids lie side by side after the sort: a run. A block of sum_runs adds up the rows of dy that
// its positions name, in rising order, one run after the other. A run that lies within the block is
// finished and stored; the part of one that crosses the block's border goes to `partials`, slot 0
// if the run began in an earlier block and slot 1 if it begins here and goes on. finish_rows adds
// those parts up in the order of blocks, and stores zeros in rows that no id names. So every sum
// has one order, which count and kRows fix, and however often an id occurs, no thread adds more
// than kRows + count / kRows rows one after the other.
//
// Ids outside of 0..vocab-1 sort behind all others and count nowhere.
//
// The constants in front of this text: types Element (of dy and the result), Sum (float, or double
// for double) and Id (int32_t or int64_t); kVector, a divisor of the width; kRows; and the
// functions to_sum and to_element, from one type to the other.

constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kDigits = 256;  // eight bits a pass
constexpr int kAhead = 4;     // loads in flight
constexpr int kSumThreads = 128;
constexpr unsigned kAllLanes = 0xffffffffu;

// Shared memory: counts[kDigits][kSortWarps], then kSortWarps sums of the scan.
constexpr int kCounts = kDigits * kSortWarps;

// The counts become the places where each digit's elements of each warp go: an exclusive prefix
// sum over digits, and within a digit over warps, which hold rising positions.
__device__ __forceinline__ void scan_counts(int* counts, int* warp_sums) {
  constexpr int kEach = kCounts / kSortThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  int own[kEach];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    own[i] = sum;
    sum += counts[thread * kEach + i];
  }
  int upto = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto += below;
  }
  if (lane == 31) warp_sums[warp] = upto;
  __syncthreads();
  if (warp == 0) {
    const int of_warp = warp_sums[lane];
    int total = of_warp;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, total, step);
      if (lane >= step) total += below;
    }
    warp_sums[lane] = total - of_warp;
  }
  __syncthreads();
  const int before = warp_sums[warp] + upto - sum;
#pragma unroll
  for (int i = 0; i < kEach; ++i) counts[thread * kEach + i] = before + own[i];
  __syncthreads();
}

// keys[i] is the id of position order[i]; the spare buffers are as long. Least significant digit
// first, `passes` digits. Each warp has a run of neighbouring elements and takes them 32 at a time:
// lanes with the same digit find each other, so that a count is changed by one lane.
SN_KERNEL void __launch_bounds__(kSortThreads)
    sinter_sort_ids(const Id* ids, int count, int vocab, int passes, uint32_t* keys, int* order,
                    uint32_t* spare_keys, int* spare_order) {
  SN_DYNAMIC_SHARED(memory);
  int* counts = reinterpret_cast<int*>(memory);
  int* warp_sums = counts + kCounts;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int rounds = (count + kSortThreads - 1) / kSortThreads;
  const long long begin = static_cast<long long>(warp) * rounds * 32;
  const long long end = begin + rounds * 32 < count ? begin + rounds * 32 : count;
  const unsigned lower_lanes = (1u << lane) - 1;

  for (int pass = 0; pass < passes; ++pass) {
    // The last pass writes keys and order.
    const bool to_spare = (passes - pass) % 2 == 0;
    const uint32_t* from_keys = to_spare ? keys : spare_keys;
    const int* from_order = to_spare ? order : spare_order;
    uint32_t* to_keys = to_spare ? spare_keys : keys;
    int* to_order = to_spare ? spare_order : order;
    auto key_at = [&](long long i) -> uint32_t {
      if (pass > 0) return from_keys[i];
      const Id id = ids[i];
      return id < 0 || id >= vocab ? static_cast<uint32_t>(vocab) : static_cast<uint32_t>(id);
    };
    const int shift = 8 * pass;

    for (int i = thread; i < kCounts; i += kSortThreads) counts[i] = 0;
    __syncthreads();
    // Two walks over the warp's elements: to count, and to place.
    for (int placing = 0; placing < 2; ++placing) {
      for (long long base = begin; base < end; base += 32 * kAhead) {
        uint32_t key[kAhead];
        int position[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          const long long i = base + 32 * a + lane;
          const bool valid = i < end;
          key[a] = valid ? key_at(i) : 0;
          position[a] = valid && placing ? (pass > 0 ? from_order[i] : static_cast<int>(i)) : 0;
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          const bool valid = base + 32 * a + lane < end;
          const int digit = valid ? static_cast<int>(key[a] >> shift & (kDigits - 1)) : kDigits;
          const unsigned same = __match_any_sync(kAllLanes, digit);
          const int rank = __popc(same & lower_lanes);
          int* counter = &counts[digit * kSortWarps + warp];
          if (placing && valid) {
            const int to = *counter + rank;
            to_keys[to] = key[a];
            to_order[to] = position[a];
          }
          __syncwarp();
          if (valid && rank == 0) *counter += __popc(same);
          __syncwarp();
        }
      }
      __syncthreads();
      if (!placing) scan_counts(counts, warp_sums);
    }
  }
}

// What a thread loads or stores at once: 16 bytes where the width allows.
struct alignas(sizeof(Element) * kVector) Elements {
  Element at[kVector];
};
__device__ __forceinline__ void load_elements(Sum* values, const Element* from) {
  const Elements elements = *reinterpret_cast<const Elements*>(from);
#pragma unroll
  for (int k = 0; k < kVector; ++k) values[k] = to_sum(elements.at[k]);
}
__device__ __forceinline__ void store_elements(Element* to, const Sum* values) {
  Elements elements;
#pragma unroll
  for (int k = 0; k < kVector; ++k) elements.at[k] = to_element(values[k]);
  *reinterpret_cast<Elements*>(to) = elements;
}

// ranges[v] = {begin, end}: the sorted positions whose id is v.
SN_KERNEL void __launch_bounds__(kSumThreads)
    sinter_sum_runs(const uint32_t* keys, const int* order, int count, int vocab, const Element* dy,
                    long long width, int column_blocks, Element* result, Sum* partials,
                    int2* ranges) {
  const long long chunk = blockIdx.x / column_blocks;
  const long long column =
      (static_cast<long long>(blockIdx.x % column_blocks) * kSumThreads + threadIdx.x) * kVector;
  if (column >= width) return;
  const int first = static_cast<int>(chunk * kRows);
  const int last = first + kRows < count ? first + kRows : count;

  int run_begin = first;
  bool began_before = first > 0 && keys[first - 1] == keys[first];
  Sum total[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) total[k] = 0;

  for (int base = first; base < last; base += kAhead) {
    uint32_t key[kAhead + 1];
    Sum row[kAhead][kVector];
#pragma unroll
    for (int a = 0; a <= kAhead; ++a) key[a] = base + a < count ? keys[base + a] : 0xffffffffu;
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (base + a < last) load_elements(row[a], dy + order[base + a] * width + column);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = base + a;
      if (i >= last) continue;
#pragma unroll
      for (int k = 0; k < kVector; ++k) total[k] += row[a][k];
      const bool run_ends = key[a + 1] != key[a];
      if (!run_ends && i + 1 < last) continue;
      const long long id = key[a];
      if (id < vocab) {
        if (run_ends && !began_before) {
          store_elements(result + id * width + column, total);
        } else {
          Sum* to = partials + (2 * chunk + (began_before ? 0 : 1)) * width + column;
#pragma unroll
          for (int k = 0; k < kVector; ++k) to[k] = total[k];
        }
        if (column == 0) {
          if (!began_before) ranges[id].x = run_begin;
          if (run_ends) ranges[id].y = i + 1;
        }
      }
      run_begin = i + 1;
      began_before = false;
#pragma unroll
      for (int k = 0; k < kVector; ++k) total[k] = 0;
    }
  }
}

SN_KERNEL void __launch_bounds__(256)
    sinter_finish_rows(const int2* ranges, const Sum* partials, long long vocab, long long width,
                       Element* result) {
  const long long each = width / kVector;
  const long long index = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (index >= vocab * each) return;
  // A division of 32 bits is a third of one of 64, which takes longer than the stores.
  const bool narrow = vocab * each <= 0xffffffffll;
  const long long id =
      narrow ? static_cast<uint32_t>(index) / static_cast<uint32_t>(each) : index / each;
  const long long column = (index - id * each) * kVector;
  const int2 range = ranges[id];
  const int first = range.x / kRows, last = (range.y - 1) / kRows;
  if (range.x < range.y && first == last) return;  // sum_runs has stored it
  Sum total[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) total[k] = 0;
  if (range.x < range.y) {
    for (long long chunk = first; chunk <= last; ++chunk) {
      const Sum* part = partials + (2 * chunk + (chunk == first ? 1 : 0)) * width + column;
#pragma unroll
      for (int k = 0; k < kVector; ++k) total[k] += part[k];
    }
  }
  store_elements(result + id * width + column, total);
}
