#pragma once
// Stateless random numbers (philox.h). The operands are seed u32[2], step u32[] and offset i64[];
// each op made by these functions gets a site of its own.

#include <sinter/ir/graph.h>

namespace sinter {

struct RandomAttrs {
  int64_t site = 0;
  ResultType type;
  static constexpr auto fields() {
    return std::tuple{field("site", &RandomAttrs::site, "tells apart the random ops of a module"),
                      field("type", &RandomAttrs::type)};
  }
};
struct TruncatedNormalAttrs {
  double low = -2, high = 2;
  int64_t site = 0;
  ResultType type;
  static constexpr auto fields() {
    return std::tuple{
        field("low", &TruncatedNormalAttrs::low, "the smallest result"),
        field("high", &TruncatedNormalAttrs::high, "the largest result"),
        field("site", &TruncatedNormalAttrs::site, "tells apart the random ops of a module"),
        field("type", &TruncatedNormalAttrs::type)};
  }
};
struct BernoulliAttrs {
  int64_t site = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("site", &BernoulliAttrs::site, "tells apart the random ops of a module")};
  }
};
struct DropoutAttrs {
  double p = 0.5;
  int64_t site = 0;
  static constexpr auto fields() {
    return std::tuple{field("p", &DropoutAttrs::p, "the share that becomes 0"),
                      field("site", &DropoutAttrs::site, "tells apart the random ops of a module")};
  }
};

// Numbers in [0, 1), of a float type.
Value random_uniform(Value seed, Value step, Value offset, TensorType type,
                     SourceLocation loc = SourceLocation::here());
// Numbers of mean 0 and variance 1, of a float type.
Value random_normal(Value seed, Value step, Value offset, TensorType type,
                    SourceLocation loc = SourceLocation::here());
// Normal numbers between `low` and `high`, of a float type: the inverse of the distribution at one
// uniform number an element, so nothing is drawn again.
Value random_truncated_normal(Value seed, Value step, Value offset, TensorType type,
                              double low = -2, double high = 2,
                              SourceLocation loc = SourceLocation::here());
// True with probability p (float), each element by its own: where a uniform number is below p.
Value random_bernoulli(Value p, Value seed, Value step, Value offset,
                       SourceLocation loc = SourceLocation::here());
// 0..n-1 in random order along the last axis of `shape`, whose extent n is, for each row by itself.
Value random_permutation(Value seed, Value step, Value offset, Shape shape,
                         SourceLocation loc = SourceLocation::here());
// Integers in 0..65535 as i32.
Value random_half(Value seed, Value step, Value offset, Shape shape,
                  SourceLocation loc = SourceLocation::here());
// x with a share of about p set to 0 and the rest multiplied by 1/(1-p); x itself when p is 0.
Value dropout(Value x, Value seed, Value step, Value offset, double p,
              SourceLocation loc = SourceLocation::here());

}  // namespace sinter
