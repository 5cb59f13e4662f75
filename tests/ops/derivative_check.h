#pragma once
// Gradients held against central differences, in f64: the checker of the derivatives' tests, and of
// the test that it sees what is wrong.

#include <sinter/tests/ops/trial.h>

#include <string>
#include <vector>

namespace sinter::test {

// How far a gradient may be from the difference, relative to the larger of 1 and its largest
// element.
inline constexpr double kFirstOrder = 1e-6, kSecondOrder = 1e-5;

// Whether the op refuses to be differentiated at all.
bool refuses(const OpDef& def);

struct FloatInputs {
  std::vector<Value> values;
  std::vector<size_t> at;  // places among the graph's inputs
};
// Those among the first `count` inputs.
FloatInputs float_inputs(const Graph& graph, size_t count);

// What the gradients of a scalar should be: central differences by its float inputs.
struct Slopes {
  std::vector<size_t> at;  // which inputs
  std::vector<ReferenceTensor> right;
  bool any() const { return !right.empty(); }
};
// By the float ones among the first `count` inputs of a graph whose one output is the scalar; none
// where the scalar is not finite (the maximum of nothing is -inf).
Slopes central_slopes(const Graph& graph, size_t count, const std::vector<ReferenceTensor>& inputs);

struct Mismatch {
  std::string input;
  size_t where = 0;
  double here = 0, expected = 0;
};
// Appends the gradients of `scalar` as outputs and gives those of them that are off. `largest`
// receives the largest absolute gradient of each input.
std::vector<Mismatch> mismatches(Graph& graph, Value scalar, const Slopes& slopes,
                                 const std::vector<ReferenceTensor>& inputs, double allowed,
                                 std::vector<double>* largest = nullptr);

// The trial's results, weighed, as the one output of its graph, with values for all inputs; null
// where no result is a float.
Value make_scalar(Trial& trial, std::vector<ReferenceTensor>& inputs, uint64_t seed);

}  // namespace sinter::test
