#pragma once
// What composite reductions over a set of axes share.

#include <sinter/ir/op_def.h>

namespace sinter::detail {

struct AxesAttrs {
  Axes axes;
  bool keep = false;
  static constexpr auto fields() {
    return std::tuple{field("axes", &AxesAttrs::axes, "the axes reduced; [] means all"),
                      field("keep", &AxesAttrs::keep, "reduced axes stay, with extent 1")};
  }
};

// Sorted; all of them when none is named; nullopt when they do not fit the rank.
std::optional<std::vector<int64_t>> axes_of(const std::vector<int64_t>& axes, int64_t rank);
// The refusal of axes that do not fit the first operand.
std::optional<Diagnostic> check_axes(const InferContext& c, const std::vector<int64_t>& axes);

}  // namespace sinter::detail
