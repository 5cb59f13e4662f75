#pragma once
// The reference: runs any graph op by op on the host, the oracle of every other executor.
//
// A graph runs in its own types, or, with `f64`, with every float type as f64: casts between floats
// are then identities and constants keep all their digits. Composite ops are expanded and called
// graphs inlined while the program is made, without recursion, so depth is no limit. An index out
// of range throws sinter::Error that names op, position, value, range and the user's line.
// Programs are immutable: any number of threads may run one.

#include <sinter/ir/op_def.h>
#include <sinter/runtime/tensor.h>

#include <memory>
#include <span>
#include <vector>

namespace sinter {

struct ReferenceOptions {
  bool f64 = false;
};

// One graph, ready to run; independent of the module it was made from.
class ReferenceProgram {
 public:
  explicit ReferenceProgram(const Graph& graph, ReferenceOptions options = {});
  ~ReferenceProgram();
  ReferenceProgram(ReferenceProgram&&) noexcept;
  ReferenceProgram& operator=(ReferenceProgram&&) noexcept;

  // Inputs and outputs in the graph's order; an input of another type is refused by name. With
  // f64, float inputs may be of their declared type or f64, and float outputs are f64.
  std::vector<Tensor> run(std::span<const Tensor> inputs) const;
  // The same on cells; the types of floats are not looked at with f64.
  std::vector<ReferenceTensor> run_cells(std::span<const ReferenceTensor> inputs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes programs and runs them at once.
class Reference {
 public:
  explicit Reference(ReferenceOptions options = {}) : options_(options) {}
  std::vector<Tensor> run(const Graph& graph, std::span<const Tensor> inputs) const {
    return ReferenceProgram(graph, options_).run(inputs);
  }
  std::vector<ReferenceTensor> run_cells(const Graph& graph,
                                         std::span<const ReferenceTensor> inputs) const {
    return ReferenceProgram(graph, options_).run_cells(inputs);
  }

 private:
  ReferenceOptions options_;
};

// Elements converted, rounded once, to `type`.
ReferenceTensor to_cells(const Tensor& tensor, DType type);
Tensor from_cells(const ReferenceTensor& cells);

// Replaces every op that has an expansion, and every call, by smaller ops until none is left.
void expand_all(Graph& graph);

}  // namespace sinter
