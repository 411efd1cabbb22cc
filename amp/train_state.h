// AmpTrainState: the whole safe step in one object: clear, autocast forward, check the loss, scale,
// backward, unscale, check the gradients, clip, step, update, in the one right order.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "halfstep/amp/grad_scaler.h"
#include "halfstep/nn/module.h"
#include "halfstep/optim/lr_schedule.h"
#include "halfstep/optim/optimizer.h"

namespace halfstep::amp {

enum class Clip : uint8_t { kNorm, kValue, kNone };
/// "norm", "value" or "none".
std::string_view name_of(Clip clip);

struct AmpOptions {
  Device device = Device::cpu();
  DType dtype = DType::BF16;  ///< of autocast; F32 runs without autocast
  double max_norm = 1.0;      ///< of the global L2 clip; inf never clips
  Clip clip = Clip::kNorm;
  double clip_value = 1.0;  ///< largest size of an element with Clip::kValue
  /// Loss of (prediction, target), called under autocast; nn::mse_loss if empty.
  std::function<Tensor(const Tensor& prediction, const Tensor& target)> loss_fn = {};
  /// Called after backward, before unscale_: a place to look at, or to spoil, the scaled gradients.
  std::function<void(int64_t step, const std::vector<Parameter>& parameters)> after_backward = {};
  /// Sets the learning rate of each step and goes on after it; must outlive the AmpTrainState.
  optim::LrSchedule* schedule = nullptr;
  bool advance_on_skip = false;  ///< whether the schedule goes on after a skipped step, too
};

/// One row of the log of a step that was taken. Loss and norms are unscaled; scaler_scale is the
/// scale used in the step.
struct StepLog {
  int64_t step;
  double lr;
  double grad_l2_pre_clip;
  double grad_l2_post_clip;
  float loss;
  double scaler_scale;
};

enum class SkipReason : uint8_t { kNonFiniteLoss, kNonFiniteGrad };
/// "non_finite_loss" or "non_finite_grad".
std::string_view name_of(SkipReason reason);

/// One row of the log of a step that was skipped: parameters, moments, step counts and decay are as
/// before, bit for bit.
struct SkipLog {
  int64_t step;
  double lr;
  std::optional<double> grad_l2_pre_clip;  ///< inf or nan; empty for a non-finite loss
  float loss;
  SkipReason reason;
  double scaler_scale;
  std::string parameter;  ///< the first with a non-finite gradient; empty for a non-finite loss
  int64_t index = -1;
  float value = 0.0f;
};

using StepOrSkipLog = std::variant<StepLog, SkipLog>;

class AmpTrainState {
 public:
  /// Keeps references: all three must outlive it. ArgumentError unless max_norm > 0, clip_value > 0
  /// and dtype is F32, F16 or BF16.
  AmpTrainState(nn::Module& model, optim::Optimizer& optimizer, GradScaler& scaler,
                AmpOptions options = {});

  /// One training step on one batch. An exception (from the model, the loss or a hook) leaves
  /// parameters, moments and scaler as they were, and the step can be tried again. On a non-finite
  /// loss scaler.update() is not called; on a non-finite gradient it is.
  StepOrSkipLog step(const Tensor& inputs, const Tensor& targets);

  /// The number that the next step will have; steps count from 0, skipped ones too.
  int64_t next_step() const { return next_step_; }
  const AmpOptions& options() const { return options_; }

  /// Everything that the next step depends on, but for its batch: model.*, optimizer.*, scaler.*,
  /// schedule.* and next_step.
  StateDict state_dict() const;
  /// Takes over all of it, bit for bit, or nothing, with an error that names the key which is
  /// missing, unknown or unfit. Gradients are left alone; the next step clears them.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  TakeOver prepare_load(const StateDict& state);

 private:
  StepOrSkipLog run(const Tensor& inputs, const Tensor& targets);
  double clip(const std::vector<Parameter>& parameters, double norm) const;

  nn::Module& model_;
  optim::Optimizer& optimizer_;
  GradScaler& scaler_;
  AmpOptions options_;
  int64_t next_step_ = 0;
};

}  // namespace halfstep::amp
