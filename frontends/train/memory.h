#pragma once
// Which settings of a training run fit a device's memory.

#include <sinter/frontends/train/trainer.h>

namespace sinter::train {

// What a run takes by plan on a device of that target; no device is needed.
int64_t planned_bytes(const TrainConfig& config, const std::string& target);

struct Fit {
  TrainConfig config;
  int64_t bytes = 0;
};
// The first that takes at most `limit` bytes of: the config itself; with recompute by block; that
// with the batch in 2, 4, … parts; then with smaller batches. Null where not even one sequence
// fits.
std::optional<Fit> find_fit(const TrainConfig& config, const std::string& target, int64_t limit);

// "--batch 8 --accumulate 4 --recompute block": what makes `fit` of `asked`.
std::string flags_of(const TrainConfig& fit);

}  // namespace sinter::train
