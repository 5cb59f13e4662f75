#pragma once
// How a graph asks to be a part of a training step: the contract between accumulate() and the pass
// `accumulate`.
//
// Attributes of a graph @NAME:
//
//   loss = "l", wrt = ["w"]       what autodiff differentiates: a loss summed over a part of a
//   batch accumulate = ["l", "count"]   outputs that are summed over the parts, as the gradients
//   are
//
// The pass runs after autodiff. It makes of @NAME two entry graphs, which the host runs one after
// another: @NAME_first, for the first part, and @NAME for each other one. Of each output OUT that
// is listed, and of each grad_PARAMETER, both write the state `accumulated.OUT`: the first one its
// own value, the other one the sum of the state and its own. They have no such outputs then.
// Gradients are summed in f32, or wider.
//
// An update that reads these states is asked for by `gradients = "accumulated"`; see optimizer.h.

#include <string>
#include <string_view>

namespace sinter {

inline constexpr std::string_view kAccumulatedPrefix = "accumulated.";

inline std::string accumulated_state(std::string_view output) {
  return std::string(kAccumulatedPrefix) + std::string(output);
}

}  // namespace sinter
