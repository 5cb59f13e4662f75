#pragma once
// An op in the vocabulary of kernels: all that code generation knows of it.
//
// `OpDef::body` is asked for one element of one result, at index expressions, and answers with a
// node that a BodyBuilder makes: elements of operands, scalar functions, index values, reductions,
// random numbers and checks. Code generation implements the builder to grow a kernel; composing the
// bodies of several ops fuses them.

#include <sinter/ir/index_expr.h>
#include <sinter/ir/scalar.h>

#include <functional>
#include <span>
#include <vector>

namespace sinter {

struct BodyNode {
  int id = -1;
};

// How a reduction over one linear range adds up; see design: the order is part of the meaning.
// Element r goes to accumulator ((r / vector) % lanes, r % vector), each starting from the identity
// and taking its elements in rising order; then each lane folds its vector slots in rising order;
// then lanes fold pairwise: 0+1, 2+3, …, then pairs of pairs. lanes is a power of two.
struct ReduceOrder {
  int64_t lanes = 1;
  int64_t vector = 1;
  friend bool operator==(const ReduceOrder&, const ReduceOrder&) = default;
};

// A running fold, and how it adds up. Elements stand in tiles of lanes * vector, which are `lanes`
// runs of `vector` neighbours; 2^floor(log2(lanes) / 2) lanes make a group. Runs, groups and tiles
// each fold in rising order from the identity, a group its runs, a tile its groups. The value at an
// element is ((what the tiles and then the groups before it folded to) with the runs before it in
// its group, one by one) with its own run up to it. With lanes = vector = 1 that is from left to
// right. `reverse` counts elements from the end.
struct PrefixOrder {
  int64_t lanes = 1;  // a power of two
  int64_t vector = 1;
  bool reverse = false, exclusive = false;
  int64_t group() const;  // lanes of a group
  friend bool operator==(const PrefixOrder&, const PrefixOrder&) = default;
};
inline int64_t PrefixOrder::group() const {
  int64_t g = 1;
  while (g * g * 4 <= lanes) g *= 2;
  return g;
}

enum class RandomKind : uint8_t {
  Half,     // i32 in 0..65535: the element's 16-bit half, 8 elements a call
  Uniform,  // f32 in [0, 1): (u32 >> 8) * 2^-24, 4 elements a call
  Normal,   // f32, Box–Muller on words (0,1) and (2,3), 4 elements a call
};

class BodyBuilder {
 public:
  virtual ~BodyBuilder() = default;
  // Element of operand `i` at `at` (one expression per axis). Where `guard` is false: `otherwise`,
  // and nothing is read.
  virtual BodyNode operand(size_t i, std::vector<IndexExpr> at, const Guard& guard = {},
                           Cell otherwise = {}) = 0;
  virtual BodyNode scalar(const ScalarFn& fn, std::span<const BodyNode> args) = 0;
  virtual BodyNode literal(DType type, Cell value) = 0;
  // The value of an index expression.
  virtual BodyNode index(const IndexExpr& e, DType type) = 0;
  // True where the guard holds (bool).
  virtual BodyNode guard(const Guard& g) = 0;
  // Folds `element(r)` over r in 0..extent-1 with `combine` (Add, Mul, Max or Min).
  virtual BodyNode reduce(Fn combine, int64_t extent, ReduceOrder order,
                          const std::function<BodyNode(const IndexExpr& r)>& element) = 0;
  // Element `at` of the running fold of element(r) over r in 0..extent-1 with `combine` (Add or
  // Mul): of all elements up to it, from the other end if `reverse`, without itself if `exclusive`.
  virtual BodyNode prefix(Fn combine, int64_t extent, const PrefixOrder& order, const IndexExpr& at,
                          const std::function<BodyNode(const IndexExpr& r)>& element) = 0;
  // A random number for element `element` (plus the operand `offset`) of call site `site`; the
  // arguments are nodes of the scalars seed[0], seed[1] (u32), step (u32) and offset (i64).
  virtual BodyNode random(RandomKind kind, uint32_t site,
                          std::span<const BodyNode> seed_step_offset, const IndexExpr& element) = 0;
  // An integer node as an index; the caller vouches for low <= value < high.
  virtual IndexExpr gathered(BodyNode node, int64_t low, int64_t high) = 0;
  // Reports a value outside low..high-1 (unless it equals `ignore`) to the fault record, with
  // `position` as its place. The value itself, or `low` when it is outside.
  virtual BodyNode check(BodyNode value, int64_t low, int64_t high, std::optional<int64_t> ignore,
                         const IndexExpr& position) = 0;
};

}  // namespace sinter
