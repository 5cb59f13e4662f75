#pragma once
// Derivatives of functions of values, vmap and scan.
//
// They build ops, like any function of the DSL, so they nest in every order: the gradient of a
// scan, a Jacobian inside a loss, per-example gradients as vmap of grad. A function is a C++
// callable (see function.h) that is called once, with values of the graph; it is differentiated by
// its arguments alone, and what it captures counts as constant. Shapes are written for one
// argument x; with several, each result comes once per argument, in their order.
//
//   Value dx = grad([](Value x) { return sum(sin(x)); }, x);            // cos(x), shape of x
//   Value h = hessian(f, x);                                            // [x…, x…]
//
// A mistake (a loss that is no scalar, a tangent of another shape, an op without derivative) throws
// Error with the place of the call.

#include <sinter/frontends/dsl/function.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/jacobian.h>

#include <optional>

namespace sinter {

// ---- Reverse mode

// The gradient of f(x), a float scalar: the shape of x.
Value grad(const Function& f, Value x, SourceLocation loc = SourceLocation::here());
std::vector<Value> grad(const Function& f, const std::vector<Value>& arguments,
                        SourceLocation loc = SourceLocation::here());

// The same for values that are there already: d loss / d wrt[i], over all paths between them;
// zeros where there is none.
Value grad(Value loss, Value wrt, SourceLocation loc = SourceLocation::here());
std::vector<Value> grad(Value loss, const std::vector<Value>& wrt,
                        SourceLocation loc = SourceLocation::here());

struct ValueAndGrad {
  Value value;               // f(x)
  std::vector<Value> grads;  // one per argument
  Value grad() const { return grads.at(0); }
};
ValueAndGrad value_and_grad(const Function& f, const std::vector<Value>& arguments,
                            SourceLocation loc = SourceLocation::here());
inline ValueAndGrad value_and_grad(const Function& f, Value x,
                                   SourceLocation loc = SourceLocation::here()) {
  return value_and_grad(f, std::vector<Value>{x}, std::move(loc));
}

struct ValuesAndGrads {
  std::vector<Value> values, grads;
};
// The results y of f, and for each argument the gradient of Σ <y, cotangent>: cotangents have the
// shapes of the results. Integer results take a null cotangent.
ValuesAndGrads vjp(const Function& f, const std::vector<Value>& arguments,
                   const std::vector<Value>& cotangents,
                   SourceLocation loc = SourceLocation::here());

// ---- Forward mode

struct ValuesAndTangents {
  std::vector<Value> values, tangents;
};
// The results of f, and how each changes when the arguments move along `tangents`, which have the
// arguments' shapes; a null tangent is zero. Zeros where a result does not change.
ValuesAndTangents jvp(const Function& f, const std::vector<Value>& arguments,
                      const std::vector<Value>& tangents,
                      SourceLocation loc = SourceLocation::here());

// ---- Whole matrices

// d y / d x for y = f(x): [y…, x…], the axes of y and then those of x.
Value jacobian(const Function& f, Value x, JacobianMode mode = JacobianMode::Auto,
               SourceLocation loc = SourceLocation::here());

// The Hessian of f(x), a float scalar, times v of the shape of x: that shape. Reverse over forward:
// costs a few evaluations of f, whatever the size of x.
Value hvp(const Function& f, Value x, Value v, SourceLocation loc = SourceLocation::here());
std::vector<Value> hvp(const Function& f, const std::vector<Value>& arguments,
                       const std::vector<Value>& v, SourceLocation loc = SourceLocation::here());

// The Hessian of f(x), a float scalar: [x…, x…]. For small x: an hvp for each element, all at once.
Value hessian(const Function& f, Value x, SourceLocation loc = SourceLocation::here());

// ---- Gradients of one's own

// Gradients from operands, results and a cotangent for each float result (zeros where nothing
// depends on it): one for each float operand, of its type.
using BackwardFunction = std::function<std::vector<Value>(const std::vector<Value>& operands,
                                                          const std::vector<Value>& results,
                                                          const std::vector<Value>& cotangents)>;
// The results of `forward`, which is differentiated by `backward` in its place. Number, shape and
// dtype of the gradients are checked here. What either captures counts as constant. `name` appears
// in messages and texts.
std::vector<Value> custom_vjp(std::string_view name, const Function& forward,
                              const BackwardFunction& backward, const std::vector<Value>& operands,
                              SourceLocation loc = SourceLocation::here());
// For one operand and one result: backward(x, y, dy) gives dx.
Value custom_vjp(std::string_view name, const Function& forward,
                 const std::function<Value(Value x, Value y, Value dy)>& backward, Value x,
                 SourceLocation loc = SourceLocation::here());

// stop_gradient(x), among the ops: x, and no gradient or tangent through it.

// ---- Batching and loops

// f once for each example: arguments carry an axis of examples at in_axes[i], or none where that is
// nullopt and for what f captures; with in_axes left out all carry one in front. f sees them
// without it. Each result gets it in front: [examples, …].
std::vector<Value> vmap(const Function& f, const std::vector<Value>& arguments,
                        const std::vector<std::optional<int64_t>>& in_axes = {},
                        SourceLocation loc = SourceLocation::here());
inline Value vmap(const Function& f, Value x, SourceLocation loc = SourceLocation::here()) {
  return vmap(f, std::vector<Value>{x}, {}, std::move(loc)).at(0);
}

// What a step of a scan gives, and what the scan gives.
struct ScanResult {
  std::vector<Value> carries;
  std::vector<Value> stacked;  // a row each; of the scan: [length, …]
};
using ScanStep =
    std::function<ScanResult(const std::vector<Value>& carries, const std::vector<Value>& rows)>;
struct ScanOptions {
  int64_t length = -1;     // steps; needed only where nothing is stacked
  bool reverse = false;    // from the last row to the first; results are stacked at their rows
  bool recompute = false;  // the gradient keeps the carries alone, and computes the rest again
};
// Calls `step` once, and runs what it built for each row of `stacked` [length, …]: with the carries
// of the step before (`initial` for the first), which keep their types, and one row of each stacked
// value. Gives the last carries and the stacked rows.
ScanResult scan(const ScanStep& step, const std::vector<Value>& initial,
                const std::vector<Value>& stacked, ScanOptions options = {},
                SourceLocation loc = SourceLocation::here());

}  // namespace sinter
