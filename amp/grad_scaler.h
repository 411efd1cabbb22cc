// GradScaler: dynamic loss scaling that knows, gradient by gradient, what has been done to it.
// Behaviour as torch.amp.GradScaler, with a floor and with every wrong order an OrderError that is
// thrown before anything is changed. Serves steps 5, 7, 9 and 10 of a training step.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "halfstep/core/state_dict.h"
#include "halfstep/core/tensor.h"
#include "halfstep/optim/optimizer.h"

namespace halfstep::amp {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< consecutive clean updates between growths
  double min_scale = 1.0;          ///< backoff stops here; at least 2^-126
  double max_scale = std::numeric_limits<float>::max();  ///< growth above it is refused
  bool enabled = true;
};

/// What GradScaler::step did, and why not if it did not.
struct StepResult {
  enum class Outcome : uint8_t { kStepped, kSkippedNonFinite, kNothingToDo };
  Outcome outcome = Outcome::kStepped;
  std::string parameter;  ///< name of the first parameter with a non-finite gradient
  int64_t index = -1;     ///< of the first non-finite element in it
  float value = 0.0f;     ///< that element: inf, -inf or nan

  bool stepped() const { return outcome == Outcome::kStepped; }
};

/// "stepped", "skipped_non_finite" or "nothing_to_do".
std::string_view name_of(StepResult::Outcome outcome);

class GradScaler {
 public:
  /// ArgumentError unless all options are finite and > 0, growth_factor > 1, 0 < backoff_factor <
  /// 1, growth_interval >= 1 and min_scale <= init_scale <= max_scale.
  explicit GradScaler(Device device = Device::cpu(), const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// loss (any shape; halves are widened first) times the scale, a node of the graph. Gradients
  /// that flow back below it carry this scale as their tag.
  Tensor scale(const Tensor& loss);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses);

  /// Divides the gradients of `optimizer` by the scale, finds the first non-finite value and sums
  /// the squares in one sweep; leaves the record beside each gradient. Once per optimizer and
  /// update.
  void unscale_(optim::Optimizer& optimizer);

  /// unscale_ if that has not been called, then optimizer.step() unless a gradient is non-finite.
  StepResult step(optim::Optimizer& optimizer);

  /// Adjusts the scale: backs off if any optimizer had a non-finite gradient since the last update,
  /// grows after growth_interval clean updates in a row.
  void update();
  /// Sets the scale instead; the growth tracker is left alone. Needs no checked optimizer.
  void update(double new_scale);
  /// Forgets that `optimizer` was unscaled or stepped since the last update, for an iteration that
  /// an exception cut short. Scale, tracker and other optimizers stay as they are.
  void abandon(const optim::Optimizer& optimizer);

  bool is_enabled() const { return options_.enabled; }
  Device device() const { return device_; }
  /// The current scale; 1 when disabled. (On CUDA this waits for the device.)
  double get_scale() const { return is_enabled() ? static_cast<double>(scale_) : 1.0; }
  int64_t growth_tracker() const { return growth_tracker_; }
  /// Updates in a row that found a non-finite gradient.
  int64_t consecutive_skips() const { return consecutive_skips_; }
  bool at_floor() const;

  double growth_factor() const { return options_.growth_factor; }
  double backoff_factor() const { return options_.backoff_factor; }
  int64_t growth_interval() const { return options_.growth_interval; }
  double min_scale() const { return options_.min_scale; }
  double max_scale() const { return options_.max_scale; }
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t interval);
  /// The current scale must lie within the new limits.
  void set_scale_limits(double min_scale, double max_scale);

  /// PyTorch's keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty
  /// when disabled.
  StateDict state_dict() const;
  /// Takes over all five values, or none if one is missing, unknown or out of range. A disabled
  /// scaler ignores it.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  TakeOver prepare_load(const StateDict& state);

 private:
  enum class Stage : uint8_t { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    uint64_t optimizer_id;
    Stage stage;
    size_t grad_count;      // gradients that unscale_ has seen
    uint64_t step_count;    // of the optimizer at that time
    StepResult non_finite;  // outcome kSkippedNonFinite if unscale_ or step found one
  };

  static void check(std::string_view op, const GradScalerOptions& options);
  OptimizerState& state_of(const optim::Optimizer& optimizer);
  void check_tags(std::string_view op, const optim::Optimizer& optimizer,
                  GradTag::Kind wanted) const;
  void note_non_finite(const optim::Optimizer& optimizer, OptimizerState& state) const;
  void start_epoch();

  Device device_;
  GradScalerOptions options_;
  float scale_;
  int64_t growth_tracker_ = 0;
  int64_t consecutive_skips_ = 0;
  uint64_t id_;
  uint64_t epoch_ = 1;
  std::vector<OptimizerState> optimizers_;
};

}  // namespace halfstep::amp
