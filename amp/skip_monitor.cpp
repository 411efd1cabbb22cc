// SkipMonitor: a ring of outcomes and running counts.
#include "halfstep/amp/skip_monitor.h"

#include <algorithm>
#include <vector>

#include "halfstep/core/warning.h"

namespace halfstep::amp {

SkipMonitor::SkipMonitor(const SkipMonitorOptions& options) : options_(options) {
  HS_CHECK(options.max_skip_rate >= 0.0 && options.max_skip_rate <= 1.0, ArgumentError,
           "SkipMonitor", "max_skip_rate = ", options.max_skip_rate,
           " given; it must lie in [0, 1]");
  HS_CHECK(options.alert_after >= 1 && options.most_skips_in_a_row >= 1, ArgumentError,
           "SkipMonitor", "alert_after = ", options.alert_after,
           " and most_skips_in_a_row = ", options.most_skips_in_a_row,
           " given; both must be at least 1");
}

void SkipMonitor::add(const StepOrSkipLog& log, double scale_after) {
  if (const auto* step = std::get_if<StepLog>(&log)) {
    calibrating_ = false;
    skips_in_a_row_ = 0;
    push(step->grad_l2_post_clip < step->grad_l2_pre_clip ? kClipped : kTaken);
  } else {
    const SkipLog& skip = std::get<SkipLog>(log);
    const bool fell = scale_after < skip.scaler_scale;
    calibrating_ = calibrating_ && calibration_skips_ < kMostCalibration;
    if (calibrating_ && fell && skip.reason == SkipReason::kNonFiniteGrad) {
      ++calibration_skips_;
      return;
    }
    ++skips_in_a_row_;
    push(skip.reason == SkipReason::kNonFiniteLoss ? kLossSkip : kGradSkip);
  }

  if (skips_in_a_row_ > options_.most_skips_in_a_row) {
    warn_once("SkipMonitor skips in a row",
              cat("[SkipMonitor] ", skips_in_a_row_,
                  " steps in a row were skipped; the model does not learn while that goes on"));
  }
  if (steps_ >= kClipWindow && count(kClipWindow, kClipped, kClipped) > kMostClipped) {
    warn_once(
        "SkipMonitor clipping",
        cat("[SkipMonitor] clipping at every step: more than ", kMostClipped, " of the last ",
            kClipWindow, " steps were clipped; the clip threshold has become the learning rate"));
  }
}

void SkipMonitor::push(Outcome outcome) {
  Outcome& slot = outcomes_[static_cast<size_t>(steps_ % kWindow)];
  if (steps_ >= kWindow && slot >= kLossSkip) --skips_in_window_;
  slot = outcome;
  if (outcome >= kLossSkip) ++skips_in_window_;
  ++steps_;
  steps_above_ = rate() > options_.max_skip_rate ? steps_above_ + 1 : 0;
}

int64_t SkipMonitor::window() const { return std::min(steps_, kWindow); }

double SkipMonitor::rate() const {
  if (steps_ == 0) return 0.0;
  return static_cast<double>(skips_in_window_) / static_cast<double>(window());
}

SkipMonitor::Outcome SkipMonitor::recent(int64_t steps_ago) const {
  return outcomes_[static_cast<size_t>((steps_ - 1 - steps_ago) % kWindow)];
}

int64_t SkipMonitor::count(int64_t steps, Outcome first, Outcome last) const {
  int64_t found = 0;
  for (int64_t ago = 0; ago < std::min(steps, window()); ++ago) {
    found += recent(ago) >= first && recent(ago) <= last ? 1 : 0;
  }
  return found;
}

std::string SkipMonitor::describe() const {
  return cat("skip rate ", rate(), " over the last ", window(), " steps, above ",
             options_.max_skip_rate, " for ", steps_above_, " steps in a row; skipped for ",
             count(kWindow, kGradSkip, kGradSkip), " non_finite_grad and ",
             count(kWindow, kLossSkip, kLossSkip), " non_finite_loss");
}

StateDict SkipMonitor::state_dict() const {
  std::vector<float> outcomes(outcomes_.begin(), outcomes_.end());
  return {.tensors = {{"outcomes", Tensor::from(outcomes, {kWindow})}},
          .numbers = {{"steps", static_cast<double>(steps_)},
                      {"steps_above", static_cast<double>(steps_above_)},
                      {"skips_in_a_row", static_cast<double>(skips_in_a_row_)},
                      {"calibration_skips", static_cast<double>(calibration_skips_)},
                      {"calibrating", calibrating_ ? 1.0 : 0.0}}};
}

TakeOver SkipMonitor::prepare_load(const StateDict& state) {
  StateReader reader("SkipMonitor.load", state);
  SkipMonitor loaded(options_);
  loaded.steps_ = reader.whole_number("steps", 0.0);
  const std::vector<float> outcomes =
      reader.tensor("outcomes", Tensor::zeros({kWindow})).to_vector<float>();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const float value = outcomes[i];
    HS_CHECK(value == 0.0f || value == 1.0f || value == 2.0f || value == 3.0f, ArgumentError,
             reader.op(), reader.full("outcomes"), " has ", value, " at ", i,
             "; it must be 0, 1, 2 or 3");
    HS_CHECK(value == 0.0f || static_cast<int64_t>(i) < loaded.steps_, ArgumentError, reader.op(),
             reader.full("outcomes"), " has ", value, " at ", i,
             "; it must be 0 behind the last of ", loaded.steps_, " steps");
    loaded.outcomes_[i] = static_cast<Outcome>(value);
    loaded.skips_in_window_ += value >= 2.0f ? 1 : 0;
  }
  const auto count_of_steps = [&](const char* key) {
    const int64_t value = reader.whole_number(key, 0.0);
    HS_CHECK(value <= loaded.steps_, ArgumentError, reader.op(), reader.full(key), " = ", value,
             " given; there were ", loaded.steps_, " steps");
    return value;
  };
  loaded.steps_above_ = count_of_steps("steps_above");
  loaded.skips_in_a_row_ = count_of_steps("skips_in_a_row");
  loaded.calibration_skips_ = reader.whole_number("calibration_skips", 0.0);
  loaded.calibrating_ = reader.flag("calibrating");
  reader.finish();
  return [this, loaded] { *this = loaded; };
}

}  // namespace halfstep::amp
