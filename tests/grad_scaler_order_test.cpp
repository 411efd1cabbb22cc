// GradScaler's order of calls: every wrong order is an error that says what to do, thrown before
// anything is changed.
#include <gtest/gtest.h>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::StepResult;
using test::expect_says;
using test::gradient_of;
using test::kInfinity;
using test::loss_with_gradient;
using test::make_parameter;
using test::message_of;
using test::snapshot;

struct GradScalerOrder : test::TwoOptimizers {};

TEST_F(GradScalerOrder, unscale_twice_is_an_error) {
  backward(a, {3.0f, 4.0f});
  scaler.unscale_(first);
  EXPECT_EQ(gradient_of(a), (std::vector{3.0f, 4.0f}));
  expect_refused([&] { scaler.unscale_(first); }, {"unscale_", "AdamW", "already unscaled"});
  scaler.step(first);
  scaler.update();
  first.zero_grad();
  backward(a, {3.0f, 4.0f});
  EXPECT_NO_THROW(scaler.unscale_(first)) << "after update() it works again";
}

TEST_F(GradScalerOrder, unscale_after_step_is_an_error) {
  backward(a, {3.0f, 4.0f});
  scaler.step(first);
  expect_refused([&] { scaler.unscale_(first); }, {"unscale_", "AdamW", "already stepped"});
}

TEST_F(GradScalerOrder, step_twice_is_an_error) {
  backward(a, {3.0f, 4.0f});
  scaler.step(first);
  expect_refused([&] { scaler.step(first); }, {"step", "AdamW", "update()"});
}

TEST_F(GradScalerOrder, update_without_a_checked_optimizer_is_an_error) {
  expect_refused([&] { scaler.update(); }, {"update", "step(optimizer)"});
  backward(a, {3.0f, 4.0f});
  expect_refused([&] { scaler.update(); }, {"update", "step(optimizer)"});
  scaler.step(first);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2048.0);
  expect_refused([&] { scaler.update(); }, {"update", "step(optimizer)"});
}

TEST_F(GradScalerOrder, unscale_and_update_without_step_is_legal_and_counts) {
  backward(a, {3.0f, 4.0f});
  scaler.unscale_(first);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2048.0);
  first.zero_grad();
  backward(a, {kInfinity, 4.0f});
  scaler.unscale_(first);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1024.0);
}

TEST_F(GradScalerOrder, a_loss_that_was_not_scaled_is_an_error) {
  loss_with_gradient(a, {3.0f, 4.0f}).backward();
  expect_refused([&] { scaler.step(first); }, {"a.weight", "scale() is missing"});
}

TEST_F(GradScalerOrder, a_loaded_scaler_works_before_any_call_of_scale) {
  amp::GradScaler loaded;
  loaded.load_state_dict(scaler.state_dict());
  EXPECT_NO_THROW(loaded.unscale_(first)) << "no gradients yet";
  EXPECT_EQ(loaded.step(first).outcome, StepResult::Outcome::kNothingToDo);
  loss_with_gradient(a, {1.0f, 1.0f}).backward();
  expect_says(message_of<OrderError>([&] { loaded.unscale_(first); }), {"a.weight", "scale()"});
}

TEST_F(GradScalerOrder, an_optimizer_without_gradients_has_nothing_to_do_and_does_not_count) {
  EXPECT_EQ(scaler.step(first).outcome, StepResult::Outcome::kNothingToDo);
  EXPECT_EQ(scaler.step(first).outcome, StepResult::Outcome::kNothingToDo) << "any number of times";
  const StepResult nothing = scaler.step(first);
  EXPECT_EQ(nothing.parameter, "");
  EXPECT_EQ(nothing.index, -1);
  EXPECT_EQ(nothing.value, 0.0f);
  EXPECT_EQ(name_of(scaler.step(first).outcome), "nothing_to_do");
  expect_refused([&] { scaler.update(); }, {"update"});
  backward(b, {1.0f, 1.0f});
  scaler.step(second);
  EXPECT_NO_THROW(scaler.update());
}

TEST_F(GradScalerOrder, gradients_must_not_go_between_unscale_and_step) {
  for (const bool set_to_none : {true, false}) {
    backward(a, {3.0f, 4.0f});
    scaler.unscale_(first);
    first.zero_grad(set_to_none);
    expect_refused([&] { scaler.step(first); }, {"AdamW", "zero_grad()"});
    scaler.update();
    first.zero_grad();
  }
}

TEST_F(GradScalerOrder, one_gradient_of_two_must_not_go_between_unscale_and_step) {
  optim::SGD both({a, b});
  scaler.scale(loss_with_gradient(a, {1.0f, 1.0f}) + loss_with_gradient(b, {1.0f, 1.0f}))
      .backward();
  scaler.unscale_(both);
  Tensor(b.value).zero_grad();
  const auto before = snapshot(both, scaler);
  expect_says(message_of<OrderError>([&] { scaler.step(both); }), {"zero_grad()"});
  EXPECT_EQ(snapshot(both, scaler), before);
}

TEST_F(GradScalerOrder, an_f16_gradient_is_refused_before_any_gradient_is_touched) {
  const Parameter half = make_parameter("half.weight", {1.0f}, DType::F16);
  optim::SGD mixed({a, half});
  scaler
      .scale(loss_with_gradient(a, {3.0f, 4.0f}) + to(loss_with_gradient(half, {1.0f}), DType::F32))
      .backward();
  const auto before = snapshot(mixed, scaler);
  for (const bool step : {true, false}) {
    expect_says(message_of<OrderError>(
                    [&] { step ? static_cast<void>(scaler.step(mixed)) : scaler.unscale_(mixed); }),
                {"half.weight", "float32", "autocast"});
    EXPECT_EQ(snapshot(mixed, scaler), before);
  }
}

TEST_F(GradScalerOrder, a_bf16_gradient_is_unscaled_in_place) {
  const Parameter half = make_parameter("half", {1.0f, 2.0f}, DType::BF16);
  optim::SGD optimizer({half});
  scaler.scale(to(loss_with_gradient(half, {3.0f, 4.0f}), DType::F32)).backward();
  scaler.unscale_(optimizer);
  EXPECT_EQ(half.value.grad().dtype(), DType::BF16);
  EXPECT_EQ(gradient_of(half), (std::vector{3.0f, 4.0f}));
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

}  // namespace
}  // namespace halfstep
