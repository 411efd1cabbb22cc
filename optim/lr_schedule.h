// LrSchedule: the learning rate as a function of the steps taken: linear warm-up, then constant,
// linear or cosine decay.
#pragma once

#include <string_view>

#include "halfstep/core/state_dict.h"
#include "halfstep/optim/optimizer.h"

namespace halfstep::optim {

enum class LrDecay : uint8_t { kConstant, kLinear, kCosine };
/// "constant", "linear" or "cosine".
std::string_view name_of(LrDecay decay);

struct LrScheduleOptions {
  double lr = 1e-3;  ///< after the warm-up
  LrDecay decay = LrDecay::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< warm-up included; not needed for a constant rate
  double min_lr = 0.0;      ///< where a decay ends, and stays
};

/// Step s has lr (s + 1) / warmup_steps during the warm-up; later, with f = (s - warmup_steps) /
/// (total_steps - warmup_steps), min_lr + (lr - min_lr) (1 - f) if linear and
/// min_lr + (lr - min_lr) (1 + cos(pi f)) / 2 if cosine: PyTorch's LinearLR, then LinearLR or
/// CosineAnnealingLR.
class LrSchedule {
 public:
  /// Sets the rate of the first step in all groups of `optimizer`, which must outlive it.
  /// ArgumentError unless 0 <= min_lr <= lr, warmup_steps >= 0, and, with a decay,
  /// total_steps > warmup_steps; or if the optimizer refuses lr.
  LrSchedule(Optimizer& optimizer, const LrScheduleOptions& options);

  /// The rate of step s >= 0.
  double lr_at(int64_t s) const;
  /// Goes on to the next step and sets its rate.
  void step();
  /// Sets the rate of the present step (again), for the time after a load.
  void apply();
  int64_t step_count() const { return step_; }
  const LrScheduleOptions& options() const { return options_; }

  /// The number of steps. The options stay the constructor's, so that a run can be made longer.
  StateDict state_dict() const;
  TakeOver prepare_load(const StateDict& state);

 private:
  Optimizer& optimizer_;
  LrScheduleOptions options_;
  int64_t step_ = 0;
};

}  // namespace halfstep::optim
