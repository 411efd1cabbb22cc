// SGD: option checks and state.
#include "halfstep/optim/sgd.h"

#include <cmath>
#include <utility>

namespace halfstep::optim {
namespace {

void check_lr(std::string_view op, double lr) {
  HS_CHECK(is_finite_float32(lr) && lr >= 0.0, ArgumentError, op, "lr = ", lr,
           " given; it must be finite in float32 and not negative");
}

void check_options(std::string_view op, const SGDOptions& o) {
  check_lr(op, o.lr);
  HS_CHECK(is_finite_float32(o.momentum) && o.momentum >= 0.0, ArgumentError, op,
           "momentum = ", o.momentum, " given; it must be finite in float32 and not negative");
  HS_CHECK(is_finite_float32(o.dampening), ArgumentError, op, "dampening = ", o.dampening,
           " given; it must be finite in float32");
  HS_CHECK(is_finite_float32(o.weight_decay) && o.weight_decay >= 0.0, ArgumentError, op,
           "weight_decay = ", o.weight_decay,
           " given; it must be finite in float32 and not negative");
  HS_CHECK(!o.nesterov || (o.momentum > 0.0 && o.dampening == 0.0), ArgumentError, op,
           "nesterov with momentum ", o.momentum, " and dampening ", o.dampening,
           " given; it needs momentum > 0 and no dampening");
}

std::vector<std::vector<Parameter>> take_parameters(std::vector<SGDGroup>& groups) {
  std::vector<std::vector<Parameter>> lists;
  for (SGDGroup& group : groups) {
    check_options("SGD", group.options);
    lists.push_back(std::move(group.params));
  }
  return lists;
}

}  // namespace

SGD::SGD(std::vector<Parameter> params, const SGDOptions& options)
    : SGD(std::vector<SGDGroup>{{std::move(params), options}}) {}

SGD::SGD(std::vector<SGDGroup> groups)
    : Optimizer("SGD", take_parameters(groups)), state_(parameters().size()) {
  for (const SGDGroup& group : groups) options_.push_back(group.options);
  for (size_t i = 0; i < state_.size(); ++i) {
    if (options_[group_of(i)].momentum != 0.0) state_[i].buffer = zeros_for(i);
  }
}

void SGD::set_lr(size_t group, double lr) {
  check_lr("SGD", lr);
  options_[check_group(group)].lr = lr;
}

void SGD::update(size_t i, StepArrays& arrays, DType dtype) {
  const SGDOptions& o = options_[group_of(i)];
  State& s = state_[i];
  if (o.momentum != 0.0) arrays.exp_avg = s.buffer.mutable_raw_data();
  const bool first = o.momentum != 0.0 && !std::exchange(s.started, true);
  kernels(parameters()[i].value.device())
      .sgd[static_cast<size_t>(dtype)](
          arrays, {o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize, first});
}

void SGD::save(StateDict& out) const {
  for (size_t g = 0; g < options_.size(); ++g) {
    const SGDOptions& o = options_[g];
    const std::string group = cat("param_groups.", g, ".");
    out.numbers.merge(std::map<std::string, double>{{group + "lr", o.lr},
                                                    {group + "momentum", o.momentum},
                                                    {group + "dampening", o.dampening},
                                                    {group + "weight_decay", o.weight_decay},
                                                    {group + "nesterov", o.nesterov ? 1.0 : 0.0},
                                                    {group + "maximize", o.maximize ? 1.0 : 0.0}});
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    const State& s = state_[i];
    if (s.started) {
      out.tensors[cat("state.", i, ".momentum_buffer")] = s.buffer.clone();
    }
  }
}

TakeOver SGD::load(StateReader& reader) {
  std::vector<SGDOptions> options(options_.size());
  for (size_t g = 0; g < options.size(); ++g) {
    const std::string group = cat("param_groups.", g, ".");
    options[g] = {reader.number(group + "lr"),        reader.number(group + "momentum"),
                  reader.number(group + "dampening"), reader.number(group + "weight_decay"),
                  reader.flag(group + "nesterov"),    reader.flag(group + "maximize")};
    check_options(reader.op(), options[g]);
  }
  std::vector<State> states(state_.size());
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string key = cat("state.", i, ".momentum_buffer");
    if (options[group_of(i)].momentum == 0.0) continue;
    states[i].started = reader.has_tensor(key);
    states[i].buffer = states[i].started ? reader.tensor(key, zeros_for(i)) : zeros_for(i);
  }
  return [this, options = std::move(options), states = std::move(states)]() mutable {
    options_.swap(options);
    state_.swap(states);
  };
}

}  // namespace halfstep::optim
