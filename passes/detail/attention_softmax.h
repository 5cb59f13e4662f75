#pragma once
// A softmax over the last axis, as people write it: the op, exp of log_softmax, or exponentials
// divided by their sum, before a product or after it. Nothing is built or changed here.

#include <sinter/ir/graph.h>

#include <optional>
#include <string>
#include <unordered_set>

namespace sinter::detail {

struct Softmax {
  Value scores;
  Value probabilities;          // the exponentials, where the sum divides what comes of them
  const Op* product = nullptr;  // with v, in that case
  double factor = 1;            // of the scores: powers of 2 are of ln 2 times them
  // Rows whose exponentials are all 0 give 0, and no maximum saves them from that: a mask of any
  // number far below 0 is one of -inf.
  bool clears_rows = false;
  std::unordered_set<const Op*> inside;
  std::string why;  // what makes it another function after all, or nothing
};

// The softmax that ends with `op`; nullopt where it is nothing of the kind.
std::optional<Softmax> softmax_ending(const Op& op);

}  // namespace sinter::detail
