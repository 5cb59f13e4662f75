#pragma once
// Which attention kernels there are for an op, and with which tiles; the templates are in
// codegen/templates/flash_*.cuh.

#include <sinter/ir/graph.h>
#include <sinter/passes/flash_hopper_tiles.h>
#include <sinter/passes/flash_tiles.h>

#include <functional>
#include <string>

namespace sinter {

// Of an op `attention` or `attention_backward`.
struct AttentionCall {
  explicit AttentionCall(const Op& op);
  const Op& op;
  bool backward;
  DType element;
  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  // By name; null where absent.
  Value operand(std::string_view name) const;
  bool has(std::string_view name) const { return static_cast<bool>(operand(name)); }
  // Options that take registers in every score.
  bool rich() const;
  FlashTiles tiles(FlashKernel kernel, const Target& target) const;
  // Of the kernels `hopper` for this direction.
  FlashHopperTiles hopper_tiles() const;
};

// Whether a kernel other than the plain one will take this op `attention`, and the gradient of it,
// once the graph's mixed precision has been applied; else why not. `learned`: whether the gradient
// of an operand will be asked for.
bool has_native_attention(const Op& op, const Target& target,
                          const std::function<bool(Value)>& learned, std::string* why = nullptr);

// Bytes of the row sums that the backward kernels `plain` work in.
int64_t attention_delta_bytes(const AttentionCall& call);
// What those of `portable` work in, row sums first: places in bytes from the start, each a multiple
// of 256.
struct PortableScratch {
  int64_t sums = 0, turns = 0, bytes = 0;
};
PortableScratch attention_portable_scratch(const AttentionCall& call, const Target& target);
// What those of `hopper` work in: places in bytes from the start.
struct HopperScratch {
  int64_t rows = 0, sums = 0, turns = 0, bytes = 0;
};
HopperScratch attention_hopper_scratch(const AttentionCall& call);

}  // namespace sinter
