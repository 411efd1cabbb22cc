// Counts: what has happened, in a whole run or in one epoch.
#pragma once

#include <cstdint>

#include "halfstep/amp/train_state.h"
#include "halfstep/core/state_dict.h"

namespace halfstep::demo {

struct Counts {
  int64_t steps = 0;
  int64_t skips = 0;
  int64_t injected_skips = 0;
  int64_t clipped = 0;
  double loss_sum = 0.0;  // over steps taken
  double norm_sum = 0.0;  // before clipping, over steps taken
  double last_loss = 0.0;

  int64_t taken() const { return steps - skips; }
  void add(const amp::StepOrSkipLog& log, bool injected);

  StateDict state_dict() const;
  TakeOver prepare_load(const StateDict& state);
};

}  // namespace halfstep::demo
