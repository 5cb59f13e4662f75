#pragma once
// What a run must remember besides its tensors, and its text form, state.json.

#include <sinter/frontends/train/trainer.h>

#include <map>

namespace sinter::train {

struct TrainState {
  TrainConfig config;
  LearningRate rate;
  int64_t step = 0;     // steps done; batches are drawn from it, so it is the data's position too
  int64_t updates = 0;  // of them applied: AdamW's count
  int64_t skipped = 0;  // of them not applied, as a gradient was not finite
  std::string data;     // the path given, "" for sinter's own sources
  std::string data_checksum;  // of the text read from it
  double loss_scale = 1;
  TuningRecord tuning;
  int64_t started = 0;  // when the run began, in ns since 1970: tells runs in one folder apart
  // By file and tensor; filled when the checkpoint is written.
  std::map<std::string, std::map<std::string, std::string>> checksums;
};

// The text closes with a checksum of all that is before it.
std::string to_json(const TrainState& state);
// Throws Error that says what is wrong.
TrainState parse_train_state(const std::string& text);

// Where a run may not go on as `asked`: each line "NAME: it has A, B is asked for". Shape, seed and
// batch must agree; rates, dropout, decay, clipping, accumulation and recompute may change.
std::vector<std::string> differences(const TrainConfig& saved, const TrainConfig& asked);

}  // namespace sinter::train
