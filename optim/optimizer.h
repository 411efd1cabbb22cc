// Optimizer: what AdamW and SGD share: parameters in groups, the checks before a step, and float32
// masters for half parameters. Serves step 9 of a training step.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "halfstep/core/kernels.h"
#include "halfstep/core/parameter.h"
#include "halfstep/core/state_dict.h"

namespace halfstep::optim {

/// Whether `value` is finite in the arithmetic of a step.
inline bool is_finite_float32(double value) { return std::isfinite(static_cast<float>(value)); }

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// "AdamW" or "SGD".
  std::string_view name() const { return name_; }
  /// Differs between all optimizers of a process.
  uint64_t id() const { return id_; }
  /// The parameters of all groups, in order.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  size_t group_count() const { return group_ends_.size(); }

  virtual double lr(size_t group = 0) const = 0;
  /// Sets the learning rate of all groups, or of one. ArgumentError unless a constructor would take
  /// it; a rate that one group refuses is taken by none.
  void set_lr(double lr);
  virtual void set_lr(size_t group, double lr) = 0;

  /// Removes all gradients (or zeroes them) and their scale tags. Always legal.
  void zero_grad(bool set_to_none = true);

  /// Updates every parameter that has a gradient. Before anything is changed it throws OrderError
  /// if a gradient still carries a loss scale or a mixture of scales, NonFiniteError if a fresh
  /// record says that a gradient holds Inf or NaN, DeviceError if a parameter has moved.
  void step();
  /// How many calls of step() have updated a parameter.
  uint64_t step_count() const { return step_count_; }

  /// All state, with PyTorch's names: state.I.exp_avg for parameter I, param_groups.G.lr for group
  /// G; state.I.master is the float32 master of a half parameter. Tensors are copies.
  StateDict state_dict() const;
  /// Takes over all of a state_dict of an optimizer with the same parameters, options included, bit
  /// for bit; or nothing, with an error that names the key which is missing, unknown or unfit.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  TakeOver prepare_load(const StateDict& state);

 protected:
  Optimizer(std::string_view name, std::vector<std::vector<Parameter>> groups);

  size_t group_of(size_t parameter) const;
  /// `group` itself; ArgumentError if there is no such group.
  size_t check_group(size_t group) const;
  /// `parameter` itself; ArgumentError if there is no such parameter.
  size_t check_parameter(size_t parameter) const;
  /// One update of parameter `i`, which has a gradient. Adds state to `arrays`,
  /// which has param, grad, low_copy and n filled in, and runs the kernel. Must not throw.
  virtual void update(size_t i, StepArrays& arrays, DType dtype) = 0;

  /// Writes the state of this kind of optimizer.
  virtual void save(StateDict& out) const = 0;
  /// Reads and checks all of that.
  virtual TakeOver load(StateReader& reader) = 0;

  /// A zero tensor like the value that parameter `i` is updated in (float32, or float64 for F64).
  Tensor zeros_for(size_t i) const;

 private:
  struct Slot {
    Device device;
    Tensor master;                // float32, of half parameters only
    uint64_t master_version = 0;  // of the parameter when it last equalled the master, rounded
    Tensor wide_grad;             // float32 copy of a half gradient
  };

  void check_disjoint() const;
  void check(const Parameter& parameter, const Slot& slot) const;
  void refresh(const Parameter& parameter, Slot& slot);
  void apply(size_t i);

  std::string_view name_;
  uint64_t id_;
  uint64_t step_count_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<size_t> group_ends_;
  std::vector<Slot> slots_;
};

}  // namespace halfstep::optim
