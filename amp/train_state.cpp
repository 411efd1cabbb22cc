// AmpTrainState: the safe step, line by line in its order.
#include "halfstep/amp/train_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "halfstep/amp/autocast.h"
#include "halfstep/autograd/ops.h"
#include "halfstep/optim/clip.h"

namespace halfstep::amp {

std::string_view name_of(SkipReason reason) {
  return reason == SkipReason::kNonFiniteLoss ? "non_finite_loss" : "non_finite_grad";
}

std::string_view name_of(Clip clip) {
  constexpr std::string_view kNames[] = {"norm", "value", "none"};
  return kNames[static_cast<int>(clip)];
}

AmpTrainState::AmpTrainState(nn::Module& model, optim::Optimizer& optimizer, GradScaler& scaler,
                             AmpOptions options)
    : model_(model), optimizer_(optimizer), scaler_(scaler), options_(std::move(options)) {
  HS_CHECK(options_.max_norm > 0.0, ArgumentError, "AmpTrainState",
           "max_norm = ", options_.max_norm, " given; it must be > 0 (inf never clips)");
  HS_CHECK(options_.clip_value > 0.0, ArgumentError, "AmpTrainState",
           "clip_value = ", options_.clip_value, " given; it must be > 0");
  HS_CHECK(options_.dtype != DType::F64, ArgumentError, "AmpTrainState",
           "dtype f64 given; it must be f32, f16 or bf16");
}

StepOrSkipLog AmpTrainState::step(const Tensor& inputs, const Tensor& targets) {
  HS_CHECK(inputs.defined() && targets.defined(), ArgumentError, "AmpTrainState", "inputs ", inputs,
           " and targets ", targets, " given; both must hold tensors");
  try {
    if (options_.schedule) options_.schedule->apply();
    StepOrSkipLog log = run(inputs, targets);
    ++next_step_;
    if (options_.schedule && (options_.advance_on_skip || std::holds_alternative<StepLog>(log))) {
      options_.schedule->step();
    }
    return log;
  } catch (...) {
    scaler_.abandon(optimizer_);
    throw;
  }
}

StepOrSkipLog AmpTrainState::run(const Tensor& inputs, const Tensor& targets) {
  const double scale = scaler_.get_scale();
  const double lr = optimizer_.lr();
  const std::vector<Parameter>& parameters = optimizer_.parameters();

  optimizer_.zero_grad();
  Tensor loss;
  {
    const Autocast autocast(options_.device, options_.dtype, options_.dtype != DType::F32);
    const Tensor prediction = model_(inputs);
    loss = options_.loss_fn ? options_.loss_fn(prediction, targets) : mse_loss(prediction, targets);
  }
  const float loss_value = static_cast<float>(loss.item());
  if (!std::isfinite(loss_value)) {
    // Nothing was scaled, so there is nothing for update() to judge.
    return SkipLog{next_step_, lr, std::nullopt, loss_value, SkipReason::kNonFiniteLoss,
                   scale,      {}, -1,           0.0f};
  }

  scaler_.scale(loss).backward();
  if (options_.after_backward) options_.after_backward(next_step_, parameters);
  const bool reached = std::ranges::any_of(
      parameters, [](const Parameter& parameter) { return parameter.value.grad().defined(); });
  HS_CHECK(reached, OrderError, "AmpTrainState",
           "no parameter of the optimizer has a gradient; does it hold this model's parameters?");

  scaler_.unscale_(optimizer_);
  const double pre = optim::compute_global_l2_norm(parameters);
  if (const auto bad = optim::find_non_finite_grad(parameters)) {
    scaler_.update();
    return SkipLog{next_step_,
                   lr,
                   pre,
                   loss_value,
                   SkipReason::kNonFiniteGrad,
                   scale,
                   parameters[bad->parameter].name,
                   bad->index,
                   bad->value};
  }
  const double post = clip(parameters, pre);
  scaler_.step(optimizer_);
  scaler_.update();
  return StepLog{next_step_, lr, pre, post, loss_value, scale};
}

double AmpTrainState::clip(const std::vector<Parameter>& parameters, double norm) const {
  switch (options_.clip) {
    case Clip::kNorm:
      return optim::clip_global_l2_norm(parameters, options_.max_norm).post;
    case Clip::kValue:
      optim::clip_grad_value_(parameters, options_.clip_value);
      return optim::compute_global_l2_norm(parameters);
    case Clip::kNone:
      break;
  }
  return norm;
}

StateDict AmpTrainState::state_dict() const {
  StateDict out;
  out.add("model", model_.state_dict());
  out.add("optimizer", optimizer_.state_dict());
  out.add("scaler", scaler_.state_dict());
  if (options_.schedule) out.add("schedule", options_.schedule->state_dict());
  out.numbers["next_step"] = static_cast<double>(next_step_);
  return out;
}

TakeOver AmpTrainState::prepare_load(const StateDict& state) {
  StateReader reader("AmpTrainState.load_state_dict", state);
  std::vector<TakeOver> parts{model_.prepare_load(reader.part("model")),
                              optimizer_.prepare_load(reader.part("optimizer"))};
  const StateDict scaler = reader.part("scaler");
  HS_CHECK(scaler_.is_enabled() || scaler.tensors.size() + scaler.numbers.size() == 0,
           ArgumentError, reader.op(),
           "the state of a scaler was saved, and the scaler is disabled here; is the precision "
           "another one?");
  parts.push_back(scaler_.prepare_load(scaler));
  if (options_.schedule) {
    parts.push_back(options_.schedule->prepare_load(reader.part("schedule")));
  }
  const int64_t next_step = reader.whole_number("next_step", 0.0);
  reader.finish();
  return [this, parts = std::move(parts), next_step] {
    for (const TakeOver& take_over : parts) take_over();
    next_step_ = next_step;
  };
}

}  // namespace halfstep::amp
