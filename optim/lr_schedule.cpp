// LrSchedule: checks, the formula, and saving.
#include "halfstep/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace halfstep::optim {

std::string_view name_of(LrDecay decay) {
  constexpr std::string_view kNames[] = {"constant", "linear", "cosine"};
  return kNames[static_cast<int>(decay)];
}

LrSchedule::LrSchedule(Optimizer& optimizer, const LrScheduleOptions& options)
    : optimizer_(optimizer), options_(options) {
  const LrScheduleOptions& o = options_;
  HS_CHECK(o.min_lr >= 0.0 && o.min_lr <= o.lr, ArgumentError, "LrSchedule", "lr = ", o.lr,
           " and min_lr = ", o.min_lr, " given; it must be 0 <= min_lr <= lr");
  HS_CHECK(o.warmup_steps >= 0, ArgumentError, "LrSchedule", "warmup_steps = ", o.warmup_steps,
           " given; it must not be negative");
  HS_CHECK(o.decay == LrDecay::kConstant || o.total_steps > o.warmup_steps, ArgumentError,
           "LrSchedule", "total_steps = ", o.total_steps, " and warmup_steps = ", o.warmup_steps,
           " given; a decay needs steps after the warm-up");
  optimizer.set_lr(o.lr);  // if the largest is accepted, so is every other
  apply();
}

double LrSchedule::lr_at(int64_t s) const {
  const LrScheduleOptions& o = options_;
  if (s < o.warmup_steps) {
    return o.lr * static_cast<double>(s + 1) / static_cast<double>(o.warmup_steps);
  }
  if (o.decay == LrDecay::kConstant) return o.lr;
  const double fraction = std::min(1.0, static_cast<double>(s - o.warmup_steps) /
                                            static_cast<double>(o.total_steps - o.warmup_steps));
  if (fraction == 1.0) return o.min_lr;
  const double left = o.decay == LrDecay::kLinear
                          ? 1.0 - fraction
                          : 0.5 * (1.0 + std::cos(std::numbers::pi * fraction));
  return o.min_lr + (o.lr - o.min_lr) * left;
}

void LrSchedule::apply() {
  const double lr = lr_at(step_);
  for (size_t group = 0; group < optimizer_.group_count(); ++group) optimizer_.set_lr(group, lr);
}

void LrSchedule::step() {
  ++step_;
  apply();
}

StateDict LrSchedule::state_dict() const {
  return {.tensors = {}, .numbers = {{"step", static_cast<double>(step_)}}};
}

TakeOver LrSchedule::prepare_load(const StateDict& state) {
  StateReader reader("LrSchedule.load", state);
  const int64_t step = reader.whole_number("step", 0.0);
  reader.finish();
  return [this, step] { step_ = step; };
}

}  // namespace halfstep::optim
