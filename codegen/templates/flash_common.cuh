// What the attention kernels share. It follows flash_params.cuh and the preamble, which defines
//   Element (bf16, f16; float, double for the plain kernel), BiasElement,
//   kHeadDim, kValueDim, kTileM, kTileN, kStages, kWarps, kSharedBytes (as flash_tiles.h has them),
//   kCausal, kWindow, kSoftcap, kMask, kBias, kKvLength, kDocuments, kSlopes, kDropout.
//
// Visibility. But for kMask, the keys that a query sees are an interval, and so are the queries
// that see a key; both intervals only move up with the row. So two rows tell what a tile may see,
// and whether all of it is visible: then no element needs a test.

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kThreads = kWarps * 32;

struct Interval {
  int begin, end;
};

SN_FN constexpr int flash_min(int a, int b) {
  return a < b ? a : b;
}
SN_FN constexpr int flash_max(int a, int b) {
  return a > b ? a : b;
}
SN_FN float flash_inf() {
  return __uint_as_float(0x7f800000u);
}

SN_FN float flash_load(bf16 x) {
  return bf16_to_f32(x);
}
SN_FN float flash_load(f16 x) {
  return f16_to_f32(x);
}
SN_FN float flash_load(float x) {
  return x;
}
SN_FN double flash_load(double x) {
  return x;
}

// The type of arithmetic: float, double for double.
using Wide = decltype(flash_load(Element()));

// Where row (batch, head, row) of a tensor begins.
template <typename T>
SN_FN T* flash_row(T* base, const FlashStrides& strides, int batch, int head, int row) {
  return base + (batch * strides.batch + head * strides.head + row * strides.row);
}

// How many keys count, before any are taken away; may be more than there are.
SN_FN int flash_length(const FlashParams& p, int batch) {
  return kKvLength ? p.kv_length[batch] : p.keys;
}

// The document that `place` belongs to; empty outside of all.
SN_FN Interval flash_document(const FlashParams& p, int batch, int place) {
  const int* starts = p.cu_lengths + static_cast<int64_t>(batch) * (p.documents + 1);
  const int first = starts[0], last = starts[p.documents];
  if (place < first) return {first, first};
  if (place >= last) return {last, last};
  int low = 0, high = p.documents;  // starts[low] <= place < starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= place)
      low = middle;
    else
      high = middle;
  }
  return {starts[low], starts[high]};
}

// The keys that a query may see.
SN_FN Interval flash_keys(const FlashParams& p, int batch, int length, int query) {
  const int own = query + length - p.queries;
  Interval keys{0, flash_min(length, p.keys)};
  if (kCausal) keys.end = flash_min(keys.end, own + 1);
  if (kWindow) {
    keys.begin = flash_max(keys.begin, own - p.window + 1);
    if (!kCausal) keys.end = flash_min(keys.end, own + p.window);
  }
  if (kDocuments) {
    const Interval document = flash_document(p, batch, own);
    keys.begin = flash_max(keys.begin, document.begin);
    keys.end = flash_min(keys.end, document.end);
  }
  return keys;
}

// The queries that may see a key.
SN_FN Interval flash_queries(const FlashParams& p, int batch, int length, int key) {
  if (key >= flash_min(length, p.keys)) return {p.queries, p.queries};
  const int shift = length - p.queries;
  Interval queries{0, p.queries};
  if (kCausal) queries.begin = flash_max(0, key - shift);
  if (kWindow) {
    if (!kCausal) queries.begin = flash_max(0, key - p.window + 1 - shift);
    queries.end = flash_min(queries.end, key + p.window - shift);
  }
  if (kDocuments) {
    const Interval document = flash_document(p, batch, key);
    queries.begin = flash_max(queries.begin, document.begin - shift);
    queries.end = flash_min(queries.end, document.end - shift);
  }
  return queries;
}

SN_FN bool flash_mask(const FlashParams& p, int batch, int head, int query, int key) {
  return p.mask[batch * p.mask_strides[0] + head * p.mask_strides[1] + query * p.mask_strides[2] +
                key * p.mask_strides[3]] != 0;
}
SN_FN auto flash_bias(const FlashParams& p, int batch, int head, int query, int key) {
  const int64_t at = batch * p.bias_strides[0] + head * p.bias_strides[1] +
                     query * p.bias_strides[2] + key * p.bias_strides[3];
  return flash_load(static_cast<const BiasElement*>(p.bias)[at]);
}

// --- Dropout: the bits of the op dropout on [batch, heads, queries, keys] ---

struct FlashDropout {
  uint32_t key0, key1, step, site, threshold;
  int64_t base;  // the element of query 0 and key 0 of this batch row and head
  int keys;
  bool aligned;  // eight keys from a multiple of 8 on share one call

  SN_FN_MEMBER int64_t element(int query, int key) const {
    return base + static_cast<int64_t>(query) * keys + key;
  }
  // Of the 8 elements of a call, bit i is set where element i is kept.
  SN_FN_MEMBER uint32_t call(int64_t element) const {
    const sn_words words = sn_philox(key0, key1, step, site, static_cast<uint64_t>(element) / 8);
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = sn_word(words, static_cast<uint32_t>(i));
      kept |= ((word & 0xffffu) >= threshold ? 1u : 0u) << (2 * i);
      kept |= ((word >> 16) >= threshold ? 1u : 0u) << (2 * i + 1);
    }
    return kept;
  }
  SN_FN_MEMBER bool keeps(int query, int key) const {
    const int64_t at = element(query, key);
    return (call(at) >> (static_cast<uint64_t>(at) % 8) & 1u) != 0;
  }
};

SN_FN FlashDropout flash_dropout(const FlashParams& p, int batch, int head) {
  FlashDropout d;
  d.key0 = p.seed[0];
  d.key1 = p.seed[1];
  d.step = *p.step;
  d.site = p.site;
  d.threshold = p.threshold;
  d.keys = p.keys;
  d.base = *p.offset + (static_cast<int64_t>(batch) * p.heads + head) * p.queries * p.keys;
  d.aligned = p.keys % 8 == 0 && static_cast<uint64_t>(*p.offset) % 8 == 0;
  return d;
}
