// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101;
// torch.optim.AdamW).
#pragma once

#include <vector>

#include "halfstep/optim/optimizer.h"

namespace halfstep::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  ///< added after the bias correction
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

struct AdamWGroup {
  std::vector<Parameter> params;
  AdamWOptions options;
};

/// Moments are float32 (float64 for F64 parameters); step counts are per parameter and start at 1;
/// a parameter without a gradient is left alone, a zero gradient still decays.
class AdamW final : public Optimizer {
 public:
  /// ArgumentError for an empty list, parameters that share memory, or options outside lr >= 0,
  /// 0 <= beta < 1, eps > 0, weight_decay >= 0; all finite in float32, and so lr / (1 - beta1) and
  /// lr * weight_decay.
  explicit AdamW(std::vector<Parameter> params, const AdamWOptions& options = {});
  explicit AdamW(std::vector<AdamWGroup> groups);

  using Optimizer::set_lr;
  double lr(size_t group = 0) const override { return options(group).lr; }
  void set_lr(size_t group, double lr) override;
  const AdamWOptions& options(size_t group = 0) const { return options_[check_group(group)]; }

  /// What is kept per parameter, from the start: zeros before its first step.
  struct State {
    int64_t step = 0;
    Tensor exp_avg;
    Tensor exp_avg_sq;
    Tensor max_exp_avg_sq;  // with amsgrad only
  };
  const State& state(size_t parameter) const { return state_[check_parameter(parameter)]; }

 private:
  void update(size_t i, StepArrays& arrays, DType dtype) override;
  void save(StateDict& out) const override;
  TakeOver load(StateReader& reader) override;

  std::vector<AdamWOptions> options_;
  std::vector<State> state_;
};

}  // namespace halfstep::optim
