#pragma once
// An op of the registry on other shapes than those of its samples: which operand types and
// attributes it might take. Guesses; the op's own type rule decides.

#include <sinter/ir/op_def.h>
#include <sinter/tests/fuzz/lib/rng.h>

#include <memory>
#include <optional>
#include <vector>

namespace sinter::test {

struct Fitting {
  std::vector<std::optional<TensorType>> operands;  // nullopt: left out
  std::shared_ptr<void> attrs;
};

// Operand `anchor` gets the type `type`; what the sample holds equal stays equal, further extents
// come from `extents`. nullopt where it cannot be.
std::optional<Fitting> fit(Rng& rng, const OpDef& def, const Sample& sample, size_t anchor,
                           const TensorType& type, const std::vector<int64_t>& extents);
// The sample's own types, each extent replaced alike or, sometimes, kept.
Fitting fit(Rng& rng, const OpDef& def, const Sample& sample, const std::vector<int64_t>& extents);

}  // namespace sinter::test
