// Module: a layer or a model: named parameters and a forward function.
#pragma once

#include <string>
#include <vector>

#include "halfstep/core/parameter.h"
#include "halfstep/core/state_dict.h"

namespace halfstep::nn {

/// Move-only. Registries hold handles to tensors, never pointers to members, so moving is safe.
class Module {
 public:
  virtual ~Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  virtual Tensor forward(const Tensor& x) = 0;
  Tensor operator()(const Tensor& x) { return forward(x); }

  /// All parameters, this module's and its children's, in order of registration; the list is made
  /// once. Names are paths: "0.weight".
  const std::vector<Parameter>& parameters() const { return parameters_; }
  void zero_grad(bool set_to_none = true);

  /// Copies of all parameters, by name.
  StateDict state_dict() const;
  /// Takes over all parameters, bit for bit; or nothing, with an error that names the one which is
  /// missing, unknown, or of another shape or dtype.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  TakeOver prepare_load(const StateDict& state);

 protected:
  Module() = default;
  /// Adds a parameter and returns its handle, which now requires a gradient. ArgumentError if the
  /// name is taken or empty.
  Tensor register_parameter(std::string name, Tensor value);
  /// Adds the parameters that `child` has now, as `name.` followed by their names.
  void register_module(const std::string& name, const Module& child);

 private:
  void check_name(const std::string& name) const;

  std::vector<Parameter> parameters_;
};

}  // namespace halfstep::nn
