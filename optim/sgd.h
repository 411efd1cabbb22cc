// SGD with momentum, as torch.optim.SGD.
#pragma once

#include <vector>

#include "halfstep/optim/optimizer.h"

namespace halfstep::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  ///< coupled: added to the gradient
  bool nesterov = false;
  bool maximize = false;
};

struct SGDGroup {
  std::vector<Parameter> params;
  SGDOptions options;
};

class SGD final : public Optimizer {
 public:
  /// ArgumentError for an empty list, parameters that share memory, or options outside
  /// lr >= 0, momentum >= 0, weight_decay >= 0 (all finite in float32); nesterov needs momentum and
  /// no dampening.
  explicit SGD(std::vector<Parameter> params, const SGDOptions& options = {});
  explicit SGD(std::vector<SGDGroup> groups);

  using Optimizer::set_lr;
  double lr(size_t group = 0) const override { return options(group).lr; }
  void set_lr(size_t group, double lr) override;
  const SGDOptions& options(size_t group = 0) const { return options_[check_group(group)]; }
  /// The momentum buffer of a parameter: zeros before its first step, undefined without momentum.
  const Tensor& momentum_buffer(size_t parameter) const {
    return state_[check_parameter(parameter)].buffer;
  }

 private:
  struct State {
    Tensor buffer;
    bool started = false;  // the buffer holds a gradient already
  };
  void update(size_t i, StepArrays& arrays, DType dtype) override;
  void save(StateDict& out) const override;
  TakeOver load(StateReader& reader) override;

  std::vector<SGDOptions> options_;
  std::vector<State> state_;
};

}  // namespace halfstep::optim
