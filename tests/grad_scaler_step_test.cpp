// GradScaler::step: what it reports of a step that was skipped, and several optimizers with one
// scaler.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::StepResult;
using test::gradient_of;
using test::kInfinity;
using test::kNan;
using test::loss_with_gradient;
using test::make_parameter;

struct GradScalerStep : test::TwoOptimizers {};

TEST_F(GradScalerStep, a_skipped_step_names_parameter_index_and_value) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const bool unscale_first : {true, false}) {
      optim::SGD both({b, a});
      both.zero_grad();
      backward(b, {1.0f, 1.0f});
      backward(a, {2.0f, bad});
      if (unscale_first) scaler.unscale_(both);
      const StepResult result = scaler.step(both);
      EXPECT_EQ(result.outcome, StepResult::Outcome::kSkippedNonFinite);
      EXPECT_EQ(name_of(result.outcome), "skipped_non_finite");
      EXPECT_FALSE(result.stepped());
      EXPECT_EQ(result.parameter, "a.weight");
      EXPECT_EQ(result.index, 1);
      EXPECT_EQ(std::isnan(result.value), std::isnan(bad));
      EXPECT_TRUE(std::isnan(bad) || result.value == bad);
      EXPECT_EQ(gradient_of(b), (std::vector{1.0f, 1.0f})) << "unscaled like all";
      scaler.update();
    }
  }
}

TEST_F(GradScalerStep, a_bad_value_in_any_gradient_of_a_mixed_list_is_found_and_all_are_unscaled) {
  for (size_t spoilt = 0; spoilt <= 5; ++spoilt) {  // 5: none
    std::vector<Parameter> parameters;
    for (const DType dtype : {DType::F32, DType::BF16, DType::F32, DType::BF16, DType::F64}) {
      parameters.push_back(make_parameter(cat("p", parameters.size()), {0.0f, 0.0f}, dtype));
    }
    optim::SGD optimizer(parameters);
    for (const Parameter& parameter : parameters) {
      scaler.scale(loss_with_gradient(parameter, {4.0f, 4.0f})).backward();
    }
    if (spoilt < 5) parameters[spoilt].value.grad().fill_(static_cast<double>(kInfinity));
    scaler.unscale_(optimizer);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(gradient_of(parameters[i]), std::vector(2, i == spoilt ? kInfinity : 4.0f));
    }
    const StepResult result = scaler.step(optimizer);
    EXPECT_EQ(result.stepped(), spoilt == 5);
    EXPECT_EQ(result.parameter, spoilt == 5 ? "" : cat("p", spoilt));
    scaler.update(1024.0);
  }
}

TEST_F(GradScalerStep, of_several_bad_gradients_the_first_is_named) {
  optim::SGD both({b, a});
  backward(a, {kNan, 1.0f});
  backward(b, {1.0f, kInfinity});
  const StepResult result = scaler.step(both);
  EXPECT_EQ(result.parameter, "b.weight");
  EXPECT_EQ(result.index, 1);
  EXPECT_EQ(result.value, kInfinity);
}

TEST_F(GradScalerStep, a_step_that_was_taken_names_nothing) {
  backward(a, {3.0f, 4.0f});
  const StepResult result = scaler.step(first);
  EXPECT_TRUE(result.stepped());
  EXPECT_EQ(name_of(result.outcome), "stepped");
  EXPECT_EQ(result.parameter, "");
  EXPECT_EQ(result.index, -1);
}

TEST_F(GradScalerStep, a_value_that_became_non_finite_after_unscale_is_a_skip_that_counts) {
  for (const float bad : {kInfinity, kNan}) {
    first.zero_grad();
    const double scale = scaler.get_scale();
    backward(a, {3.0f, 4.0f});
    scaler.unscale_(first);
    a.value.grad().mutable_data<float>()[1] = bad;
    const std::string before = test::bits(a.value);
    const StepResult result = scaler.step(first);
    EXPECT_EQ(result.outcome, StepResult::Outcome::kSkippedNonFinite);
    EXPECT_EQ(result.parameter, "a.weight");
    EXPECT_EQ(result.index, 1);
    EXPECT_EQ(test::bits(a.value), before);
    EXPECT_EQ(first.state(0).step, 0);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale / 2.0);
  }
}

TEST_F(GradScalerStep, a_value_mended_after_unscale_is_still_a_skip) {
  backward(a, {3.0f, kInfinity});
  scaler.unscale_(first);
  optim::clip_grad_value_(first.parameters(), 1.0);
  EXPECT_FALSE(scaler.step(first).stepped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

// Several optimizers.

TEST_F(GradScalerStep, update_between_two_steps_is_an_error_for_the_second) {
  backward(a, {3.0f, 4.0f});
  backward(b, {3.0f, 4.0f});
  scaler.step(first);
  scaler.update();
  expect_refused([&] { scaler.step(second); }, {"b.weight", "1024", "update()"});
}

TEST_F(GradScalerStep, an_overflow_skips_only_its_own_optimizer_and_halves_the_scale) {
  for (const bool bad_first : {true, false}) {
    const std::string a_before = test::bits(a.value), b_before = test::bits(b.value);
    first.zero_grad();
    second.zero_grad();
    backward(a, {3.0f, bad_first ? kNan : 4.0f});
    backward(b, {3.0f, bad_first ? 4.0f : kNan});
    EXPECT_EQ(scaler.step(first).stepped(), !bad_first);
    EXPECT_EQ(scaler.step(second).stepped(), bad_first);
    const double scale = scaler.get_scale();
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale / 2.0);
    EXPECT_EQ(test::bits(a.value) == a_before, bad_first);
    EXPECT_EQ(test::bits(b.value) == b_before, !bad_first);
  }
  EXPECT_EQ(scaler.consecutive_skips(), 2);
}

TEST_F(GradScalerStep, two_overflows_in_one_iteration_halve_the_scale_once) {
  backward(a, {kInfinity, 4.0f});
  backward(b, {3.0f, kNan});
  scaler.step(first);
  scaler.step(second);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

TEST_F(GradScalerStep, optimizers_are_unscaled_one_by_one) {
  backward(a, {3.0f, 4.0f});
  backward(b, {3.0f, 4.0f});
  scaler.unscale_(first);
  EXPECT_EQ(gradient_of(b), (std::vector{3072.0f, 4096.0f}));
  EXPECT_TRUE(scaler.step(second).stepped());
  EXPECT_TRUE(scaler.step(first).stepped());
  EXPECT_NO_THROW(scaler.update());
}

TEST_F(GradScalerStep, a_parameter_of_two_optimizers_is_unscaled_once) {
  optim::SGD other({a});
  backward(a, {3.0f, 4.0f});
  scaler.unscale_(first);
  expect_refused([&] { scaler.unscale_(other); }, {"a.weight", "already"});
  EXPECT_TRUE(scaler.step(first).stepped());
}

}  // namespace
}  // namespace halfstep
