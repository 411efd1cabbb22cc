// AdamW: option checks, state and the scalars of one step.
#include "halfstep/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace halfstep::optim {
namespace {

void check_options(std::string_view op, const AdamWOptions& o) {
  HS_CHECK(o.beta1 >= 0.0 && o.beta1 < 1.0 && o.beta2 >= 0.0 && o.beta2 < 1.0, ArgumentError, op,
           "betas ", o.beta1, " and ", o.beta2, " given; both must be in [0, 1)");
  // The first step divides lr by 1 - beta1; later ones by more.
  HS_CHECK(o.lr >= 0.0 && is_finite_float32(o.lr / (1.0 - o.beta1)), ArgumentError, op,
           "lr = ", o.lr,
           " given; it must not be negative, and lr / (1 - beta1) finite in float32");
  HS_CHECK(is_finite_float32(o.eps) && static_cast<float>(o.eps) > 0.0f, ArgumentError, op,
           "eps = ", o.eps,
           " given; it must be finite and positive in float32, or a zero gradient divides 0 by 0");
  HS_CHECK(o.weight_decay >= 0.0 && is_finite_float32(o.weight_decay) &&
               is_finite_float32(o.lr * o.weight_decay),
           ArgumentError, op, "weight_decay = ", o.weight_decay, " given with lr = ", o.lr,
           "; it must not be negative, and it and lr times it finite in float32");
}

std::vector<std::vector<Parameter>> take_parameters(std::vector<AdamWGroup>& groups) {
  std::vector<std::vector<Parameter>> lists;
  for (AdamWGroup& group : groups) {
    check_options("AdamW", group.options);
    lists.push_back(std::move(group.params));
  }
  return lists;
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> params, const AdamWOptions& options)
    : AdamW(std::vector<AdamWGroup>{{std::move(params), options}}) {}

AdamW::AdamW(std::vector<AdamWGroup> groups)
    : Optimizer("AdamW", take_parameters(groups)), state_(parameters().size()) {
  for (const AdamWGroup& group : groups) options_.push_back(group.options);
  for (size_t i = 0; i < state_.size(); ++i) {
    State& s = state_[i];
    s.exp_avg = zeros_for(i);
    s.exp_avg_sq = zeros_for(i);
    if (options_[group_of(i)].amsgrad) s.max_exp_avg_sq = zeros_for(i);
  }
}

void AdamW::set_lr(size_t group, double lr) {
  AdamWOptions changed = options(group);
  changed.lr = lr;
  check_options("AdamW", changed);
  options_[group] = changed;
}

void AdamW::update(size_t i, StepArrays& arrays, DType dtype) {
  const AdamWOptions& o = options_[group_of(i)];
  State& s = state_[i];
  ++s.step;
  const double t = static_cast<double>(s.step);
  arrays.exp_avg = s.exp_avg.mutable_raw_data();
  arrays.exp_avg_sq = s.exp_avg_sq.mutable_raw_data();
  if (o.amsgrad) arrays.max_exp_avg_sq = s.max_exp_avg_sq.mutable_raw_data();
  kernels(parameters()[i].value.device())
      .adamw[static_cast<size_t>(dtype)](
          arrays, {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, 1.0 - std::pow(o.beta1, t),
                   1.0 - std::pow(o.beta2, t), o.maximize});
}

void AdamW::save(StateDict& out) const {
  for (size_t g = 0; g < options_.size(); ++g) {
    const AdamWOptions& o = options_[g];
    const std::string group = cat("param_groups.", g, ".");
    out.numbers.merge(std::map<std::string, double>{{group + "lr", o.lr},
                                                    {group + "betas.0", o.beta1},
                                                    {group + "betas.1", o.beta2},
                                                    {group + "eps", o.eps},
                                                    {group + "weight_decay", o.weight_decay},
                                                    {group + "amsgrad", o.amsgrad ? 1.0 : 0.0},
                                                    {group + "maximize", o.maximize ? 1.0 : 0.0}});
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    const State& s = state_[i];
    const std::string key = cat("state.", i, ".");
    out.numbers[key + "step"] = static_cast<double>(s.step);
    if (s.step == 0) continue;
    out.tensors[key + "exp_avg"] = s.exp_avg.clone();
    out.tensors[key + "exp_avg_sq"] = s.exp_avg_sq.clone();
    if (s.max_exp_avg_sq.defined()) out.tensors[key + "max_exp_avg_sq"] = s.max_exp_avg_sq.clone();
  }
}

TakeOver AdamW::load(StateReader& reader) {
  std::vector<AdamWOptions> options(options_.size());
  for (size_t g = 0; g < options.size(); ++g) {
    const std::string group = cat("param_groups.", g, ".");
    options[g] = {reader.number(group + "lr"),           reader.number(group + "betas.0"),
                  reader.number(group + "betas.1"),      reader.number(group + "eps"),
                  reader.number(group + "weight_decay"), reader.flag(group + "amsgrad"),
                  reader.flag(group + "maximize")};
    check_options(reader.op(), options[g]);
  }
  std::vector<State> states(state_.size());
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string key = cat("state.", i, ".");
    State& s = states[i];
    s.step = reader.whole_number(key + "step", 0.0);
    const auto moment = [&](const char* name) {
      const Tensor zeros = zeros_for(i);
      return s.step > 0 ? reader.tensor(key + name, zeros) : zeros;
    };
    const auto square = [&](const char* name) {  // its root is taken
      const Tensor value = moment(name);
      const std::vector<double> elements = value.to_vector<double>();
      HS_CHECK(std::ranges::none_of(elements, [](double x) { return x < 0.0; }), ArgumentError,
               reader.op(), reader.full(key + name),
               " has a negative element; it must hold mean squares");
      return value;
    };
    s.exp_avg = moment("exp_avg");
    s.exp_avg_sq = square("exp_avg_sq");
    if (options[group_of(i)].amsgrad) s.max_exp_avg_sq = square("max_exp_avg_sq");
  }
  return [this, options = std::move(options), states = std::move(states)]() mutable {
    options_.swap(options);
    state_.swap(states);
  };
}

}  // namespace halfstep::optim
