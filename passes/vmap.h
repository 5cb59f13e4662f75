#pragma once
// Batching: a graph for one example becomes one for several, along a new leading axis.

#include <sinter/ir/graph.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

// A value that carries the new axis 0, or is the same for all examples.
struct MaybeBatched {
  Value value;
  bool batched = false;
};

// The outputs of `body` for `size` examples at once, as ops at the insertion point of `into`. The
// operands stand for the inputs of `body`; one that is batched has a leading axis of extent `size`.
// Each example's results are what `body` gives for its operands: random ops whose seed, step and
// offset are not batched draw the same bits for every example. What depends on no batched operand
// is computed once. Throws Error that lists every op that cannot be batched, with its line.
std::vector<MaybeBatched> vmap(const Graph& body, Graph& into,
                               std::span<const MaybeBatched> operands, int64_t size);

// A new graph `name` of the same module, with `inputs` (names of inputs of `graph`) batched and the
// others shared. Every output carries the axis, except the next value of a state, which no batched
// input may reach.
Graph& vmap(const Graph& graph, std::string name, std::span<const std::string> inputs,
            int64_t size);

}  // namespace sinter
