#pragma once
// What an op says of its derivatives and of batching: the contexts in which its rules run, and the
// stock answers that may be named in place of a rule. Nothing is assumed of an op that says
// nothing.
//
// A rule builds ops at the graph's insertion point, and calls no pass.

#include <sinter/ir/graph.h>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace sinter {

// What the rules of ops with sub-graphs ask of the passes, which know how to transform a graph.
struct GraphTransforms {
  // Appends to `graph` the gradients of sum_i <of[i], cotangents[i]> by wrt; null where nothing
  // depends on an entry.
  std::function<std::vector<Value>(Graph& graph, std::span<const Value> of,
                                   std::span<const Value> cotangents, std::span<const Value> wrt)>
      vjp;
  // Appends to `graph` the tangents of `of` where wrt moves along `tangents`; null for zero.
  std::function<std::vector<Value>(Graph& graph, std::span<const Value> of,
                                   std::span<const Value> wrt, std::span<const Value> tangents)>
      jvp;
  // The outputs of `body` for `size` examples, at the insertion point of `graph`: its inputs are
  // `inputs`, with a leading axis where `carried`. All outputs carry the axis.
  std::function<std::vector<Value>(const Graph& body, Graph& graph, std::span<const Value> inputs,
                                   const std::vector<bool>& carried, int64_t size)>
      batch;
};

namespace detail {
const GraphTransforms& required(const GraphTransforms* transforms, const Op& op);
}

// ---- Reverse mode

// An op under differentiation: the cotangents of its results are known.
class VjpContext {
 public:
  VjpContext(const Op& op, std::vector<Value> grads, std::vector<bool> needed,
             const GraphTransforms* transforms = nullptr)
      : op_(op), grads_(std::move(grads)), needed_(std::move(needed)), transforms_(transforms) {}
  const Op& op() const { return op_; }
  Value operand(size_t i) const { return op_.operand(i); }
  Value result(size_t i = 0) const { return op_.result(i); }
  // The cotangent of a result; null when nothing depends on that result.
  Value grad(size_t i = 0) const { return grads_[i]; }
  // Whether the gradient of operand i is wanted; others may be left null.
  bool needs(size_t i) const { return i < needed_.size() && needed_[i]; }
  template <typename T>
  const T& attrs() const {
    return op_.attrs<T>();
  }
  const GraphTransforms& transforms() const { return detail::required(transforms_, op_); }

 private:
  const Op& op_;
  std::vector<Value> grads_;
  std::vector<bool> needed_;
  const GraphTransforms* transforms_;
};

// One gradient per operand; null where there is none (integers, or not needed).
using Grads = std::vector<Value>;

// Why an op has no derivative rule of its own.
struct NonDifferentiable {
  std::string_view reason;
};
// The refusal of an op whose derivative is that of its expansion.
inline constexpr NonDifferentiable kThroughExpansion{"differentiated through its expansion"};

// ---- Forward mode

// An op under differentiation: the tangents of its operands are known. Asked only where a float
// result depends on an operand that has a tangent.
class JvpContext {
 public:
  JvpContext(const Op& op, std::vector<Value> tangents, const GraphTransforms* transforms = nullptr)
      : op_(op), tangents_(std::move(tangents)), transforms_(transforms) {}
  const Op& op() const { return op_; }
  Value operand(size_t i) const { return op_.operand(i); }
  Value result(size_t i = 0) const { return op_.result(i); }
  // The tangent of operand i; null when it is zero (integers, absent operands, constants).
  Value tangent(size_t i = 0) const { return i < tangents_.size() ? tangents_[i] : Value(); }
  // The same with zeros in place of null.
  Value tangent_or_zero(size_t i) const;
  template <typename T>
  const T& attrs() const {
    return op_.attrs<T>();
  }
  const GraphTransforms& transforms() const { return detail::required(transforms_, op_); }
  // The same op with other tangents.
  JvpContext with(std::vector<Value> tangents) const {
    return {op_, std::move(tangents), transforms_};
  }

 private:
  const Op& op_;
  std::vector<Value> tangents_;
  const GraphTransforms* transforms_;
};

// Stock answers for forward mode. A rule of an op's own gives one tangent per result, null for 0.
enum class Jvp : uint8_t {
  through_expand,  // the tangent of its expansion
  through_vjp,     // the transpose of its VJP, which is linear in the cotangents
  linear,          // the op itself, with the tangents in place of its float operands
  none,            // constant in its float operands, or without any
};

// ---- Batching

// An op to be run for `size` > 0 examples at once. The op itself may stand in another graph; its
// operands here are those of `graph()`, and carry a new leading axis where `batched`.
class BatchContext {
 public:
  BatchContext(const Op& op, Graph& graph, std::vector<Value> operands, std::vector<bool> batched,
               int64_t size, const GraphTransforms* transforms = nullptr)
      : op_(op),
        graph_(graph),
        operands_(std::move(operands)),
        batched_(std::move(batched)),
        size_(size),
        transforms_(transforms) {}
  const Op& op() const { return op_; }  // as one example has it
  Graph& graph() const { return graph_; }
  int64_t size() const { return size_; }
  size_t num_operands() const { return operands_.size(); }
  Value operand(size_t i) const { return i < operands_.size() ? operands_[i] : Value(); }
  bool batched(size_t i) const { return i < batched_.size() && batched_[i]; }
  // Whether `i` is the only operand that is batched.
  bool only(size_t i) const;
  // The operand with the leading axis: broadcast where it has none of its own, null where absent.
  Value carried(size_t i) const;
  std::vector<Value> all_carried() const;
  // `type` with the leading axis.
  TensorType carried_type(TensorType type) const;
  template <typename T>
  const T& attrs() const {
    return op_.attrs<T>();
  }
  const GraphTransforms& transforms() const { return detail::required(transforms_, op_); }

 private:
  const Op& op_;
  Graph& graph_;
  std::vector<Value> operands_;
  std::vector<bool> batched_;
  int64_t size_;
  const GraphTransforms* transforms_;
};

// What a batching rule answers: the results, each carrying the leading axis or not.
struct Batched {
  std::vector<Value> results;
  std::vector<bool> carry;
  bool expand = false;  // no rule for these operands: batch the op's expansion

  // Every result carries the axis.
  static Batched all(std::vector<Value> results) {
    std::vector<bool> carry(results.size(), true);
    return {std::move(results), std::move(carry), false};
  }
  static Batched through_expand() { return {{}, {}, true}; }
};

// Stock answers for batching.
enum class Batch : uint8_t {
  // The op itself on operands that all carry the axis. Attributes of type Axis and Axes are shifted
  // by one (empty Axes stay empty), and a ResultType gets the axis in front.
  shift_axes,
  shift_reduced_axes,  // the same, where empty Axes mean all of the first operand's
  through_expand,      // its expansion, batched
  unroll,              // once for each example, and the results stacked
};
// Why an op cannot be batched.
struct Unbatchable {
  std::string_view reason;
};

namespace detail {
std::vector<Value> linear_jvp(const JvpContext& c);
std::vector<Value> zero_jvp(const JvpContext& c);
Batched shift_axes(const BatchContext& c);
Batched shift_reduced_axes(const BatchContext& c);
Batched unroll(const BatchContext& c);
}  // namespace detail

// The op again on other operands of `graph`, with its attributes, or with `attrs` in their place.
Op& rebuild(const Op& op, Graph& graph, std::vector<Value> operands,
            std::shared_ptr<const void> attrs = nullptr);
template <typename Attrs>
Op& rebuild_with(const Op& op, Graph& graph, std::vector<Value> operands, Attrs attrs) {
  return rebuild(op, graph, std::move(operands), std::make_shared<Attrs>(std::move(attrs)));
}

}  // namespace sinter
