#pragma once
// A checkpoint: the folder DIR/step-N with model.safetensors, optimizer.safetensors and state.json,
// renamed into place as one folder, so that a reader finds all of it or nothing.

#include <sinter/frontends/train/trainer.h>

namespace sinter::train {

// What state.json holds besides the tensors.
struct TrainState {
  TrainConfig config;
  int64_t step = 0;  // steps done
  std::string data;  // the path given, "" for sinter's own sources
};

// Returns the folder. A checkpoint of the same step is replaced.
std::string save_checkpoint(const std::string& dir, const GptTrainer& trainer,
                            const TrainState& state);

// The folder of the highest step below DIR; refuses a DIR that has none.
std::string latest_checkpoint(const std::string& dir);
// Refuses an incomplete folder and a malformed state.json, naming what is missing.
TrainState read_train_state(const std::string& folder);
// The model's weights, and with `optimizer` its state too. Refuses tensors that are missing, of
// another type or unknown, before anything is set.
void load_checkpoint(const std::string& folder, GptTrainer& trainer, bool optimizer);

}  // namespace sinter::train
