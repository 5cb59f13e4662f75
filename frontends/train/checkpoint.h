#pragma once
// A checkpoint: the folder DIR/step-N with model.safetensors, optimizer.safetensors and state.json.
//
// It is written aside, in DIR/.step-N.PID, flushed, files and folders, and put into place by one
// rename: a reader finds all of it or nothing, whenever the writer is killed. state.json holds a
// checksum of each tensor, and of itself. What killed writers leave is removed by the next one.

#include <sinter/frontends/train/state.h>

namespace sinter::train {

// Returns the folder. A checkpoint of the same step is replaced, by an exchange of the two. The
// state's counts of updates and checksums are the trainer's. Throws Error, and leaves what was
// there, where it cannot be written.
std::string save_checkpoint(const std::string& dir, const GptTrainer& trainer, TrainState state);

// Removes what processes that are no more left unfinished in DIR.
void remove_leftovers(const std::string& dir);

// The checkpoint below DIR of the run begun last, at its highest step; refuses a DIR that has none.
std::string latest_checkpoint(const std::string& dir);
// Refuses an incomplete folder and a malformed state.json, naming what is missing.
TrainState read_train_state(const std::string& folder);
// The model's weights, and with `optimizer` its state too. Refuses tensors that are missing, of
// another type, unknown, or not those of the state's checksums, before anything is set.
void load_checkpoint(const std::string& folder, const TrainState& state, GptTrainer& trainer,
                     bool optimizer);

// The model's weights from a safetensors file, by name; refuses what is missing, of another type,
// or no weight of the model, before anything is set.
void load_weights(const std::string& path, GptTrainer& trainer);

}  // namespace sinter::train
