#pragma once
// Rotary embedding and attention.

#include <sinter/ir/graph.h>

namespace sinter {

struct RopeAttrs {
  std::string form = "half";
  double base = 10000.0;
  bool inverse = false;
  static constexpr auto fields() {
    return std::tuple{field("form", &RopeAttrs::form,
                            "half: pairs (i, i + D/2); interleaved: pairs (2i, 2i + 1)"),
                      field("base", &RopeAttrs::base, "pair i turns by base^(-2i/D) a position"),
                      field("inverse", &RopeAttrs::inverse, "turns back: the derivative")};
  }
};
struct AttentionAttrs {
  bool causal = false;
  double scale = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("causal", &AttentionAttrs::causal,
              "a query sees keys up to its own place, aligned at the bottom right"),
        field("scale", &AttentionAttrs::scale, "factor of the scores; 0 means 1/sqrt(D)")};
  }
};

// x [..., S, D] with the pairs of each row turned by angles that grow with its position, which is
// `offset` (an i32 or i64 scalar) for the first row. Angles are f32, or f64 for f64 x. Position 0
// is the identity in bits, forward and backward.
Value rope(Value x, Value offset, RopeAttrs attrs = {},
           SourceLocation loc = SourceLocation::here());

// softmax(scale * q k^T) v for q [B,H,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv]; Hkv divides H, and
// each key head serves H/Hkv neighbouring query heads. `mask` (bool, broadcast to [B,H,Sq,Sk]) is
// true where a key is visible. A row that sees no key gives 0, and gradients 0.
Value attention(Value q, Value k, Value v, Value mask = {}, AttentionAttrs attrs = {},
                SourceLocation loc = SourceLocation::here());
struct AttentionGrads {
  Value dq, dk, dv;
};
// Cotangents of q, k and v; the probabilities are recomputed.
AttentionGrads attention_backward(Value q, Value k, Value v, Value dy, Value mask = {},
                                  AttentionAttrs attrs = {},
                                  SourceLocation loc = SourceLocation::here());

}  // namespace sinter
