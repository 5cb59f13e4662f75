#pragma once
// Tangents held against central differences along a direction, in f64: the checker of forward
// mode's tests, and of the test that it sees what is wrong.

#include <sinter/tests/ops/trial.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sinter::test {

using Cells = std::vector<ReferenceTensor>;

inline double cell(const ReferenceTensor& t, size_t k) {
  return t.data[k].f;
}

// How far a tangent may be from the difference, relative to the larger of 1 and the largest one.
inline constexpr double kAlong = 1e-6;

// A trial whose op has float operands and results, ready for differentiation.
struct Setting {
  Setting(Trial& trial, uint64_t seed);
  bool empty() const { return wrt.empty() || of.empty(); }
  // Inputs of the types of `like`, with values in [-1, 1].
  std::vector<Value> directions(const std::string& prefix, const std::vector<Value>& like,
                                uint64_t seed);
  Cells run() const { return ReferenceProgram(graph, {.f64 = true}).run_cells(x); }

  Graph& graph;
  std::vector<Value> wrt, of;
  std::vector<size_t> at;  // places of wrt among the inputs
  Cells x;                 // values of the inputs
  std::unique_ptr<ReferenceProgram> primal;
};

// How many elements were held against differences, and how many of them had none to trust: at a
// kink, a pole or outside the domain.
struct Counts {
  size_t held = 0, passed_over = 0;
};

// An element that is not what the difference says.
struct Off {
  size_t output = 0, where = 0;
  double here = 0, expected = 0;
};
// Elements of `given` against central differences of the program's outputs along `direction`, where
// those of two step sizes agree. `inside`: the inputs are in the op's domain.
std::vector<Off> differences_off(const ReferenceProgram& program, const Setting& s, size_t inputs,
                                 const Cells& direction, std::span<const ReferenceTensor> given,
                                 double allowed, bool inside, Counts& counts);

}  // namespace sinter::test
