#pragma once
// What the pass layout decides: which ops move no bytes.
//
// Every value is dense and row-major, with two exceptions that move no bytes either:
// - A slice, reshape or permute that only kernel templates read (passes/native.h), where those take
//   strides: the value is a part of its operand's storage.
// - What a kernel template writes, where its result is only permuted, reshaped or concatenated
//   before anybody else reads it: the result is a part of the storage of what that gives.
// A reshape of a dense value is its operand's storage under another shape.

#include <sinter/ir/graph.h>

#include <optional>
#include <unordered_map>
#include <vector>

namespace sinter {

// Where a value lies in another one's storage, in elements.
struct StridedView {
  Value root;  // has storage of its own, dense
  int64_t offset = 0;
  std::vector<int64_t> strides;  // one for each axis of the value's shape
};

// The views of one graph; valid until it changes. None where layout was switched off (graph
// attribute `layout = "dense"`).
class Views {
 public:
  explicit Views(const Graph& graph);
  // Null for a value with storage of its own.
  const StridedView* find(Value v) const;
  // Whether the op moves no bytes: its result is a view of its operand, or its operands are views
  // of its result.
  bool is_free(const Op& op) const { return free_.contains(&op); }
  // Whether it is one for the sake of a kernel template, and not a reshape of a dense value.
  bool is_strided(const Op& op) const;

 private:
  struct Chain;
  void find_results(const Graph& graph);
  void find_operands(const Graph& graph);
  void find_reshapes(const Graph& graph);
  bool read_by_templates(Value v) const;
  std::optional<StridedView> view_by(const Op& op) const;
  StridedView of(Value v) const;

  ValueMap<StridedView> views_;
  std::unordered_map<const Op*, bool> free_;  // true: strided
};

// Whether the op's result is its operand's storage, where that is dense, or a part of it: a
// reshape, or a slice of neighbouring elements that starts where kernels of the target can read
// vectors. False where layout was switched off.
bool is_free_view(const Op& op);
// The same whether layout is on or not: where it is off, the executor copies.
bool is_dense_view(const Op& op);
// Where in the operand's storage a free view begins, in bytes.
int64_t view_offset(const Op& op);

// The strides of `to`, which has as many elements, on the same storage as `from` with `strides`;
// nullopt where no strides say it.
std::optional<std::vector<int64_t>> reshape_strides(const Shape& from,
                                                    const std::vector<int64_t>& strides,
                                                    const Shape& to);
std::vector<int64_t> dense_strides(const Shape& shape);

}  // namespace sinter
