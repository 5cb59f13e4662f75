#pragma once
// Derivatives on the graph itself, in both directions. What they append is an ordinary graph: it
// can be differentiated again, in either direction, as often as the ops' rules allow.
//
// Every new op carries the location of the op it differentiates, and that op's location as `from`.
// An op on the path without a derivative is an Error that lists all such ops, with their lines; one
// that is differentiated through its expansion is expanded in place first.

#include <sinter/ir/graph.h>

#include <span>
#include <vector>

namespace sinter {

// What an entry of `wrt` gets that no differentiated value depends on.
enum class Unused : uint8_t {
  Zeros,
  Null,     // a null Value
  Refused,  // an Error that names all of them
};

// Appends the ops that compute d of / d wrt[i], with cotangent 1 (`of` has rank 0), and gives those
// values. Fan-out becomes one add_n.
std::vector<Value> gradients(Graph& graph, Value of, std::span<const Value> wrt,
                             Unused unused = Unused::Zeros);

// The same for several values with given cotangents, of the same types: the gradients of
// sum_i <of[i], cotangents[i]>, with the cotangents held constant.
std::vector<Value> vjp(Graph& graph, std::span<const Value> of, std::span<const Value> cotangents,
                       std::span<const Value> wrt, Unused unused = Unused::Zeros);

// Forward mode: the derivative of each of[i] along `tangents`, one for each entry of `wrt` and of
// its type; zeros where nothing depends on them. The ops stand behind those they differentiate
// where the tangents are known there, else at the end.
std::vector<Value> tangents(Graph& graph, std::span<const Value> of, std::span<const Value> wrt,
                            std::span<const Value> tangents);

}  // namespace sinter
