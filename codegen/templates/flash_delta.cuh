// delta = rowsum(dy * y) - dlse: what the backward kernels subtract from each row's products dy v.
// For all element types; 16-bit rows in loads of 16 bytes where pointers and strides allow it.
//
// Tiling. A block has kTileM rows of one head; a row is shared by as many lanes as it has loads.
// Grid: heads * batch * ceil(queries / kTileM) blocks of kWarps warps. No shared memory.

SN_FN constexpr int delta_lanes(int loads) {
  int lanes = 1;
  while (lanes < loads && lanes < 32) lanes *= 2;
  return lanes;
}

SN_FN void load_eight(Wide (&to)[8], const Element* from) {
  if constexpr (sizeof(Element) == 2) {
    union {
      uint4 words;
      Element elements[8];
    } loaded;
    loaded.words = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = flash_load(loaded.elements[i]);
  }
}

// Loads of kVector elements each.
template <int kVector>
SN_FN void delta_rows(const FlashParams& p, int batch, int head, int first, int valid) {
  constexpr int kLoads = (kValueDim + kVector - 1) / kVector, kLanes = delta_lanes(kLoads);
  constexpr int kGroups = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kTileM; row += kGroups) {
    const int query = first + flash_min(row, valid - 1);
    const Element* y = flash_row(static_cast<const Element*>(p.y), p.y_strides, batch, head, query);
    const Element* dy =
        flash_row(static_cast<const Element*>(p.dy), p.dy_strides, batch, head, query);
    Wide sum = 0;
    for (int i = lane; i < kLoads; i += kLanes) {
      if constexpr (kVector == 8) {
        Wide a[8], b[8];
        load_eight(a, y + 8 * i);
        load_eight(b, dy + 8 * i);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum = sn_fma(a[k], b[k], sum);
      } else {
        sum = sn_fma(flash_load(y[i]), flash_load(dy[i]), sum);
      }
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (lane == 0 && row < valid) {
      const int64_t at = (static_cast<int64_t>(batch) * p.heads + head) * p.queries + query;
      if (p.dlse != nullptr) sum -= static_cast<const Wide*>(p.dlse)[at];
      static_cast<Wide*>(p.delta)[at] = sum;
    }
  }
}

SN_FN bool delta_aligned(const void* pointer, const FlashStrides& s) {
  return ((reinterpret_cast<uint64_t>(pointer) % 16) |
          static_cast<uint64_t>((s.batch | s.head | s.row) % 8)) == 0;
}

SN_KERNEL void __launch_bounds__(kThreads) flash_delta(const FlashParams p) {
  const int tiles = (p.queries + kTileM - 1) / kTileM;
  const int row_of_tiles = static_cast<int>(blockIdx.x) / tiles;
  const int first = static_cast<int>(blockIdx.x) % tiles * kTileM;
  const int batch = row_of_tiles / p.heads, head = row_of_tiles % p.heads;
  const int valid = flash_min(kTileM, p.queries - first);
  if (sizeof(Element) == 2 && kValueDim % 8 == 0 && delta_aligned(p.y, p.y_strides) &&
      delta_aligned(p.dy, p.dy_strides))
    delta_rows<8>(p, batch, head, first, valid);
  else
    delta_rows<1>(p, batch, head, first, valid);
}
