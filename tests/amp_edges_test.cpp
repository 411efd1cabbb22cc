// Right values for failures that other mixed-precision software is known for, as far as no other
// file holds them: the order of scaling and clipping, one unfit gradient among good ones, second
// backwards, missing gradients, the scale at its limits, saved state, and errors that draw nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "halfstep/autograd/node.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using test::bits;
using test::expect_says;
using test::give_gradient;
using test::gradient_of;
using test::kInfinity;
using test::kNan;
using test::loss_with_gradient;
using test::make_parameter;
using test::message_of;
using test::snapshot;
using Driver = test::ScalerDriver;
using Values = std::vector<float>;

struct CallOrderCases : test::GradTagFixture {};
struct SeveralOptimizers : test::TwoOptimizers {};

// Order of calls.

TEST_F(CallOrderCases, clipping_comes_after_unscale_or_not_at_all) {
  scaler.update(65536.0);
  scaled_backward();
  expect_refused([&] { optim::clip_global_l2_norm(optimizer.parameters(), 1.0); },
                 {"layer.weight", "65536", "unscale_"});
  scaler.unscale_(optimizer);
  EXPECT_EQ(optim::clip_global_l2_norm(optimizer.parameters(), 1.0).pre, 5.0);
  EXPECT_EQ(gradient_of(w), (Values{0.6f, 0.8f})) << "not 9.2e-6 and 1.2e-5";
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

TEST_F(CallOrderCases, one_unfit_gradient_of_three_leaves_all_three_untouched) {
  amp::GradScaler other(Device::cpu(), {.init_scale = 1024.0});
  const Parameter a = make_parameter("a", {1.0f}), b = make_parameter("b", {1.0f});
  const Parameter last = make_parameter("last", {1.0f});
  optim::SGD all({a, b, last});
  const auto backward = [&](amp::GradScaler& by, const Parameter& p) {
    by.scale(loss_with_gradient(p, {2.0f})).backward();
  };
  const std::vector<std::pair<const char*, std::function<void()>>> unfit = {
      {"scale() is missing", [&] { loss_with_gradient(last, {2.0f}).backward(); }},
      {"another", [&] { backward(other, last); }},
      {"update()",
       [&] {
         backward(scaler, last);
         scaler.update(1024.0);
       }},
      {"zero_grad()", [&] {
         backward(scaler, last);
         backward(other, last);
       }}};
  for (const auto& [says, spoil] : unfit) {
    for (const bool step : {false, true}) {
      all.zero_grad();
      spoil();
      backward(scaler, a);
      backward(scaler, b);
      const auto before = snapshot(all, scaler);
      const auto call = [&] { step ? void(scaler.step(all)) : scaler.unscale_(all); };
      expect_says(message_of<OrderError>(call), {"last", says});
      EXPECT_EQ(snapshot(all, scaler), before) << says;
      EXPECT_EQ(gradient_of(a), Values{2048.0f});
    }
  }
}

TEST_F(CallOrderCases, a_second_backward_of_a_retained_graph_is_never_taken_for_unscaled) {
  const Tensor scaled = scaler.scale(loss());
  scaled.backward({}, true);
  scaler.unscale_(optimizer);
  scaled.backward({}, true);
  expect_refused_by_all({"layer.weight", "zero_grad()"});
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "zero_grad()"});
  scaler.update();
  scaled.backward();
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight"});
  optimizer.zero_grad();
  scaled_backward();
  const auto before = snapshot(optimizer, scaler);
  message_of<GraphError>([&] { scaled.backward(); });  // consumed
  EXPECT_EQ(snapshot(optimizer, scaler), before);
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

TEST_F(CallOrderCases, step_sweeps_only_what_has_changed_since_unscale) {
  const auto step_with_planted_record = [&](bool write) {
    optimizer.zero_grad();
    scaled_backward();
    scaler.unscale_(optimizer);
    if (write) w.value.grad().mul_(1.0);
    w.value.leaf_state().record.sweep = {25.0, 1, kInfinity};  // says what is not so
    const bool stepped = scaler.step(optimizer).stepped();
    scaler.update(1024.0);
    return stepped;
  };
  EXPECT_FALSE(step_with_planted_record(false)) << "an unchanged gradient was swept again";
  EXPECT_TRUE(step_with_planted_record(true)) << "the record of a changed one was trusted";
}

TEST_F(CallOrderCases, saving_in_the_middle_of_an_iteration_changes_nothing) {
  scaled_backward();
  scaler.unscale_(optimizer);
  const auto before = snapshot(optimizer, scaler);
  const StateDict state = scaler.state_dict();
  EXPECT_EQ(snapshot(optimizer, scaler), before);
  EXPECT_TRUE(scaler.step(optimizer).stepped());
  EXPECT_EQ(state.numbers.at("scale"), 1024.0);
}

// Several optimizers, missing gradients.

TEST_F(SeveralOptimizers, a_new_scale_makes_every_one_ready_again) {
  backward(a, {3.0f, 4.0f});
  backward(b, {3.0f, kInfinity});
  scaler.unscale_(first);
  scaler.step(second);
  scaler.update(2048.0);
  first.zero_grad();
  second.zero_grad();
  backward(a, {3.0f, 4.0f});
  backward(b, {5.0f, 6.0f});
  EXPECT_NO_THROW(scaler.unscale_(first));
  EXPECT_TRUE(scaler.step(second).stepped()) << "the overflow belongs to the iteration before";
  EXPECT_TRUE(scaler.step(first).stepped());
  EXPECT_EQ(gradient_of(a), (Values{3.0f, 4.0f}));
  EXPECT_EQ(gradient_of(b), (Values{5.0f, 6.0f}));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4096.0) << "a clean iteration, with interval 1";
}

TEST_F(SeveralOptimizers, a_missing_gradient_among_others_is_left_out) {
  for (const bool unscale_first : {false, true}) {
    optim::AdamW both({a, b});
    both.zero_grad();
    const std::string before = bits(b.value);
    backward(a, {3.0f, 4.0f});
    if (unscale_first) scaler.unscale_(both);
    EXPECT_TRUE(scaler.step(both).stepped());
    EXPECT_EQ(gradient_of(a), (Values{3.0f, 4.0f}));
    EXPECT_FALSE(b.value.grad().defined());
    EXPECT_EQ(bits(b.value), before);
    EXPECT_EQ(both.state(0).step, 1);
    EXPECT_EQ(both.state(1).step, 0);
    scaler.update();
  }
}

// The scale at its limits.

TEST(ScaleLimits, a_thousand_nans_leave_parameters_and_moments_as_they_were) {
  const test::WarningCollector quiet;
  const Parameter w = make_parameter("w", {1.0f, 2.0f});
  optim::AdamW optimizer({w});
  amp::GradScaler scaler;
  const auto step = [&](float g) {
    optimizer.zero_grad();
    scaler.scale(loss_with_gradient(w, {g, 1.0f})).backward();
    const bool stepped = scaler.step(optimizer).stepped();
    scaler.update();
    optimizer.zero_grad();
    return stepped;
  };
  EXPECT_TRUE(step(0.5f));
  const auto before = snapshot(optimizer);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(step(kNan)) << "said even where the scale stays";
  EXPECT_EQ(snapshot(optimizer), before);
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.consecutive_skips(), 1000);
  EXPECT_TRUE(scaler.at_floor() && quiet.messages.size() == 1);
  EXPECT_TRUE(step(0.5f));
}

TEST(ScaleLimits, a_floor_and_a_short_interval_let_training_recover) {
  const test::WarningCollector quiet;
  Driver slow({.min_scale = 0x1p-126}), floored({.growth_interval = 100, .min_scale = 128.0});
  slow.bad(30);
  slow.good(500);
  EXPECT_EQ(slow.scaler.get_scale(), 0x1p-14) << "interval 2000 has not come round";
  floored.bad(30);
  EXPECT_EQ(floored.scaler.get_scale(), 128.0);
  floored.good(500);
  EXPECT_EQ(floored.scaler.get_scale(), 4096.0);
}

TEST(ScaleLimits, below_1_the_values_after_unscaling_are_the_ones_checked) {
  Driver d({.init_scale = 0x1p-10, .min_scale = 0x1p-20});
  d.step(1e30f);  // finite before and after
  EXPECT_EQ(d.scaler.consecutive_skips(), 0);
  d.optimizer.zero_grad();
  d.scaler.scale(loss_with_gradient(d.w, {1.0f})).backward();
  d.w.value.grad().fill_(1e37);  // finite, and 1e40 once unscaled
  const std::string before = bits(d.w.value);
  const amp::StepResult result = d.scaler.step(d.optimizer);
  EXPECT_FALSE(result.stepped());
  EXPECT_EQ(result.value, kInfinity);
  EXPECT_EQ(bits(d.w.value), before);
}

// Against a control, gradients and moments included.

TEST(ScaledTraining, gradients_and_moments_equal_those_of_a_control_that_omits_the_step) {
  const Parameter w = make_parameter("w", {1.0f, -2.0f}), v = make_parameter("v", {1.0f, -2.0f});
  optim::AdamW scaled({w}, {.lr = 0.1}), control({v}, {.lr = 0.1});
  amp::GradScaler scaler(Device::cpu(), {.init_scale = 128.0, .growth_interval = 1});
  for (int i = 0; i < 4; ++i) {
    const float g = 0.1f * static_cast<float>(i + 1);
    scaled.zero_grad();
    control.zero_grad();
    scaler.scale(loss_with_gradient(w, {g, i == 2 ? kInfinity : 3.0f})).backward();
    loss_with_gradient(v, {g, 3.0f}).backward();
    scaler.step(scaled);
    scaler.update();
    if (i == 2) continue;
    control.step();
    EXPECT_EQ(gradient_of(w), gradient_of(v));
    EXPECT_EQ(scaled.state_dict().numbers, control.state_dict().numbers);
    for (const auto& [key, value] : scaled.state_dict().tensors) {
      EXPECT_EQ(bits(value), bits(control.state_dict().tensors.at(key))) << key;
    }
    EXPECT_EQ(bits(w.value), bits(v.value));
  }
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

TEST(ScaledTraining, a_loaded_adamw_has_the_saved_options_not_its_own) {
  const optim::AdamWOptions options{0.25, 0.5, 0.75, 1e-3, 0.125, true, true};
  optim::AdamW saved({make_parameter("w", {1.0f})}, options), b({make_parameter("w", {1.0f})});
  b.load_state_dict(saved.state_dict());
  for (optim::AdamW* optimizer : {&saved, &b}) {
    give_gradient(optimizer->parameters()[0], {0.5f});
    optimizer->step();
  }
  EXPECT_EQ(b.state_dict().numbers, saved.state_dict().numbers);
  EXPECT_EQ(bits(b.parameters()[0].value), bits(saved.parameters()[0].value));
}

// Clipping, autocast, and errors that leave everything as it was.

TEST(ClipRangeOfFloat64, squares_beyond_float64_are_an_error_under_the_flag_and_change_nothing) {
  for (const double value : {2e200, -2e200}) {
    const Parameter w = make_parameter("w", Tensor::zeros({10}, DType::F64));
    Tensor(w.value).set_grad(Tensor::full({10}, value, DType::F64));
    const std::vector<Parameter> all = {w};
    const std::string before = bits(w.value.grad());
    message_of<NonFiniteError>([&] { optim::clip_grad_norm_(all, 1.0, true); });
    EXPECT_EQ(optim::clip_grad_norm_(all, 1.0), HUGE_VAL);
    EXPECT_EQ(bits(w.value.grad()), before);
    EXPECT_FALSE(optim::has_non_finite_grad(all)) << "every element is finite";
  }
}

TEST(AutocastGraph, backward_keeps_its_tensors_in_the_low_precision) {
  nn::Linear layer(8, 8);
  const amp::Autocast scope(Device::cpu(), DType::F16);
  const Tensor y = layer(Tensor::ones({4, 8}).set_requires_grad());
  const auto& node = static_cast<const Node&>(*y.impl()->grad_fn);
  for (const int i : {0, 1}) EXPECT_EQ(node.saved(i).dtype(), DType::F16);
}

TEST(RefusedOptions, a_layer_that_cannot_be_made_draws_nothing) {
  Generator generator(1);
  const auto before = generator.state();
  message_of<ArgumentError>([&] { nn::Linear(4, -1, {.generator = &generator}); });
  EXPECT_EQ(generator.state(), before);
  if (is_available(Device::cuda())) return;
  message_of<DeviceError>(
      [&] { nn::Linear(4, 4, {.device = Device::cuda(), .generator = &generator}); });
  EXPECT_EQ(generator.state(), before);
}

TEST(RefusedOptions, every_growth_interval_that_is_accepted_can_be_saved_and_loaded) {
  constexpr int64_t kMost = int64_t{1} << 53;  // a saved number is a double
  const amp::GradScaler never(Device::cpu(), {.growth_interval = kMost});
  amp::GradScaler loaded;
  loaded.load_state_dict(never.state_dict());
  EXPECT_EQ(loaded.growth_interval(), kMost);
  for (const int64_t more : {kMost + 1, std::numeric_limits<int64_t>::max()}) {
    const amp::GradScalerOptions options{.growth_interval = more};
    expect_says(message_of<ArgumentError>([&] { amp::GradScaler(Device::cpu(), options); }),
                {"growth_interval"});
    message_of<ArgumentError>([&] { loaded.set_growth_interval(more); });
  }
}

}  // namespace
}  // namespace halfstep
