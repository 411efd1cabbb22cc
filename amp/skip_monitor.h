// SkipMonitor: when skipped steps, or clipped ones, are no longer a handful: the skip rate of the
// last steps, and for how long it has been too high.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "halfstep/amp/train_state.h"
#include "halfstep/core/state_dict.h"

namespace halfstep::amp {

struct SkipMonitorOptions {
  double max_skip_rate = 0.05;       ///< the rate must exceed it ...
  int64_t alert_after = 100;         ///< ... for so many steps in a row to raise the alarm
  int64_t most_skips_in_a_row = 10;  ///< more of them are warned of, once
};

/// Skips at the start of a run by which the loss scale falls from its initial value, before the
/// first step that is taken, are calibration: they count neither as skips nor as steps. There are
/// at most kMostCalibration of them; then something else is wrong.
class SkipMonitor {
 public:
  static constexpr int64_t kWindow = 1000;          ///< steps that the skip rate looks back on
  static constexpr int64_t kMostCalibration = 128;  ///< by halving, all of float32 takes 127
  static constexpr int64_t kClipWindow = 100;       ///< steps in which clipping is counted
  static constexpr int64_t kMostClipped = 95;       ///< more of those are warned of, once

  /// ArgumentError unless 0 <= max_skip_rate <= 1 and the counts are at least 1.
  explicit SkipMonitor(const SkipMonitorOptions& options = {});

  /// Takes note of a step; `scale_after` is the loss scale that the next one will use. Warns (see
  /// set_warning_handler) of many skips in a row, and of clipping at nearly every step.
  void add(const StepOrSkipLog& log, double scale_after);

  /// Skips in the last min(steps, kWindow) steps, divided by that number of steps; 0 before any.
  double rate() const;
  /// min(steps, kWindow).
  int64_t window() const;
  /// Whether the rate has exceeded max_skip_rate for alert_after steps in a row.
  bool alarm() const { return steps_above_ >= options_.alert_after; }
  /// One line: rate, window, threshold, and the reasons of the last skips.
  std::string describe() const;

  int64_t calibration_skips() const { return calibration_skips_; }
  int64_t skips_in_a_row() const { return skips_in_a_row_; }
  const SkipMonitorOptions& options() const { return options_; }

  /// All but the options.
  StateDict state_dict() const;
  TakeOver prepare_load(const StateDict& state);

 private:
  // What is remembered of a step: a bit that it was clipped, or why it was skipped.
  enum Outcome : uint8_t { kTaken, kClipped, kLossSkip, kGradSkip };

  Outcome recent(int64_t steps_ago) const;
  int64_t count(int64_t steps, Outcome first, Outcome last) const;
  void push(Outcome outcome);

  SkipMonitorOptions options_;
  std::array<Outcome, kWindow> outcomes_{};  // of step s at s % kWindow
  int64_t steps_ = 0;                        // without calibration
  int64_t skips_in_window_ = 0;
  int64_t steps_above_ = 0;  // in a row, with a rate above the limit
  int64_t skips_in_a_row_ = 0;
  int64_t calibration_skips_ = 0;
  bool calibrating_ = true;
};

}  // namespace halfstep::amp
