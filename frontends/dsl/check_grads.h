#pragma once
// A check of gradients: both modes of differentiation against central differences, in f64 on the
// reference.
//
//   GradCheckReport report = check_grads(graph, {{"q", q}, {"k", k}});
//   if (!report.ok()) throw Error(report.str());
//
// Every float of the graph is taken as f64, whatever its type, so that a rule can be told from
// rounding. Values should be away from kinks (0 of relu, ties of max) by more than the step. The
// report names the elements that are off; and each op whose own derivative, at the values that it
// has in this graph, is off, with the user's line.

#include <sinter/ir/graph.h>
#include <sinter/runtime/executable.h>

#include <string>
#include <vector>

namespace sinter {

struct GradCheckOptions {
  std::vector<std::string> wrt;  // inputs; empty: every float input
  bool reverse = true;           // gradients of the outputs, weighted at random, by each element
  bool forward = true;           // tangents of the outputs, along a random direction of each input
  bool second_order = false;     // both again for the graph of those gradients
  double tolerance = 1e-6;       // of the relative error
  double step = 0;               // of the differences, times max(1, |x|); 0: 6e-6
  int64_t max_elements = 200;    // of one input, spread over it; its others are left out
  uint64_t seed = 1;             // of weights, directions, and float inputs that are not given
};

struct GradCheckFailure {
  std::string what;              // "reverse", "second order, forward", …
  std::string op;                // "" for the graph as a whole
  SourceLocation loc;            // of the op
  std::string value;             // the input that is differentiated by, or the output that is moved
  std::vector<int64_t> element;  // of that value
  double given = 0, expected = 0;  // by the rules, by differences
  double error = 0;                // relative
  // "attention.cpp:12: error: matmul: reverse: the gradient by b[0,2] is …"
  std::string str() const;
};

struct GradCheckReport {
  int64_t checked = 0;       // elements
  double largest_error = 0;  // relative; of a value below a hundredth of the largest
                             // of its tensor: relative to that hundredth
  double tolerance = 0;
  std::vector<GradCheckFailure> failures;  // of the graph: the worst element of each value
  std::vector<GradCheckFailure> ops;       // the ops that are off on their own

  bool ok() const { return failures.empty(); }
  std::string str() const;  // a summary, then a line for each failure
};

// `inputs` by name, floats as f64 or as their type; float inputs that are not given are drawn from
// ±1. Throws Error where the graph cannot be differentiated or an input is wrong.
GradCheckReport check_grads(const Graph& graph, const Bindings& inputs = {},
                            const GradCheckOptions& options = {});

}  // namespace sinter
