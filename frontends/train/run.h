#pragma once
// The training loop: batches, learning rate, metrics, evaluation and checkpoints.

#include <sinter/frontends/train/checkpoint.h>

#include <csignal>
#include <cstdio>

namespace sinter::train {

struct RunOptions {
  LearningRate rate;                                 // its `steps` is the length of the run
  std::string out;                                   // "": nothing is written
  std::string data;                                  // recorded in the checkpoint
  int64_t eval_every = 0, save_every = 0;            // 0: at the end alone
  int64_t stop_after = 0;                            // ends the run at this step; 0: at the last
  std::optional<TrainState> resumed;                 // of the checkpoint that was loaded
  std::FILE* progress = nullptr;                     // null: silent
  const volatile std::sig_atomic_t* stop = nullptr;  // ends the run after the step at hand
};

struct RunResult {
  bool stopped = false;
  int64_t steps = 0;       // done in all, before a resume too
  double seconds = 0;      // of training steps, evaluation excluded
  double val_loss = 0;     // not evaluated when stopped
  std::string checkpoint;  // the folder written last, or ""
};

// Trains from the trainer's current weights. Writes DIR/metrics.jsonl, one object a step (step,
// loss, lr, grad_norm, skipped, tokens_per_s, ms) and one {step, val_loss} where evaluated, and a
// checkpoint at the end, at every save_every steps, and when stopped. A resumed run writes what it
// would have written without the break.
RunResult run_training(GptTrainer& trainer, const data::ByteText& text, const RunOptions& options);

}  // namespace sinter::train
