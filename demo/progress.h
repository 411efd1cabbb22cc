// A line on standard error, if that is a terminal, that tells how far a run is.
#pragma once

#include <chrono>

#include "halfstep/amp/train_state.h"

namespace halfstep::demo {

class Session;

class Progress {
 public:
  /// Warnings are printed in the place of the line from now on.
  explicit Progress(int64_t total_steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows the line anew, a few times a second: step, percent, steps/s, time left, loss, scale,
  /// skips; so much of it as the terminal is wide.
  void show(const Session& session, const amp::StepOrSkipLog& log);
  /// Makes room for other lines.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  int64_t total_steps_;
  bool is_terminal_;
  bool is_shown_ = false;
  int64_t steps_ = 0;  // in this process
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace halfstep::demo
