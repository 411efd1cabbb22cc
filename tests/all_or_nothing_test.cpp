// What throws has changed nothing, and what it has not done is not believed to be done: sweeps that
// fail half-way, states that do not fit, options that would destroy the parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "halfstep/halfstep.h"

namespace halfstep {
namespace {

Parameter parameter(const std::string& name, double value, DType dtype = DType::F32) {
  Tensor x = Tensor::full({2}, value, dtype);
  x.set_requires_grad();
  return {name, x};
}

void set_gradient(Parameter p, double value) {
  p.value.set_grad(Tensor::full(p.value.shape(), value, p.value.dtype()));
}

TEST(AllOrNothing, a_sweep_that_throws_leaves_no_record_that_passes_as_fresh) {
  const Parameter v = parameter("v", 1.0);
  const std::vector<Parameter> with_undefined{v, {"u", {}}}, good{v};
  set_gradient(v, std::numeric_limits<double>::infinity());
  EXPECT_THROW(optim::has_non_finite_grad(with_undefined), ArgumentError);
  EXPECT_TRUE(optim::has_non_finite_grad(good));
  set_gradient(v, 3.0);
  EXPECT_THROW(optim::has_non_finite_grad(with_undefined), ArgumentError);
  EXPECT_NEAR(optim::compute_global_l2_norm(good), std::sqrt(18.0), 1e-12);
}

TEST(AllOrNothing, a_gradient_is_not_stepped_on_twice_by_hand_and_by_the_scaler) {
  const Parameter w = parameter("w", 1.0);
  optim::SGD optimizer({w}, {.lr = 0.5});
  amp::GradScaler scaler(Device::cpu(), {.init_scale = 8.0});
  scaler.scale(sum(w.value * 2.0)).backward();
  scaler.unscale_(optimizer);
  optimizer.step();
  EXPECT_THROW(scaler.step(optimizer), OrderError);
  EXPECT_EQ(w.value.to_vector<double>(), (std::vector<double>{0.0, 0.0}));
}

TEST(AllOrNothing, a_half_parameter_cannot_be_loaded_without_its_master) {
  const Parameter a = parameter("a", 1.0, DType::BF16);
  optim::AdamW first({a});
  set_gradient(a, 0.5);
  first.step();
  StateDict state = first.state_dict();
  ASSERT_TRUE(state.tensors.contains("state.0.master"));
  state.tensors.erase("state.0.master");
  optim::AdamW second({parameter("b", 1.0, DType::BF16)});
  EXPECT_THROW(second.load_state_dict(state), ArgumentError);
  EXPECT_EQ(second.state(0).step, 0);
}

TEST(AllOrNothing, states_with_unfit_values_are_refused) {
  const Parameter a = parameter("a", 1.0);
  optim::AdamW optimizer({a});
  set_gradient(a, 0.5);
  optimizer.step();
  const StateDict good = optimizer.state_dict();
  for (const char* key : {"param_groups.0.maximize", "param_groups.0.amsgrad"}) {
    for (const double value : {std::nan(""), 0.3, 2.0, -1.0}) {
      StateDict bad = good;
      bad.numbers[key] = value;
      EXPECT_THROW(optimizer.load_state_dict(bad), ArgumentError) << key << value;
    }
  }
  StateDict bad = good;
  bad.tensors["state.0.exp_avg_sq"] = Tensor::full({2}, -1.0);
  EXPECT_THROW(optimizer.load_state_dict(bad), ArgumentError);
  EXPECT_EQ(optimizer.state(0).exp_avg_sq.to_vector<float>(),
            good.tensors.at("state.0.exp_avg_sq").to_vector<float>());
}

TEST(AllOrNothing, options_that_overflow_in_the_step_are_refused_early_and_late) {
  const Parameter a = parameter("a", 1.0);
  EXPECT_THROW(optim::AdamW({a}, {.lr = 3e38, .weight_decay = 0.0}), ArgumentError);
  EXPECT_THROW(optim::AdamW({a}, {.lr = 0.0, .weight_decay = 1e300}), ArgumentError);
  optim::AdamW optimizer({a}, {.lr = 1e-30, .weight_decay = 1e30});
  EXPECT_THROW(optimizer.set_lr(1e20), ArgumentError);
  EXPECT_EQ(optimizer.lr(), 1e-30);
}

TEST(AllOrNothing, a_learning_rate_that_one_group_refuses_is_taken_by_none) {
  optim::AdamW optimizer(
      std::vector<optim::AdamWGroup>{{{parameter("a", 1.0)}, {.lr = 1e-3, .weight_decay = 0.0}},
                                     {{parameter("b", 1.0)}, {.lr = 1e-30, .weight_decay = 1e30}}});
  EXPECT_THROW(optimizer.set_lr(1e20), ArgumentError);
  EXPECT_EQ(optimizer.lr(0), 1e-3);
  EXPECT_EQ(optimizer.lr(1), 1e-30);
}

TEST(AllOrNothing, parameters_must_not_overlap) {
  const Tensor memory = Tensor::zeros({4});
  Parameter upper{"upper", rows(memory, 0, 3)}, lower{"lower", rows(memory, 1, 4)};
  Parameter rest{"rest", rows(memory, 3, 4)};
  for (Parameter* p : {&upper, &lower, &rest}) p->value.set_requires_grad();
  EXPECT_THROW(optim::SGD({upper, lower}), ArgumentError);
  EXPECT_THROW(optim::SGD({lower, upper}), ArgumentError);
  EXPECT_NO_THROW(optim::SGD({rest, upper}));
}

TEST(AllOrNothing, a_function_that_throws_in_gradcheck_leaves_the_input_alone) {
  const Tensor x = Tensor::full({2}, 1.0, DType::F64);
  for (const bool throws : {true, false}) {  // or returns another shape
    int calls = 0;
    const auto fn = [&](const std::vector<Tensor>& in) {
      if (++calls == 1) return in[0] * in[0];
      if (throws) throw std::runtime_error("no more");
      return sum(in[0]);
    };
    EXPECT_ANY_THROW(gradcheck(fn, {x}));
    EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1.0, 1.0}));
  }
}

TEST(AllOrNothing, a_draw_that_cannot_be_made_leaves_the_generator_where_it_was) {
  Generator generator(7);
  const double most = std::numeric_limits<double>::max();
  EXPECT_THROW(generator.uniform({1}, -most, most, DType::F64), ArgumentError);
  EXPECT_THROW(generator.uniform({int64_t{1} << 62}, 0.0, 1.0), ArgumentError);
  EXPECT_THROW(generator.permutation(int64_t{1} << 62), ArgumentError);
  EXPECT_THROW(generator.normal({int64_t{1} << 48}), std::bad_alloc);
  EXPECT_EQ(generator.state(), (Generator::State{7, 0}));
}

TEST(AllOrNothing, a_failed_step_leaves_other_optimizers_of_the_scaler_alone) {
  nn::Sequential model{nn::Linear(2, 2), nn::Linear(2, 1)};
  optim::SGD optimizer(model.parameters());
  const Parameter w = parameter("w", 1.0);
  optim::SGD other({w});
  amp::GradScaler scaler(Device::cpu());
  amp::AmpTrainState state(model, optimizer, scaler, {.dtype = DType::F16});
  scaler.scale(sum(w.value * 2.0)).backward();
  scaler.unscale_(other);
  EXPECT_THROW(state.step(Tensor(), Tensor()), ArgumentError);
  EXPECT_THROW(state.step(Tensor::ones({3, 5}), Tensor::ones({3, 1})), ShapeError);
  EXPECT_TRUE(scaler.step(other).stepped());
}

TEST(AllOrNothing, a_scaled_limit_that_vanishes_or_overflows_is_refused) {
  const Parameter w = parameter("w", 1.0);
  amp::GradScaler scaler(Device::cpu(), {.init_scale = 0.25, .min_scale = 0.25});
  scaler.scale(sum(w.value * 2.0)).backward();
  const std::vector<Parameter> list{w};
  EXPECT_THROW(optim::clip_scaled_grad_norm_(list, 5e-324, 0.25), ArgumentError);
  EXPECT_EQ(w.value.grad().to_vector<double>(), (std::vector<double>{0.5, 0.5}));
}

TEST(AllOrNothing, zeros_stay_right_at_any_scale_when_their_neighbours_are_clipped) {
  const Parameter a = parameter("a", 1.0), b = parameter("b", 1.0);
  optim::SGD optimizer({a, b});
  set_gradient(b, 1.0);
  optimizer.zero_grad(false);
  amp::GradScaler scaler(Device::cpu(), {.init_scale = 4.0});
  scaler.scale(sum(a.value * 30.0)).backward();
  optim::clip_scaled_grad_norm_(optimizer.parameters(), 1.0, 4.0);
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

}  // namespace
}  // namespace halfstep
