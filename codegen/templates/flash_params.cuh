// What a launch of a flash attention kernel is given, by value; shared by all of them, and by the
// host, which fills it. Plain C types alone.
//
// q [batch, heads, queries, head size], k and v [batch, kv_heads, keys, head and value size],
// y and dy as q but of the value size. Strides are in elements; the last axis has stride 1, so that
// q, k and v may lie in one packed projection and their gradients in its gradient. The portable and
// the Hopper kernels want pointers and strides that are multiples of 16 bytes.
//
// Query i stands at the place of key i + length - queries, length being kv_length[batch] or keys.

struct FlashStrides {
  long long batch, head, row;
};

struct FlashParams {
  const void* q;
  const void* k;
  const void* v;
  void* y;    // the forward kernel writes it, flash_delta reads it
  void* lse;  // [batch, heads, queries], natural logarithm, -inf in a row that sees no key;
              // f32, f64 for f64. The forward kernel writes it (null: not), the backward read it
  const void* dy;    // from here on: of the backward kernels alone
  const void* dlse;  // as lse; null: zero
  void* delta;       // as lse: flash_delta writes rowsum(dy * y) - dlse
  void* dq;
  void* dk;
  void* dv;
  FlashStrides q_strides, k_strides, v_strides, y_strides;
  FlashStrides dy_strides, dq_strides, dk_strides, dv_strides;
  int batch, heads, kv_heads, queries, keys;
  int window;  // kWindow: keys less than this far from the query's own place; at most 2^30
  double scale;
  double softcap;  // kSoftcap
  // kMask: 0 where a key is not visible. kBias: added to the scores. Strides of batch, head, query
  // and key; 0 where an axis is broadcast.
  const unsigned char* mask;
  long long mask_strides[4];
  const void* bias;
  long long bias_strides[4];
  const int* kv_length;   // kKvLength: i32[batch]
  const int* cu_lengths;  // kDocuments: i32[batch, documents + 1], where each document begins, and
                          // the end of the last; a query sees only keys of its own
  int documents;
  const float*
      slopes;  // kSlopes: f32[heads], for f64 f64[heads]; the bias is -slope * |own place - key|
  // kDropout: Philox bits of element ((b * heads + h) * queries + i) * keys + j, as the op dropout
  // has them; a probability is dropped when its half is below the threshold.
  const unsigned* seed;     // u32[2]
  const unsigned* step;     // u32[]
  const long long* offset;  // i64[]
  unsigned site, threshold;
  double keep_scale;  // 1 / (1 - p), 0 where p is 1
  // Of flash_backward: work space for sums of dq, and turns, which are 0 at first; and how many key
  // heads' blocks lie side by side in its grid.
  void* sums;
  unsigned* turns;
  int section;
};
