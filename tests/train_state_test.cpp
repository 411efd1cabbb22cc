// AmpTrainState: one step is the whole pipeline in its right order; what it logs, what it skips and
// what a skipped or failed step leaves as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::AmpOptions;
using amp::AmpTrainState;
using amp::SkipLog;
using amp::SkipReason;
using amp::StepLog;
using test::bits;
using test::expect_says;
using test::message_of;
using test::snapshot;

nn::Sequential make_model() {
  Generator generator(5);
  const nn::LinearOptions options{.generator = &generator};
  return nn::Sequential{nn::Linear(4, 8, options), nn::GELU(), nn::Linear(8, 2, options)};
}

AmpOptions options_for(DType dtype, double max_norm = 1.0) {
  AmpOptions options;
  options.dtype = dtype;
  options.max_norm = max_norm;
  return options;
}

/// A model with all that belongs to its training; the scaler is enabled for f16.
struct Training {
  Generator generator{9};
  nn::Sequential model = make_model();
  optim::AdamW optimizer{model.parameters(), {.lr = 0.05}};
  amp::GradScaler scaler;
  AmpTrainState state;
  Tensor x = generator.normal({6, 4}), y = generator.normal({6, 2});

  explicit Training(const AmpOptions& options)
      : scaler(Device::cpu(), {.init_scale = 1024.0, .enabled = options.dtype == DType::F16}),
        state(model, optimizer, scaler, options) {}
  explicit Training(DType dtype) : Training(options_for(dtype)) {}

  /// Parameters, moments and step counts, without gradients.
  test::Snapshot weights_and_moments() {
    optimizer.zero_grad();
    return snapshot(optimizer);
  }
  amp::StepOrSkipLog step() { return state.step(x, y); }
};

constexpr DType kAll[] = {DType::F32, DType::BF16, DType::F16};

TEST(AmpTrainState, a_step_equals_the_pipeline_written_out) {
  for (const DType dtype : kAll) {
    Training by_state(options_for(dtype, 0.1)), by_hand(options_for(dtype, 0.1));
    for (int64_t i = 0; i < 3; ++i) {
      const auto log = std::get<StepLog>(by_state.step());
      const double scale = by_hand.scaler.get_scale();
      by_hand.optimizer.zero_grad();
      Tensor loss;
      {
        const amp::Autocast scope(Device::cpu(), dtype, dtype != DType::F32);
        loss = nn::mse_loss(by_hand.model(by_hand.x), by_hand.y);
      }
      by_hand.scaler.scale(loss).backward();
      by_hand.scaler.unscale_(by_hand.optimizer);
      const auto [pre, post] = optim::clip_global_l2_norm(by_hand.model.parameters(), 0.1);
      by_hand.scaler.step(by_hand.optimizer);
      by_hand.scaler.update();
      EXPECT_EQ(by_state.weights_and_moments(), by_hand.weights_and_moments());
      EXPECT_EQ(log.step, i);
      EXPECT_EQ(log.lr, 0.05);
      EXPECT_EQ(log.loss, loss.to_vector<float>()[0]);
      EXPECT_EQ(log.grad_l2_pre_clip, pre);
      EXPECT_EQ(log.grad_l2_post_clip, post);
      EXPECT_NEAR(post, 0.1, 1e-12);
      EXPECT_EQ(log.scaler_scale, scale);
    }
    EXPECT_EQ(by_state.state.next_step(), 3);
  }
}

TEST(AmpTrainState, training_lowers_the_loss) {
  for (const DType dtype : kAll) {
    Training t(dtype);
    const float first = std::get<StepLog>(t.step()).loss;
    for (int i = 0; i < 50; ++i) t.step();
    EXPECT_LT(std::get<StepLog>(t.step()).loss, 0.2f * first) << name_of(dtype);
  }
}

TEST(AmpTrainState, loss_and_norms_are_unscaled) {
  Training f16(options_for(DType::F16, HUGE_VAL)), f32(options_for(DType::F32, HUGE_VAL));
  const auto a = std::get<StepLog>(f16.step()), b = std::get<StepLog>(f32.step());
  EXPECT_EQ(a.scaler_scale, 1024.0);
  EXPECT_EQ(b.scaler_scale, 1.0);
  EXPECT_NEAR(a.loss, b.loss, 0.01f * b.loss);
  EXPECT_NEAR(a.grad_l2_pre_clip, b.grad_l2_pre_clip, 0.01 * b.grad_l2_pre_clip);
  EXPECT_EQ(a.grad_l2_post_clip, a.grad_l2_pre_clip) << "max_norm inf never clips";
}

TEST(AmpTrainState, a_non_finite_loss_is_skipped_and_does_not_count) {
  for (const DType dtype : kAll) {
    Training t(dtype);
    t.step();
    const auto before = t.weights_and_moments();
    const auto scaler_before = snapshot(t.scaler);
    const Tensor good = t.y;
    for (const float bad : {test::kInfinity, test::kNan}) {
      t.y = Tensor::full({6, 2}, static_cast<double>(bad));
      const auto log = std::get<SkipLog>(t.step());
      EXPECT_EQ(log.reason, SkipReason::kNonFiniteLoss);
      EXPECT_EQ(name_of(log.reason), "non_finite_loss");
      EXPECT_FALSE(log.grad_l2_pre_clip.has_value());
      EXPECT_EQ(std::isnan(log.loss), std::isnan(bad));
      EXPECT_FALSE(std::isfinite(log.loss));
      EXPECT_EQ(log.parameter, "");
      EXPECT_EQ(t.weights_and_moments(), before);
      EXPECT_EQ(snapshot(t.scaler), scaler_before) << "update() was called";
    }
    EXPECT_EQ(t.state.next_step(), 3);
    t.y = good;
    EXPECT_EQ(std::get<StepLog>(t.step()).step, 3);
  }
}

TEST(AmpTrainState, a_non_finite_gradient_is_skipped_and_counts) {
  for (const DType dtype : kAll) {
    for (const float bad : {test::kInfinity, -test::kInfinity, test::kNan}) {
      AmpOptions options = options_for(dtype);
      options.after_backward = [bad](int64_t step, const std::vector<Parameter>& parameters) {
        if (step == 1) parameters[2].value.grad().mutable_data<float>()[3] = bad;
      };
      Training t(options);
      t.step();
      const auto before = t.weights_and_moments();
      const auto log = std::get<SkipLog>(t.step());
      EXPECT_EQ(log.step, 1);
      EXPECT_EQ(log.reason, SkipReason::kNonFiniteGrad);
      EXPECT_EQ(name_of(log.reason), "non_finite_grad");
      ASSERT_TRUE(log.grad_l2_pre_clip.has_value());
      EXPECT_EQ(std::isnan(*log.grad_l2_pre_clip), std::isnan(bad));
      EXPECT_TRUE(std::isnan(bad) || *log.grad_l2_pre_clip == HUGE_VAL);
      EXPECT_TRUE(std::isfinite(log.loss));
      EXPECT_EQ(log.parameter, "2.weight");
      EXPECT_EQ(log.index, 3);
      EXPECT_TRUE(std::isnan(bad) ? std::isnan(log.value) : log.value == bad);
      EXPECT_EQ(log.scaler_scale, dtype == DType::F16 ? 1024.0 : 1.0) << "the one of this step";
      EXPECT_EQ(t.weights_and_moments(), before);
      EXPECT_EQ(t.scaler.get_scale(), dtype == DType::F16 ? 512.0 : 1.0);
      EXPECT_EQ(std::get<StepLog>(t.step()).step, 2);
      EXPECT_EQ(t.optimizer.state(0).step, 2);
    }
  }
}

TEST(AmpTrainState, the_hook_sees_scaled_gradients_and_the_optimizers_parameters) {
  AmpOptions options = options_for(DType::F16);
  int calls = 0;
  options.after_backward = [&](int64_t step, const std::vector<Parameter>& parameters) {
    EXPECT_EQ(step, calls++);
    ASSERT_EQ(parameters.size(), 4u);
    EXPECT_EQ(test::tag_of(parameters[0]).kind, GradTag::Kind::kScaled);
    EXPECT_EQ(test::tag_of(parameters[0]).scale, 1024.0f);
  };
  Training t(options);
  t.step();
  t.step();
  EXPECT_EQ(calls, 2);
}

TEST(AmpTrainState, the_loss_function_is_called_under_autocast_and_backward_is_not) {
  AmpOptions options = options_for(DType::BF16);
  options.loss_fn = [](const Tensor& prediction, const Tensor& target) {
    EXPECT_EQ(prediction.dtype(), DType::BF16);
    EXPECT_TRUE(amp::is_autocast_enabled(Device::cpu()));
    return mse_loss(prediction, target, Reduction::kSum);
  };
  options.after_backward = [](int64_t, const std::vector<Parameter>&) {
    EXPECT_FALSE(amp::is_autocast_enabled(Device::cpu()));
  };
  Training sum(options), mean(DType::BF16);
  EXPECT_NEAR(std::get<StepLog>(sum.step()).loss, 12.0f * std::get<StepLog>(mean.step()).loss,
              1e-4f);
}

TEST(AmpTrainState, f32_switches_an_outer_autocast_off) {
  Training inside(DType::F32), outside(DType::F32);
  const float expected = std::get<StepLog>(outside.step()).loss;
  const amp::Autocast scope(Device::cpu(), DType::BF16);
  EXPECT_EQ(std::get<StepLog>(inside.step()).loss, expected);
}

TEST(AmpTrainState, an_exception_leaves_all_as_it_was_and_the_step_can_be_tried_again) {
  for (const DType dtype : kAll) {
    bool fail_in_loss = false, fail_in_hook = false;
    AmpOptions options = options_for(dtype);
    options.loss_fn = [&](const Tensor& prediction, const Tensor& target) {
      if (fail_in_loss) throw std::runtime_error("loss");
      return mse_loss(prediction, target);
    };
    options.after_backward = [&](int64_t, const std::vector<Parameter>&) {
      if (fail_in_hook) throw std::runtime_error("hook");
    };
    Training t(options), control(dtype);
    t.step();
    control.step();
    const auto before = t.weights_and_moments();
    const auto scaler_before = snapshot(t.scaler);
    for (bool* fails : {&fail_in_loss, &fail_in_hook}) {
      *fails = true;
      EXPECT_THROW(t.step(), std::runtime_error);
      *fails = false;
      EXPECT_EQ(t.weights_and_moments(), before);
      EXPECT_EQ(snapshot(t.scaler), scaler_before);
      EXPECT_FALSE(amp::is_autocast_enabled(Device::cpu()));
      EXPECT_TRUE(grad_enabled());
    }
    EXPECT_EQ(std::get<StepLog>(t.step()).step, 1) << "the number of the step that failed";
    control.step();
    EXPECT_EQ(t.weights_and_moments(), control.weights_and_moments());
    EXPECT_EQ(snapshot(t.scaler), snapshot(control.scaler));
  }
}

TEST(AmpTrainState, a_batch_that_does_not_fit_leaves_all_as_it_was) {
  Training t(DType::F16);
  t.step();
  const auto before = t.weights_and_moments();
  message_of<ShapeError>([&] { t.state.step(Tensor::ones({6, 3}), t.y); });
  message_of<ShapeError>([&] { t.state.step(t.x, Tensor::ones({6, 1})); });
  EXPECT_EQ(t.weights_and_moments(), before);
  EXPECT_EQ(std::get<StepLog>(t.step()).step, 1);
}

TEST(AmpTrainState, a_hook_that_unscales_is_an_error_and_the_next_step_works) {
  AmpOptions options = options_for(DType::F16);
  Training* training = nullptr;
  options.after_backward = [&](int64_t, const std::vector<Parameter>&) {
    if (training) training->scaler.unscale_(training->optimizer);
  };
  Training t(options);
  training = &t;
  expect_says(message_of<OrderError>([&] { t.step(); }), {"already unscaled"});
  training = nullptr;
  EXPECT_EQ(std::get<StepLog>(t.step()).step, 0);
}

TEST(AmpTrainState, an_optimizer_of_another_model_is_an_error) {
  for (const DType dtype : kAll) {
    nn::Sequential model = make_model();
    Training t(dtype);
    AmpTrainState wrong(model, t.optimizer, t.scaler, options_for(dtype));
    expect_says(message_of<OrderError>([&] { wrong.step(t.x, t.y); }), {"gradient"});
  }
}

TEST(AmpTrainState, options_outside_their_range_are_refused) {
  Training t(DType::F32);
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    expect_says(message_of<ArgumentError>([&] {
                  AmpTrainState(t.model, t.optimizer, t.scaler, options_for(DType::F32, bad));
                }),
                {"max_norm"});
  }
  expect_says(message_of<ArgumentError>(
                  [&] { AmpTrainState(t.model, t.optimizer, t.scaler, options_for(DType::F64)); }),
              {"f64"});
}

}  // namespace
}  // namespace halfstep
