// Module: registration of parameters.
#include "halfstep/nn/module.h"

#include <algorithm>
#include <utility>

namespace halfstep::nn {

void Module::zero_grad(bool set_to_none) {
  for (Parameter& parameter : parameters_) parameter.value.zero_grad(set_to_none);
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
