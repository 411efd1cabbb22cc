// GradScaler: saving and loading with PyTorch's keys.
#include "halfstep/amp/grad_scaler.h"

namespace halfstep::amp {

StateDict GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  return {{},
          {{"scale", static_cast<double>(scale_)},
           {"growth_factor", options_.growth_factor},
           {"backoff_factor", options_.backoff_factor},
           {"growth_interval", static_cast<double>(options_.growth_interval)},
           {"_growth_tracker", static_cast<double>(growth_tracker_)}}};
}

TakeOver GradScaler::prepare_load(const StateDict& state) {
  if (!is_enabled()) return [] {};
  StateReader reader("GradScaler.load_state_dict", state);
  HS_CHECK(!state.numbers.empty() || !state.tensors.empty(), ArgumentError, reader.op(),
           "an empty state was given; was it saved from a disabled scaler?");
  GradScalerOptions options = options_;
  options.init_scale = reader.number("scale");
  options.growth_factor = reader.number("growth_factor");
  options.backoff_factor = reader.number("backoff_factor");
  options.growth_interval = reader.whole_number("growth_interval", 1.0);
  const int64_t tracker = reader.whole_number("_growth_tracker", 0.0);
  reader.finish();
  check(reader.op(), options);
  return [this, options, tracker] {
    scale_ = static_cast<float>(options.init_scale);
    growth_tracker_ = tracker;
    const double init_scale = options_.init_scale;
    options_ = options;
    options_.init_scale = init_scale;
    consecutive_skips_ = 0;
    start_epoch();
  };
}

}  // namespace halfstep::amp
