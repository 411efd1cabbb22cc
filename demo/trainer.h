// Trainer: the pieces of a run around AmpTrainState: optimizer, scaler, injected faults, the CSV
// log and the counts for the summary. Serves step 1 of a training step.
#pragma once

#include <optional>

#include "halfstep/amp/csv_log.h"
#include "halfstep/amp/train_state.h"
#include "halfstep/demo/injection.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/tasks.h"
#include "halfstep/nn/layers.h"
#include "halfstep/optim/adamw.h"

namespace halfstep::demo {

/// Linear(features, hidden), GELU, Linear(hidden, outputs).
nn::Sequential make_model(int64_t features, int64_t hidden, int64_t outputs, Generator& generator);

/// What has happened, in a whole run or in one epoch.
struct Counts {
  int64_t steps = 0;
  int64_t skips = 0;
  int64_t injected_skips = 0;
  int64_t clipped = 0;
  double loss_sum = 0.0;  // over steps taken
  double norm_sum = 0.0;  // before clipping, over steps taken
  double last_loss = 0.0;

  int64_t taken() const { return steps - skips; }
  void add(const amp::StepOrSkipLog& log, double max_norm, bool injected);
};

class Trainer {
 public:
  /// Opens the CSV file, if one is asked for. `model` and `options` must outlive the trainer.
  Trainer(nn::Module& model, const DemoOptions& options);

  /// One step on one batch; its row is in the CSV file on return.
  amp::StepOrSkipLog step(const Batch& batch);

  const Counts& run() const { return run_; }
  const Counts& epoch() const { return epoch_; }
  void start_epoch() { epoch_ = {}; }
  double scale() const { return scaler_.get_scale(); }

 private:
  const DemoOptions& options_;
  Injector injector_;
  optim::AdamW optimizer_;
  amp::GradScaler scaler_;
  amp::AmpTrainState state_;
  std::optional<amp::CsvLog> csv_;
  Counts run_;
  Counts epoch_;
};

}  // namespace halfstep::demo
