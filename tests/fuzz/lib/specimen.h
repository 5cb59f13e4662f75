#pragma once
// A graph under comparison, with what its inputs are filled with: all that a failure has to say to
// be seen again by sinter-run.

#include <sinter/ir/graph.h>
#include <sinter/runtime/executable.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sinter::test {

// What an input holds: the fill rule of sinter-run's `fill:S` and `fill:S:M`, or, for the operands
// of random ops, what its flags --seed and --step give.
struct Filling {
  int64_t s = 0;
  int64_t modulus = 0;  // integers and bools
  bool from_flags = false;

  Tensor tensor(const std::string& name, const TensorType& type) const;
  // `--input NAME=fill:3`; "" for those from flags.
  std::string flag(const std::string& name) const;
};
inline constexpr int64_t kSeedFlag = 7, kStepFlag = 3;

struct Specimen {
  uint64_t seed = 0;
  std::unique_ptr<Module> module;  // one entry graph, @g
  std::map<std::string, Filling> fillings;

  Graph& graph() const { return *module->find("g"); }
  std::vector<Tensor> inputs() const;
  Bindings bindings() const;
  std::string flags() const;  // all of sinter-run's that fill the inputs
  Specimen clone() const;
};

}  // namespace sinter::test
