// Attention, forward and backward, for every element type, head size, alignment and option: the
// oracle of the other kernels, and what takes their place where they decline. Arithmetic is f32,
// f64 for f64.
//
// Tiling. A warp has one row (a query, or a key for the gradients of keys and values) and walks
// over the rows of the other side, 32 at a time. First each lane makes the scores of one of them,
// reading both rows whole; then, one after another, those that are visible are added to the row's
// result, of which lane l holds columns l, l + 32, … So what is not visible is not touched.
// Grid: the rows of all heads and batches, kWarps to a block (kTileM queries, kTileN keys, both
// equal to kWarps). No shared memory; rows come out of the caches.
//
// Online softmax: the sum and the result are rescaled when a larger score appears.

constexpr int kHeadParts = (kHeadDim + 31) / 32, kValueParts = (kValueDim + 31) / 32;

SN_FN Wide wide_inf() {
  return static_cast<Wide>(flash_inf());
}
SN_FN bf16 narrow(bf16 type, float x) {
  (void)type;
  return f32_to_bf16(x);
}
SN_FN f16 narrow(f16 type, float x) {
  (void)type;
  return f32_to_f16(x);
}
SN_FN float narrow(float type, float x) {
  (void)type;
  return x;
}
SN_FN double narrow(double type, double x) {
  (void)type;
  return x;
}

template <int Width>
SN_FN Wide plain_dot(const Element* a, const Element* b) {
  Wide sum = 0;
  for (int i = 0; i < Width; ++i) sum = sn_fma(flash_load(a[i]), flash_load(b[i]), sum);
  return sum;
}
// sums += factor * row
template <int Width, int Parts>
SN_FN void plain_add(Wide (&sums)[Parts], Wide factor, const Element* row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Parts; ++i)
    if (i * 32 + lane < Width) sums[i] = sn_fma(factor, flash_load(row[i * 32 + lane]), sums[i]);
}
template <int Width, int Parts>
SN_FN void plain_store(Element* row, const Wide (&sums)[Parts], Wide factor) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Parts; ++i)
    if (i * 32 + lane < Width) row[i * 32 + lane] = narrow(Element(), sums[i] * factor);
}

// One pair of a query and a key.
struct PlainPair {
  bool visible;
  Wide score;   // natural units, -inf where it is not visible
  Wide slope;   // of softcap
  Wide factor;  // of dropout
};
SN_FN PlainPair plain_pair(const FlashParams& p, int batch, int head, int length, int query,
                           int key, bool in_range, const Element* q, const Element* k) {
  PlainPair pair{in_range, -wide_inf(), 1, 1};
  if (in_range) {
    const Interval keys = flash_keys(p, batch, length, query);
    pair.visible = keys.begin <= key && key < keys.end;
    if (kMask && pair.visible) pair.visible = flash_mask(p, batch, head, query, key);
  }
  if (pair.visible) {
    Wide score = plain_dot<kHeadDim>(q, k) * static_cast<Wide>(p.scale);
    if (kSoftcap) {
      const Wide softcap = static_cast<Wide>(p.softcap), saturation = sn_tanh(score / softcap);
      pair.slope = 1 - saturation * saturation;
      score = softcap * saturation;
    }
    if (kBias) score += static_cast<Wide>(flash_bias(p, batch, head, query, key));
    if (kSlopes) {
      const int distance = query + length - p.queries - key;
      score -= reinterpret_cast<const Wide*>(p.slopes)[head] *
               static_cast<Wide>(distance < 0 ? -distance : distance);
    }
    pair.score = score;
    if (kDropout)
      pair.factor = flash_dropout(p, batch, head).keeps(query, key)
                        ? static_cast<Wide>(p.keep_scale)
                        : static_cast<Wide>(0);
  }
  return pair;
}

SN_FN int64_t plain_row(const FlashParams& p, int batch, int head, int query) {
  return (static_cast<int64_t>(batch) * p.heads + head) * p.queries + query;
}
// The probability of a pair, given the log-sum-exp of its row.
SN_FN Wide plain_probability(const PlainPair& pair, Wide lse) {
  return pair.visible && lse != -wide_inf() ? sn_exp(pair.score - lse) : static_cast<Wide>(0);
}

// The row of this warp.
struct PlainRow {
  int batch, head, row;
  bool valid;
};
SN_FN PlainRow plain_this_row(int rows, int heads) {
  const int tiles = (rows + kWarps - 1) / kWarps;
  const int group = static_cast<int>(blockIdx.x) / tiles;
  const int row =
      static_cast<int>(blockIdx.x) % tiles * kWarps + static_cast<int>(threadIdx.x / 32);
  return {group / heads, group % heads, row, row < rows};
}

SN_KERNEL void __launch_bounds__(kThreads) flash_plain_forward(const FlashParams p) {
  const PlainRow at = plain_this_row(p.queries, p.heads);
  if (!at.valid) return;
  const int batch = at.batch, head = at.head, query = at.row;
  const int kv_head = head / (p.heads / p.kv_heads), length = flash_length(p, batch);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Element* q = flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, head, query);
  const Element* k = flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, 0);
  const Element* v = flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, 0);
  const Interval keys = flash_keys(p, batch, length, query);
  Wide largest = -wide_inf(), total = 0, sums[kValueParts] = {};
  for (int first = flash_max(keys.begin, 0); first < keys.end; first += 32) {
    const int key = first + lane;
    const PlainPair pair = plain_pair(p, batch, head, length, query, key, key < keys.end, q,
                                      k + key * p.k_strides.row);
    Wide top = pair.score;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
      top = sn_max(top, __shfl_xor_sync(0xffffffffu, top, lanes));
    top = sn_max(top, largest);
    const Wide shift = top == -wide_inf() ? static_cast<Wide>(0) : top;
    const Wide rescale = sn_exp(largest - shift);
    const Wide probability = pair.visible ? sn_exp(pair.score - shift) : static_cast<Wide>(0);
    largest = top;
    Wide sum = probability;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    total = total * rescale + sum;
#pragma unroll
    for (int i = 0; i < kValueParts; ++i) sums[i] *= rescale;
    uint32_t seen = __ballot_sync(0xffffffffu, pair.visible);
    while (seen != 0) {
      const int other = __ffs(static_cast<int>(seen)) - 1;
      seen &= seen - 1;
      plain_add<kValueDim>(sums, __shfl_sync(0xffffffffu, probability * pair.factor, other),
                           v + (first + other) * p.v_strides.row);
    }
  }
  plain_store<kValueDim>(flash_row(static_cast<Element*>(p.y), p.y_strides, batch, head, query),
                         sums, total == 0 ? static_cast<Wide>(0) : 1 / total);
  if (p.lse != nullptr && lane == 0)
    static_cast<Wide*>(p.lse)[plain_row(p, batch, head, query)] =
        total == 0 ? -wide_inf() : largest + sn_log(total);
}

SN_KERNEL void __launch_bounds__(kThreads) flash_plain_backward_q(const FlashParams p) {
  const PlainRow at = plain_this_row(p.queries, p.heads);
  if (!at.valid) return;
  const int batch = at.batch, head = at.head, query = at.row;
  const int kv_head = head / (p.heads / p.kv_heads), length = flash_length(p, batch);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Element* q = flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, head, query);
  const Element* k = flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, 0);
  const Element* v = flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, 0);
  const Element* dy =
      flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, head, query);
  const Wide lse = static_cast<const Wide*>(p.lse)[plain_row(p, batch, head, query)];
  const Wide delta = static_cast<const Wide*>(p.delta)[plain_row(p, batch, head, query)];
  const Interval keys = flash_keys(p, batch, length, query);
  Wide sums[kHeadParts] = {};
  for (int first = flash_max(keys.begin, 0); first < keys.end; first += 32) {
    const int key = first + lane;
    const PlainPair pair = plain_pair(p, batch, head, length, query, key, key < keys.end, q,
                                      k + key * p.k_strides.row);
    const Wide probability = plain_probability(pair, lse);
    Wide ds = 0;
    if (probability != 0)
      ds = probability * pair.slope *
           (plain_dot<kValueDim>(dy, v + key * p.v_strides.row) * pair.factor - delta);
    uint32_t seen = __ballot_sync(0xffffffffu, probability != 0);
    while (seen != 0) {
      const int other = __ffs(static_cast<int>(seen)) - 1;
      seen &= seen - 1;
      plain_add<kHeadDim>(sums, __shfl_sync(0xffffffffu, ds, other),
                          k + (first + other) * p.k_strides.row);
    }
  }
  plain_store<kHeadDim>(flash_row(static_cast<Element*>(p.dq), p.dq_strides, batch, head, query),
                        sums, static_cast<Wide>(p.scale));
}

SN_KERNEL void __launch_bounds__(kThreads) flash_plain_backward_kv(const FlashParams p) {
  const PlainRow at = plain_this_row(p.keys, p.kv_heads);
  if (!at.valid) return;
  const int batch = at.batch, kv_head = at.head, key = at.row, group = p.heads / p.kv_heads;
  const int length = flash_length(p, batch), lane = static_cast<int>(threadIdx.x % 32);
  const Element* k = flash_row(static_cast<const Element*>(p.k), p.k_strides, batch, kv_head, key);
  const Element* v = flash_row(static_cast<const Element*>(p.v), p.v_strides, batch, kv_head, key);
  const Interval queries = flash_queries(p, batch, length, key);
  Wide dk[kHeadParts] = {}, dv[kValueParts] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const Element* q = flash_row(static_cast<const Element*>(p.q), p.q_strides, batch, head, 0);
    const Element* dy = flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, head, 0);
    for (int first = queries.begin; first < queries.end; first += 32) {
      const int query = first + lane;
      const bool in_range = query < queries.end;
      const PlainPair pair =
          plain_pair(p, batch, head, length, query, key, in_range, q + query * p.q_strides.row, k);
      Wide probability = 0, ds = 0;
      if (in_range) {
        const int64_t row = plain_row(p, batch, head, query);
        probability = plain_probability(pair, static_cast<const Wide*>(p.lse)[row]);
        if (probability != 0)
          ds = probability * pair.slope *
               (plain_dot<kValueDim>(dy + query * p.dy_strides.row, v) * pair.factor -
                static_cast<const Wide*>(p.delta)[row]);
      }
      uint32_t seen = __ballot_sync(0xffffffffu, probability != 0);
      while (seen != 0) {
        const int other = __ffs(static_cast<int>(seen)) - 1;
        seen &= seen - 1;
        plain_add<kHeadDim>(dk, __shfl_sync(0xffffffffu, ds, other),
                            q + (first + other) * p.q_strides.row);
        plain_add<kValueDim>(dv, __shfl_sync(0xffffffffu, probability * pair.factor, other),
                             dy + (first + other) * p.dy_strides.row);
      }
    }
  }
  plain_store<kHeadDim>(flash_row(static_cast<Element*>(p.dk), p.dk_strides, batch, kv_head, key),
                        dk, static_cast<Wide>(p.scale));
  plain_store<kValueDim>(flash_row(static_cast<Element*>(p.dv), p.dv_strides, batch, kv_head, key),
                         dv, static_cast<Wide>(1));
}
