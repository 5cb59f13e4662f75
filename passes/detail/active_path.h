#pragma once
// What differentiation in either direction walks: the ops between `wrt` and `of`.

#include <sinter/ir/op_def.h>
#include <sinter/passes/pass.h>

#include <functional>
#include <span>
#include <unordered_set>
#include <vector>

namespace sinter::detail {

using ValueSet = std::unordered_set<Value, ValueHash>;

struct ActivePath {
  ActivePath(std::string_view pass_name, Graph& of_graph, std::span<const Value> differentiated,
             std::span<const Value> by, PassContext* pass_context)
      : pass(pass_name),
        graph(of_graph),
        of(differentiated.begin(), differentiated.end()),
        wrt(by.begin(), by.end()),
        context(pass_context) {}

  // Throws for a value that is no float.
  void require_floats() const;
  // Finds the path, and expands the ops on it for which `expands` holds, until there are none.
  // `watched` are other values that must survive.
  void find(const std::function<bool(const OpDef&)>& expands, std::vector<Value>& watched);
  // Throws the list of the ops on the path for which `refusal` is not null.
  void refuse(const std::function<const std::string*(const OpDef&)>& refusal) const;

  std::string_view pass;
  Graph& graph;
  std::vector<Value> of, wrt;
  PassContext* context;
  // Only ops from `first` (null: the graph's first) up to `end` (null: the last) are looked at.
  Op* first = nullptr;
  Op* end = nullptr;

  ValueSet active;       // values that depend on wrt
  std::vector<Op*> ops;  // those that depend on wrt and on which `of` depends, in order

 private:
  void walk();
};

// The user's place of a value, as far as it has one.
SourceLocation place_of(Value v);

// Reverse mode with its options; `context` (or null) receives remarks.
struct ReverseOptions {
  std::string_view pass = "autodiff";  // as messages name it
  PassContext* context = nullptr;
  enum { Zeros, Null, Refused } unused = Zeros;
  // Null: all ops, and new ones go to the end. Else only ops from `first` up to `before` count, and
  // new ones go in front of `before`.
  Op* first = nullptr;
  Op* before = nullptr;
};
std::vector<Value> reverse_mode(Graph& graph, std::span<const Value> of,
                                std::span<const Value> cotangents, std::span<const Value> wrt,
                                const ReverseOptions& options);
std::vector<Value> forward_mode(Graph& graph, std::span<const Value> of, std::span<const Value> wrt,
                                std::span<const Value> tangents, PassContext* context);

}  // namespace sinter::detail
