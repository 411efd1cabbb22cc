// Module: registration of parameters.
#include "halfstep/nn/module.h"

#include <algorithm>
#include <utility>

namespace halfstep::nn {

void Module::zero_grad(bool set_to_none) {
  for (Parameter& parameter : parameters_) parameter.value.zero_grad(set_to_none);
}

StateDict Module::state_dict() const {
  StateDict out;
  for (const Parameter& parameter : parameters_) {
    out.tensors[parameter.name] = parameter.value.clone();
  }
  return out;
}

TakeOver Module::prepare_load(const StateDict& state) {
  StateReader reader("Module.load_state_dict", state);
  std::vector<Parameter> loaded;
  for (const Parameter& parameter : parameters_) {
    loaded.push_back({parameter.name, reader.tensor(parameter.name, parameter.value)});
  }
  reader.finish();
  return [values = parameters_, loaded = std::move(loaded)]() mutable {
    for (size_t i = 0; i < values.size(); ++i) values[i].value.copy_(loaded[i].value);
  };
}

void Module::check_name(const std::string& name) const {
  HS_CHECK(!name.empty(), ArgumentError, "register_parameter", "an empty name was given");
  const bool taken =
      std::ranges::any_of(parameters_, [&](const Parameter& other) { return other.name == name; });
  HS_CHECK(!taken, ArgumentError, "register_parameter", "the name ", name,
           " is taken; parameter names must be unique within a module");
}

Tensor Module::register_parameter(std::string name, Tensor value) {
  check_name(name);
  HS_CHECK(value.defined(), ArgumentError, "register_parameter", "parameter ", name,
           " is undefined; give it a tensor");
  value.set_requires_grad();
  parameters_.push_back({std::move(name), value});
  return value;
}

void Module::register_module(const std::string& name, const Module& child) {
  std::vector<Parameter> added;
  for (const Parameter& parameter : child.parameters()) {
    added.push_back({cat(name, ".", parameter.name), parameter.value});
    check_name(added.back().name);
  }
  parameters_.insert(parameters_.end(), added.begin(), added.end());
}

}  // namespace halfstep::nn
