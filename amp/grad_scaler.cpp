// GradScaler: the state machine per optimizer, the checks of the gradients' tags, and the
// arithmetic of the scale.
#include "halfstep/amp/grad_scaler.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "halfstep/autograd/op_call.h"
#include "halfstep/autograd/ops.h"
#include "halfstep/core/warning.h"
#include "halfstep/optim/grad_sweep.h"

namespace halfstep::amp {
namespace {

using Outcome = StepResult::Outcome;

std::atomic<uint64_t> next_id{1};

// number: the scale.
void scale_backward(Node& node, Tensor dy, Tensor* dx) {
  dx[0] = dy.clone();
  dx[0].mul_(node.number);
}

constexpr std::string_view kName = "GradScaler";

void check_growth_factor(std::string_view op, double factor) {
  HS_CHECK(std::isfinite(factor) && factor > 1.0, ArgumentError, op, "growth_factor = ", factor,
           " given; it must be finite and > 1");
}

void check_backoff_factor(std::string_view op, double factor) {
  HS_CHECK(factor > 0.0 && factor < 1.0, ArgumentError, op, "backoff_factor = ", factor,
           " given; it must be between 0 and 1, both excluded");
}

void check_growth_interval(std::string_view op, int64_t interval) {
  HS_CHECK(interval >= 1 && interval <= int64_t{1} << 53, ArgumentError, op,
           "growth_interval = ", interval, " given; it must lie in [1, 2^53]");
}

/// The limits hold for the scale as float32.
void check_scale(std::string_view op, double scale, double min_scale, double max_scale) {
  HS_CHECK(
      min_scale >= 0x1p-126 && max_scale <= std::numeric_limits<float>::max(), ArgumentError, op,
      "min_scale = ", min_scale, ", max_scale = ", max_scale,
      " given; they must lie in [2^-126, largest float32], so that the scale and its reciprocal "
      "are finite");
  HS_CHECK(std::isfinite(scale) && static_cast<float>(scale) >= static_cast<float>(min_scale) &&
               static_cast<float>(scale) <= static_cast<float>(max_scale),
           ArgumentError, op, "scale = ", scale,
           " given; it must be finite and lie in [min_scale, max_scale] = [", min_scale, ", ",
           max_scale, "]");
}

bool has_gradient(const optim::Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.parameters(), [](const Parameter& parameter) {
    return parameter.value.grad().defined();
  });
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  constexpr std::string_view kNames[] = {"stepped", "skipped_non_finite", "nothing_to_do"};
  return kNames[static_cast<int>(outcome)];
}

GradScaler::GradScaler(Device device, const GradScalerOptions& options)
    : device_(device),
      options_(options),
      scale_(static_cast<float>(options.init_scale)),
      id_(next_id.fetch_add(1, std::memory_order_relaxed)) {
  check(kName, options);
  if (options.enabled) kernels(device);  // throws if the device is not there
}

void GradScaler::check(std::string_view op, const GradScalerOptions& options) {
  check_growth_factor(op, options.growth_factor);
  check_backoff_factor(op, options.backoff_factor);
  check_growth_interval(op, options.growth_interval);
  check_scale(op, options.init_scale, options.min_scale, options.max_scale);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!is_enabled()) return loss;
  HS_CHECK(loss.device() == device_, DeviceError, "scale", loss, " given to a scaler on ", device_,
           "; the scaler must be on the loss's device");
  const Tensor wide = to(loss, promote(loss.dtype(), DType::F32));
  const OpCall call(Op::scale, {&wide});
  Tensor y = wide.clone();
  y.mul_(static_cast<double>(scale_));
  if (Node* node = call.record(y, scale_backward)) {
    node->number = static_cast<double>(scale_);
    if (kGradTags) node->tag = {GradTag::Kind::kScaled, scale_, id_, epoch_};
  }
  return y;
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& losses) {
  std::vector<Tensor> scaled;
  for (const Tensor& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}

GradScaler::OptimizerState& GradScaler::state_of(const optim::Optimizer& optimizer) {
  for (OptimizerState& state : optimizers_) {
    if (state.optimizer_id == optimizer.id()) return state;
  }
  optimizers_.push_back({optimizer.id(), Stage::kReady, 0, 0, {}});
  return optimizers_.back();
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  OptimizerState& state = state_of(optimizer);
  HS_CHECK(state.stage != Stage::kUnscaled, OrderError, "unscale_", "the gradients of ",
           optimizer.name(), " (scale ", scale_,
           ") were already unscaled since the last update(); call step(optimizer) and update() "
           "before the next unscale_");
  HS_CHECK(state.stage != Stage::kStepped, OrderError, "unscale_", optimizer.name(), " (scale ",
           scale_,
           ") has already stepped since the last update(); unscale_ belongs before step, and "
           "update() after it");
  if (!has_gradient(optimizer)) return;
  check_tags("unscale_", optimizer, GradTag::Kind::kScaled);
  optim::unscale_grads(optimizer.parameters(),
                       static_cast<float>(1.0 / static_cast<double>(scale_)));
  state.step_count = optimizer.step_count();
  optim::for_each_grad(optimizer.parameters(), [&](size_t, const Parameter&, LeafState& leaf) {
    if (kGradTags) leaf.tag = {GradTag::Kind::kUnscaled, scale_, id_, epoch_};
    ++state.grad_count;
  });
  state.non_finite = {};
  state.stage = Stage::kUnscaled;
  note_non_finite(optimizer, state);
}

StepResult GradScaler::step(optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return {};
  }
  OptimizerState& state = state_of(optimizer);
  HS_CHECK(state.stage != Stage::kStepped, OrderError, "step", optimizer.name(), " (scale ", scale_,
           ") has already stepped since the last update(); call update() between steps");
  if (state.stage == Stage::kReady) {
    if (!has_gradient(optimizer)) return {Outcome::kNothingToDo, {}, -1, 0.0f};
    unscale_(optimizer);
  } else {
    size_t grad_count = 0;
    optim::for_each_grad(optimizer.parameters(),
                         [&](size_t, const Parameter&, const LeafState&) { ++grad_count; });
    HS_CHECK(grad_count >= state.grad_count, OrderError, "step", optimizer.name(), " (scale ",
             scale_, ") has ", grad_count, " gradients, and ", state.grad_count,
             " were unscaled; zero_grad() must not come between unscale_ and step");
    HS_CHECK(
        optimizer.step_count() == state.step_count, OrderError, "step", optimizer.name(),
        " (scale ", scale_,
        ") has stepped on these gradients already: optimizer.step() was called after unscale_; "
        "call scaler.step(optimizer) instead of it");
    check_tags("step", optimizer, GradTag::Kind::kUnscaled);
    optim::measure_grads(optimizer.parameters(), false);
    note_non_finite(optimizer, state);
  }
  if (state.non_finite.outcome != Outcome::kSkippedNonFinite) optimizer.step();
  state.stage = Stage::kStepped;
  return state.non_finite;
}

void GradScaler::update() {
  if (!is_enabled()) return;
  bool checked = false, found = false;
  for (const OptimizerState& state : optimizers_) {
    checked = checked || state.stage != Stage::kReady;
    found = found || state.non_finite.outcome == Outcome::kSkippedNonFinite;
  }
  HS_CHECK(checked, OrderError, "update", "no optimizer was unscaled or stepped at the scale ",
           scale_,
           " since the last update(); call step(optimizer) before update(), once per iteration");
  if (found) {
    const double lower = static_cast<double>(scale_) * options_.backoff_factor;
    const float floor = static_cast<float>(options_.min_scale);
    if (scale_ <= floor) {
      warn_once("GradScaler floor",
                cat("[update] a gradient is non-finite at the scale ", scale_,
                    ", the floor, which holds it from backing off; steps are skipped until the "
                    "gradients are finite; is the loss itself diverging, or min_scale too high?"));
    }
    scale_ = std::max(static_cast<float>(lower), floor);
    growth_tracker_ = 0;
    ++consecutive_skips_;
  } else {
    consecutive_skips_ = 0;
    if (++growth_tracker_ >= options_.growth_interval) {
      const float higher = static_cast<float>(static_cast<double>(scale_) * options_.growth_factor);
      if (higher <= static_cast<float>(options_.max_scale)) scale_ = higher;  // false for Inf too
      growth_tracker_ = 0;
    }
  }
  start_epoch();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  check_scale(kName, new_scale, options_.min_scale, options_.max_scale);
  scale_ = static_cast<float>(new_scale);
  start_epoch();
}

void GradScaler::abandon(const optim::Optimizer& optimizer) {
  std::erase_if(optimizers_,
                [&](const OptimizerState& state) { return state.optimizer_id == optimizer.id(); });
}

void GradScaler::start_epoch() {
  ++epoch_;
  optimizers_.clear();
}

bool GradScaler::at_floor() const {
  return is_enabled() && scale_ <= static_cast<float>(options_.min_scale);
}

void GradScaler::set_growth_factor(double factor) {
  check_growth_factor(kName, factor);
  options_.growth_factor = factor;
}

void GradScaler::set_backoff_factor(double factor) {
  check_backoff_factor(kName, factor);
  options_.backoff_factor = factor;
}

void GradScaler::set_growth_interval(int64_t interval) {
  check_growth_interval(kName, interval);
  options_.growth_interval = interval;
}

void GradScaler::set_scale_limits(double min_scale, double max_scale) {
  check_scale(kName, static_cast<double>(scale_), min_scale, max_scale);
  options_.min_scale = min_scale;
  options_.max_scale = max_scale;
}

}  // namespace halfstep::amp
