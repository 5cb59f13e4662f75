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
  int64_t window = 0;
  double softcap = 0;
  double p = 0;
  int64_t site = 0;
  bool lse = false;
  static constexpr auto fields() {
    return std::tuple{
        field("causal", &AttentionAttrs::causal,
              "a query sees keys up to its own place, aligned at the bottom right"),
        field("scale", &AttentionAttrs::scale, "factor of the scores; 0 means 1/sqrt(D)"),
        field("window", &AttentionAttrs::window,
              "a query sees keys less than this far from its own place; 0 means all"),
        field("softcap", &AttentionAttrs::softcap,
              "scores become softcap tanh(score / softcap); 0 means none"),
        field("p", &AttentionAttrs::p, "the share of probabilities that dropout makes 0"),
        field("site", &AttentionAttrs::site, "tells apart the random ops of a module"),
        field("lse", &AttentionAttrs::lse, "a second result: log-sum-exp of each row's scores")};
  }
};

// x [..., S, D] with the pairs of each row turned by angles that grow with its position, which is
// `offset` (an i32 or i64 scalar) for the first row. Angles are f32, or f64 for f64 x. Position 0
// is the identity in bits, forward and backward.
Value rope(Value x, Value offset, RopeAttrs attrs = {},
           SourceLocation loc = SourceLocation::here());

struct AttentionOperands {
  Value q, k, v;             // [B,H,Sq,D], [B,Hkv,Sk,D], [B,Hkv,Sk,Dv]
  Value mask;                // bool, broadcast to [B,H,Sq,Sk]: true where a key is visible
  Value bias;                // float, broadcast likewise: added to the scores
  Value kv_length;           // i32[B]: how many keys of each sequence count
  Value seed, step, offset;  // of dropout, where p is not 0
  // i32[B, documents + 1], in rising order, where Sq = Sk and there is no kv_length: document d is
  // the places boundaries[d] up to, not including, boundaries[d + 1].
  Value boundaries;
  Value slopes;  // f32[H] (f64 for f64): adds -slope |own place - key| to the scores (ALiBi)
};
struct AttentionResult {
  Value y;    // [B,H,Sq,Dv], of q's dtype
  Value lse;  // [B,H,Sq], f32 (f64 for f64), -inf in a row that sees no key; null unless asked for
};
// softmax(scores) v; Hkv divides H, and each key head serves H/Hkv neighbouring query heads. The
// scores are scale q k^T, then softcap, then + bias, then the slopes' part. Query i stands at the
// place of key i + length - Sq, length being kv_length or Sk: from there causal, window and slopes
// count. With boundaries a query sees keys of its own document alone, and a place in none sees
// nothing. Dropout acts on the probabilities, elements of [B,H,Sq,Sk], at a site of its own. A row
// that sees no key gives 0, and gradients 0; what rows of q, k and v hold that take no part has no
// effect.
AttentionResult attention(const AttentionOperands& operands, AttentionAttrs attrs = {},
                          SourceLocation loc = SourceLocation::here());
Value attention(Value q, Value k, Value v, Value mask = {}, AttentionAttrs attrs = {},
                SourceLocation loc = SourceLocation::here());

struct AttentionGrads {
  Value dq, dk, dv;
  Value dbias;  // null where there is no bias
};
// Cotangents of attention's operands from those of its results (dlse may be null); the
// probabilities are recomputed. `attrs.site` is the forward op's. y and lse, its results, spare a
// kernel the softmax's statistics; the expansion reads neither. Slopes are constants here:
// attention makes a bias of those that are learned.
AttentionGrads attention_backward(const AttentionOperands& operands, Value dy, Value dlse,
                                  AttentionAttrs attrs = {}, Value y = {}, Value lse = {},
                                  SourceLocation loc = SourceLocation::here());

}  // namespace sinter
