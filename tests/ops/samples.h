#pragma once
// What tests draw from the registry: every op, and its samples as attributes and sub-graphs.

#include <sinter/ir/op_def.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sinter::test {

// Every op of the registry, and the derivatives that pointwise ops have.
std::vector<const OpDef*> all_ops();
// The sample's attributes as the op's struct.
std::shared_ptr<void> trial_attrs(const OpDef& def, const Sample& sample);
// A graph to call: each input's square, or its negation for bools.
Graph& add_callee(Module& module, std::span<const TensorType> inputs, const std::string& name);
// A number in [0, 1) from a counter.
double uniform(uint64_t seed, uint64_t index);

}  // namespace sinter::test
