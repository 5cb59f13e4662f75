#pragma once
// The iteration space of a set of ops that shall become one kernel: fuse forms sets that have one,
// and code generation reads it from the finished body.
//
//   pointwise   p x q elements, every result has as many, or is a concat of parts that do
//   row         p rows of q elements; reductions run over whole rows and read their input so that
//               row p's elements are exactly those that the kernel's row p visits; results have
//               p*q or p elements
//   column      p x q results, each a serial reduction over r elements; results may also have the
//               p x r x q elements that are met on the way, made before anything is reduced
//   prefix      p rows of q results, along which one op runs

#include <sinter/ir/graph.h>
#include <sinter/ir/index_expr.h>

#include <span>
#include <string>

namespace sinter {

struct IterationSpace {
  enum Kind : uint8_t { Pointwise, Row, Column, Prefix };
  Kind kind = Pointwise;
  int64_t p = 1;  // pointwise and column: all results, q = 1; how to split them is codegen's choice
  int64_t q = 1;
  int64_t r = 1;  // elements reduced: q for rows
  // Pointwise: results that are concats of equal parts are stored part by part. The kernel visits
  // the elements of one part, and makes what stands there in all of them.
  bool by_parts = false;
  // Column: some results have the elements that are reduced; those of one sum lie `inner` apart.
  bool elements = false;
  int64_t inner = 1;

  // Column: the place, in a result of all elements, of element `at_r` of the sum `at_p`.
  IndexExpr element(const IndexExpr& at_p, const IndexExpr& at_r) const {
    return (floordiv(at_p, inner) * r + at_r) * inner + mod(at_p, inner);
  }
};

// A value that a kernel stores, and where in the result it belongs to.
struct StoredPart {
  Value value;
  int64_t axis = 0, first = 0;  // element [..., first + i, ...] of the result along `axis`
};
// The operands of a concat of equal shapes; else the result itself.
std::vector<StoredPart> stored_parts(Value result);

// The space of `ops` (in order; none calls a graph) with `results`, values that they define and
// that are stored. Fails with the reason when they cannot share one kernel, and then only: the
// kernel builder takes every set that has a space. One op alone has one, if it is no wider than
// expand leaves it; with the views that it reads through it may have none. Also fails when an
// element of a value of `once` would be read for several elements of the space, or out of its order
// there.
Result<IterationSpace> iteration_space(std::span<const Op* const> ops,
                                       std::span<const Value> results,
                                       std::span<const Value> once = {});

// The values that a kernel of `ops` reads from and writes to memory.
size_t count_buffers(std::span<const Op* const> ops, std::span<const Value> results);

}  // namespace sinter
