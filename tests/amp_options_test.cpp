// AmpOptions: clipping by norm, by value or not at all, with the norms that the log then holds; and
// the learning-rate schedule, which goes on with the steps that are taken.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/run_testing.h"

namespace halfstep {
namespace {

using amp::AmpOptions;
using amp::AmpTrainState;
using amp::Clip;
using amp::SkipLog;
using amp::StepLog;
using optim::LrDecay;
using optim::LrSchedule;
using test::bits;
using test::expect_says;
using test::message_of;

constexpr DType kAll[] = {DType::F32, DType::BF16, DType::F16};

/// A model, SGD with two groups, a scaler that is enabled for f16, one batch.
struct Training {
  Generator generator{9};
  nn::Sequential model = test::make_model({});
  optim::SGD optimizer{
      std::vector<optim::SGDGroup>{{{model.parameters()[0], model.parameters()[1]}, {.lr = 0.5}},
                                   {{model.parameters()[2], model.parameters()[3]}, {.lr = 0.5}}}};
  amp::GradScaler scaler;
  Tensor x = generator.normal({6, 4}), y = generator.normal({6, 2}, 3.0);

  explicit Training(DType dtype)
      : scaler(Device::cpu(), {.init_scale = 1024.0, .enabled = dtype == DType::F16}) {}

  std::string weights() const { return bits(model.state_dict()); }
  /// The gradients that the last step was made of.
  std::string gradients() const {
    std::string out;
    for (const Parameter& parameter : model.parameters()) out += bits(parameter.value.grad());
    return out;
  }
};

AmpOptions options_for(DType dtype, Clip kind) {
  AmpOptions options;
  options.dtype = dtype;
  options.clip = kind;
  return options;
}

TEST(AmpClip, kinds_have_names) {
  EXPECT_EQ(name_of(Clip::kNorm), "norm");
  EXPECT_EQ(name_of(Clip::kValue), "value");
  EXPECT_EQ(name_of(Clip::kNone), "none");
  EXPECT_EQ(AmpOptions().clip, Clip::kNorm);
}

TEST(AmpClip, by_value_clamps_every_element_and_logs_the_norm_of_what_is_left) {
  for (const DType dtype : kAll) {
    AmpOptions options = options_for(dtype, Clip::kValue);
    options.clip_value = 0.05;
    options.max_norm = 1e-6;  // not used
    Training clipped(dtype), free(dtype);
    AmpTrainState state(clipped.model, clipped.optimizer, clipped.scaler, options);
    AmpTrainState other(free.model, free.optimizer, free.scaler, options_for(dtype, Clip::kNone));
    const auto log = std::get<StepLog>(state.step(clipped.x, clipped.y));
    const auto plain = std::get<StepLog>(other.step(free.x, free.y));
    optim::clip_grad_value_(free.model.parameters(), 0.05);
    EXPECT_EQ(clipped.gradients(), free.gradients());
    EXPECT_EQ(log.grad_l2_pre_clip, plain.grad_l2_pre_clip) << "the norm before is before";
    EXPECT_EQ(log.grad_l2_post_clip, optim::compute_global_l2_norm(clipped.model.parameters()));
    EXPECT_LT(log.grad_l2_post_clip, 0.9 * log.grad_l2_pre_clip);
    EXPECT_GT(log.grad_l2_post_clip, 0.05) << "more than one element is at its limit";
  }
}

TEST(AmpClip, by_value_leaves_small_gradients_alone) {
  for (const DType dtype : kAll) {
    AmpOptions options = options_for(dtype, Clip::kValue);
    options.clip_value = 1e6;
    Training clipped(dtype), free(dtype);
    AmpTrainState state(clipped.model, clipped.optimizer, clipped.scaler, options);
    AmpTrainState other(free.model, free.optimizer, free.scaler, options_for(dtype, Clip::kNone));
    for (int i = 0; i < 3; ++i) {
      const auto log = std::get<StepLog>(state.step(clipped.x, clipped.y));
      other.step(free.x, free.y);
      EXPECT_EQ(log.grad_l2_post_clip, log.grad_l2_pre_clip);
      EXPECT_EQ(clipped.weights(), free.weights());
    }
  }
}

TEST(AmpClip, none_never_clips_and_both_norms_are_the_same) {
  for (const DType dtype : kAll) {
    AmpOptions none = options_for(dtype, Clip::kNone), norm = options_for(dtype, Clip::kNorm);
    none.max_norm = 1e-6;
    none.clip_value = 1e-6;
    norm.max_norm = HUGE_VAL;
    Training a(dtype), b(dtype);
    AmpTrainState first(a.model, a.optimizer, a.scaler, none);
    AmpTrainState second(b.model, b.optimizer, b.scaler, norm);
    for (int i = 0; i < 3; ++i) {
      const auto log = std::get<StepLog>(first.step(a.x, a.y));
      const auto same = std::get<StepLog>(second.step(b.x, b.y));
      EXPECT_EQ(log.grad_l2_post_clip, log.grad_l2_pre_clip);
      EXPECT_GT(log.grad_l2_post_clip, 0.1);
      EXPECT_EQ(amp::csv_row(log), amp::csv_row(same));
      EXPECT_EQ(a.weights(), b.weights());
    }
  }
}

TEST(AmpClip, a_non_finite_gradient_is_skipped_whatever_the_kind) {
  for (const DType dtype : kAll) {
    for (const Clip kind : {Clip::kNorm, Clip::kValue, Clip::kNone}) {
      AmpOptions options = options_for(dtype, kind);
      options.after_backward = [](int64_t, const std::vector<Parameter>& parameters) {
        parameters[1].value.grad().fill_(HUGE_VAL);
      };
      Training t(dtype);
      AmpTrainState state(t.model, t.optimizer, t.scaler, options);
      const std::string before = t.weights();
      const auto log = std::get<SkipLog>(state.step(t.x, t.y));
      EXPECT_EQ(log.reason, amp::SkipReason::kNonFiniteGrad) << "Inf was clamped to the limit";
      EXPECT_EQ(log.grad_l2_pre_clip, HUGE_VAL);
      EXPECT_EQ(t.weights(), before);
    }
  }
}

TEST(AmpClip, values_that_clip_everything_are_refused) {
  Training t(DType::F32);
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    AmpOptions options = options_for(DType::F32, Clip::kValue);
    options.clip_value = bad;
    expect_says(
        message_of<ArgumentError>([&] { AmpTrainState(t.model, t.optimizer, t.scaler, options); }),
        {"[AmpTrainState] clip_value = "});
  }
}

/// Runs seven steps, of which 2 has a non-finite gradient and 4 a non-finite loss, and returns the
/// rates in the log.
std::vector<double> rates(DType dtype, bool advance_on_skip, int64_t expected_count) {
  Training t(dtype);
  LrSchedule schedule(t.optimizer, {.lr = 0.5, .decay = LrDecay::kLinear, .total_steps = 10});
  AmpOptions options = options_for(dtype, Clip::kNorm);
  options.schedule = &schedule;
  options.advance_on_skip = advance_on_skip;
  options.after_backward = [](int64_t step, const std::vector<Parameter>& parameters) {
    if (step == 2) parameters[0].value.grad().fill_(HUGE_VAL);
  };
  AmpTrainState state(t.model, t.optimizer, t.scaler, options);
  std::vector<double> out;
  for (int step = 0; step < 7; ++step) {
    const amp::StepOrSkipLog log =
        state.step(t.x, step == 4 ? Tensor::full({6, 2}, HUGE_VAL) : t.y);
    EXPECT_EQ(std::holds_alternative<SkipLog>(log), step == 2 || step == 4);
    std::visit([&](const auto& entry) { out.push_back(entry.lr); }, log);
    EXPECT_EQ(t.optimizer.lr(0), t.optimizer.lr(1)) << "all groups";
  }
  EXPECT_EQ(schedule.step_count(), expected_count);
  EXPECT_EQ(t.optimizer.lr(), schedule.lr_at(expected_count)) << "ready for the next step";
  return out;
}

TEST(AmpSchedule, goes_on_with_the_steps_that_are_taken) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(rates(dtype, false, 5), (std::vector{0.5, 0.45, 0.4, 0.4, 0.35, 0.35, 0.3}));
  }
}

TEST(AmpSchedule, goes_on_with_every_step_if_told_to) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(rates(dtype, true, 7), (std::vector{0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2}));
  }
}

TEST(AmpSchedule, does_not_go_on_when_a_step_throws) {
  for (const bool advance_on_skip : {false, true}) {
    Training t(DType::F32);
    LrSchedule schedule(t.optimizer, {.lr = 0.5, .decay = LrDecay::kLinear, .total_steps = 10});
    AmpOptions options = options_for(DType::F32, Clip::kNorm);
    options.schedule = &schedule;
    options.advance_on_skip = advance_on_skip;
    AmpTrainState state(t.model, t.optimizer, t.scaler, options);
    message_of<ShapeError>([&] { state.step(Tensor::ones({6, 3}), t.y); });
    EXPECT_EQ(schedule.step_count(), 0);
    EXPECT_EQ(std::get<StepLog>(state.step(t.x, t.y)).lr, 0.5);
    EXPECT_EQ(schedule.step_count(), 1);
  }
}

TEST(AmpSchedule, has_the_last_word_on_the_rate_of_a_step) {
  Training t(DType::F32);
  LrSchedule schedule(t.optimizer, {.lr = 0.25});
  AmpOptions options = options_for(DType::F32, Clip::kNorm);
  options.schedule = &schedule;
  AmpTrainState state(t.model, t.optimizer, t.scaler, options);
  t.optimizer.set_lr(0.5);  // as a load of the optimizer's state alone would
  EXPECT_EQ(std::get<StepLog>(state.step(t.x, t.y)).lr, 0.25);
}

TEST(AmpSchedule, without_one_the_optimizers_rate_stays) {
  Training t(DType::F32);
  AmpTrainState state(t.model, t.optimizer, t.scaler, options_for(DType::F32, Clip::kNorm));
  for (const double lr : {0.5, 0.5, 0.125}) {
    t.optimizer.set_lr(lr);
    EXPECT_EQ(std::get<StepLog>(state.step(t.x, t.y)).lr, lr);
  }
}

}  // namespace
}  // namespace halfstep
