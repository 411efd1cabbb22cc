// Session: everything of a run that has a state: data, model, optimizer, scaler, schedule, monitor
// and counts. Serves step 1 of a training step, and checkpoints.
#pragma once

#include <limits>
#include <memory>

#include "halfstep/amp/skip_monitor.h"
#include "halfstep/amp/train_state.h"
#include "halfstep/demo/counts.h"
#include "halfstep/demo/injection.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/tasks.h"
#include "halfstep/nn/layers.h"

namespace halfstep::demo {

class Session {
 public:
  /// Reads the data. FileError or UsageError if options and data do not fit. `options` must outlive
  /// the session.
  explicit Session(const DemoOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// One step on the next batch.
  amp::StepOrSkipLog step();

  int64_t next_step() const { return run_.steps; }
  /// Of the whole run.
  int64_t total_steps() const { return total_steps_; }
  /// 0 if the run has no epochs.
  int64_t steps_per_epoch() const { return task_->steps_per_epoch(); }
  bool is_finished() const { return next_step() >= total_steps_; }

  /// After the last step of an epoch: tests the model, and starts new counts.
  void end_epoch();
  /// The test score at the end of the last epoch; NaN before.
  double score() const { return score_; }

  const DemoOptions& options() const { return options_; }
  const Task& task() const { return *task_; }
  nn::Module& model() { return model_; }
  const Counts& run() const { return run_; }
  const Counts& epoch() const { return epoch_; }  ///< the present one's
  const Counts& last_epoch() const { return last_epoch_; }
  const Counts& worst_epoch() const { return worst_epoch_; }  ///< the one with the most skips
  int64_t worst_epoch_number() const { return worst_epoch_number_; }
  const amp::SkipMonitor& monitor() const { return monitor_; }
  double lr() const { return optimizer_->lr(); }
  double scale() const { return scaler_.get_scale(); }
  /// The first injection whose expectation a step did not meet, and that step; null if there is
  /// none.
  const Injection* unmet() const { return unmet_; }
  int64_t unmet_step() const { return unmet_step_; }

  /// The loss of the next batch, multiplied by the scale, with its graph. Takes no step.
  Tensor scaled_loss();

  /// All of it: train.*, task.*, monitor.*, run.*, epoch.* ...
  StateDict state_dict() const;
  TakeOver prepare_load(const StateDict& state);

 private:
  amp::StepOrSkipLog step_without_belts(const Batch& batch);

  const DemoOptions& options_;
  Generator generator_;
  std::unique_ptr<Task> task_;
  nn::Sequential model_;
  int64_t total_steps_;
  Injector injector_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  amp::GradScaler scaler_;
  optim::LrSchedule schedule_;
  amp::AmpTrainState state_;
  amp::SkipMonitor monitor_;
  Counts run_, epoch_, last_epoch_, worst_epoch_;
  int64_t worst_epoch_number_ = 0;
  double score_ = std::numeric_limits<double>::quiet_NaN();
  const Injection* unmet_ = nullptr;  // of injector_
  int64_t unmet_step_ = 0;
};

}  // namespace halfstep::demo
