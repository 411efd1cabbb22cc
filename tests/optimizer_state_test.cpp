// Saved optimizer state: PyTorch's names, bit-exact reload that goes on as the saved one would
// have, and a refusal of unfit states that leaves the optimizer as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::AdamW;
using optim::SGD;
using test::bits;
using test::expect_says;
using test::give_gradient;
using test::make_parameter;
using test::message_of;
using test::snapshot;

void step_once(optim::Optimizer& optimizer, float gradient) {
  for (const Parameter& parameter : optimizer.parameters()) {
    give_gradient(parameter, {gradient, -2.0f * gradient});
  }
  optimizer.step();
}

std::vector<Parameter> make_parameters(DType dtype) {
  return {make_parameter("a", {1.0f, -2.0f}, dtype), make_parameter("b", {0.5f, 3.0f}, dtype)};
}

/// All keys of a state, tensors and numbers.
std::set<std::string> keys_of(const StateDict& state) {
  std::set<std::string> keys;
  for (const auto& [key, value] : state.tensors) keys.insert(key);
  for (const auto& [key, value] : state.numbers) keys.insert(key);
  return keys;
}

void expect_same(const StateDict& x, const StateDict& y) {
  EXPECT_EQ(keys_of(x), keys_of(y));
  EXPECT_EQ(x.numbers, y.numbers);
  for (const auto& [key, value] : x.tensors) EXPECT_EQ(bits(value), bits(y.tensors.at(key))) << key;
}

TEST(OptimizerState, adamw_uses_pytorchs_names) {
  AdamW optimizer({make_parameter("w", {1.0f, 2.0f})}, {.amsgrad = true});
  step_once(optimizer, 0.5f);
  EXPECT_EQ(keys_of(optimizer.state_dict()),
            (std::set<std::string>{"param_groups.0.lr", "param_groups.0.betas.0",
                                   "param_groups.0.betas.1", "param_groups.0.eps",
                                   "param_groups.0.weight_decay", "param_groups.0.amsgrad",
                                   "param_groups.0.maximize", "state.0.step", "state.0.exp_avg",
                                   "state.0.exp_avg_sq", "state.0.max_exp_avg_sq"}));
}

TEST(OptimizerState, sgd_uses_pytorchs_names) {
  SGD optimizer({make_parameter("w", {1.0f, 2.0f})}, {.momentum = 0.9});
  step_once(optimizer, 0.5f);
  EXPECT_EQ(keys_of(optimizer.state_dict()),
            (std::set<std::string>{"param_groups.0.lr", "param_groups.0.momentum",
                                   "param_groups.0.dampening", "param_groups.0.weight_decay",
                                   "param_groups.0.nesterov", "param_groups.0.maximize",
                                   "state.0.momentum_buffer"}));
}

/// Steps `a`, loads its state and its parameters into `b`, and expects both to go on the same.
template <class Optimizer>
void expect_goes_on(Optimizer& a, Optimizer& b) {
  for (const float g : {0.5f, -0.25f, 3.0f}) step_once(a, g);
  const StateDict state = a.state_dict();
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    Tensor(b.parameters()[i].value).copy_(a.parameters()[i].value.detach());
  }
  b.load_state_dict(state);
  expect_same(b.state_dict(), state);
  for (const float g : {1.0f, -1.0f, 0.125f}) {
    step_once(a, g);
    step_once(b, g);
    for (size_t i = 0; i < a.parameters().size(); ++i) {
      EXPECT_EQ(bits(a.parameters()[i].value), bits(b.parameters()[i].value));
    }
  }
  expect_same(a.state_dict(), b.state_dict());
}

TEST(OptimizerState, a_loaded_adamw_goes_on_bit_for_bit_in_every_dtype) {
  for (const DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    AdamW a(make_parameters(dtype), {.lr = 0.01, .amsgrad = true}), b(make_parameters(dtype));
    expect_goes_on(a, b);
    EXPECT_EQ(b.lr(), 0.01) << "options come along";
    EXPECT_EQ(b.state(0).step, 6);
  }
}

TEST(OptimizerState, a_loaded_sgd_goes_on_bit_for_bit_in_every_dtype) {
  for (const DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    SGD a(make_parameters(dtype), {.lr = 0.01, .momentum = 0.9, .nesterov = true});
    SGD b(make_parameters(dtype));
    expect_goes_on(a, b);
  }
}

TEST(OptimizerState, moments_and_masters_of_half_parameters_are_saved_in_float32) {
  AdamW optimizer(make_parameters(DType::BF16));
  step_once(optimizer, 0.1f);
  const StateDict state = optimizer.state_dict();
  for (const char* key : {"state.0.exp_avg", "state.0.exp_avg_sq", "state.0.master"}) {
    EXPECT_EQ(state.tensors.at(key).dtype(), DType::F32) << key;
  }
}

TEST(OptimizerState, masters_are_loaded_whether_the_weights_come_before_or_after) {
  AdamW a(make_parameters(DType::BF16), {.lr = 1e-4});
  for (int i = 0; i < 5; ++i) step_once(a, 1.0f);
  for (const bool weights_first : {true, false}) {
    AdamW b(make_parameters(DType::BF16));
    const auto load_weights = [&] {
      for (size_t i = 0; i < 2; ++i) {
        Tensor(b.parameters()[i].value).copy_(a.parameters()[i].value.detach());
      }
    };
    if (weights_first) load_weights();
    b.load_state_dict(a.state_dict());
    if (!weights_first) load_weights();
    AdamW reference(make_parameters(DType::BF16), {.lr = 1e-4});
    for (int i = 0; i < 5; ++i) step_once(reference, 1.0f);
    step_once(reference, 1.0f);
    step_once(b, 1.0f);
    EXPECT_EQ(bits(b.state_dict().tensors.at("state.0.master")),
              bits(reference.state_dict().tensors.at("state.0.master")));
  }
}

TEST(OptimizerState, saved_tensors_are_copies) {
  AdamW optimizer(make_parameters(DType::BF16), {.amsgrad = true});
  step_once(optimizer, 1.0f);
  StateDict state = optimizer.state_dict(), before = optimizer.state_dict();
  for (auto& [key, value] : before.tensors) value = value.clone();
  step_once(optimizer, 1.0f);
  expect_same(state, before);
  optimizer.load_state_dict(state);
  for (auto& [key, value] : state.tensors) value.fill_(7.0);
  expect_same(optimizer.state_dict(), before);
}

TEST(OptimizerState, a_fresh_optimizers_state_can_be_saved_and_loaded) {
  AdamW a(make_parameters(DType::F32)), b(make_parameters(DType::F32));
  step_once(b, 1.0f);
  b.load_state_dict(a.state_dict());
  EXPECT_EQ(b.state(0).step, 0);
  EXPECT_EQ(b.state(0).exp_avg.to_vector<float>(), std::vector(2, 0.0f));
}

TEST(OptimizerState, an_unfit_state_is_refused_whole_and_named) {
  AdamW optimizer(make_parameters(DType::F32), {.lr = 0.5});
  step_once(optimizer, 1.0f);
  AdamW other(make_parameters(DType::F32), {.lr = 0.25});
  step_once(other, 2.0f);
  step_once(other, 2.0f);
  const StateDict good = other.state_dict();
  const auto before = snapshot(optimizer);
  const auto refused = [&](const StateDict& state, std::string_view what) {
    expect_says(message_of<Error>([&] { optimizer.load_state_dict(state); }),
                {"AdamW.load_state_dict", what});
    EXPECT_EQ(snapshot(optimizer), before);
    EXPECT_EQ(optimizer.lr(), 0.5);
  };
  for (const std::string& key : keys_of(good)) {
    StateDict state = good;
    state.tensors.erase(key);
    state.numbers.erase(key);
    refused(state, key);
  }
  const auto with_number = [&](const std::string& key, double value) {
    StateDict state = good;
    state.numbers[key] = value;
    return state;
  };
  const auto with_tensor = [&](const std::string& key, const Tensor& value) {
    StateDict state = good;
    state.tensors[key] = value;
    return state;
  };
  refused(with_number("hysteresis", 1.0), "hysteresis");
  refused(with_tensor("state.2.exp_avg", Tensor::zeros({2})), "state.2.exp_avg");
  refused(with_tensor("state.0.master", Tensor::zeros({2})), "state.0.master");
  refused(with_number("state.1.step", -1.0), "state.1.step");
  refused(with_number("state.1.step", 1.5), "state.1.step");
  refused(with_tensor("state.1.exp_avg", Tensor::zeros({3})), "state.1.exp_avg");
  refused(with_tensor("state.1.exp_avg_sq", Tensor::zeros({2}, DType::F16)), "state.1.exp_avg_sq");
  refused(with_tensor("state.1.exp_avg_sq", {}), "state.1.exp_avg_sq");
  EXPECT_NO_THROW(optimizer.load_state_dict(good));
  EXPECT_EQ(optimizer.lr(), 0.25);
}

TEST(OptimizerState, bad_options_in_a_state_are_refused) {
  AdamW optimizer(make_parameters(DType::F32));
  const auto refused = [&](const std::string& key, double value) {
    StateDict state = optimizer.state_dict();
    state.numbers.at("param_groups.0." + key) = value;
    message_of<ArgumentError>([&] { optimizer.load_state_dict(state); });
  };
  refused("lr", -1.0);
  refused("lr", std::nan(""));
  refused("betas.0", 1.0);
  refused("betas.1", -0.5);
  refused("eps", 0.0);
  refused("weight_decay", HUGE_VAL);
}

TEST(OptimizerState, the_state_of_another_kind_or_number_of_parameters_is_refused) {
  AdamW two(make_parameters(DType::F32)), one({make_parameter("w", {1.0f, 2.0f})});
  SGD sgd(make_parameters(DType::F32));
  message_of<ArgumentError>([&] { two.load_state_dict(sgd.state_dict()); });
  message_of<ArgumentError>([&] { sgd.load_state_dict(two.state_dict()); });
  message_of<ArgumentError>([&] { two.load_state_dict(one.state_dict()); });
  message_of<ArgumentError>([&] { one.load_state_dict(two.state_dict()); });
}

}  // namespace
}  // namespace halfstep
