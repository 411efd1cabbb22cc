// LrSchedule: warm-up, decay and what follows them, in every group; options it refuses with the
// optimizer left as it was; a saved step count that goes on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::AdamW;
using optim::LrDecay;
using optim::LrSchedule;
using optim::LrScheduleOptions;
using optim::SGD;
using test::expect_says;
using test::make_parameter;
using test::message_of;
using test::snapshot;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// An optimizer with two groups of different rates.
struct Groups {
  AdamW optimizer{std::vector<optim::AdamWGroup>{
      {{make_parameter("a", {1.0f})}, {.lr = 0.5}},
      {{make_parameter("b", {1.0f})}, {.lr = 0.25, .weight_decay = 0.0}}}};
  std::pair<double, double> rates() const { return {optimizer.lr(0), optimizer.lr(1)}; }
};

std::pair<double, double> both(double lr) { return {lr, lr}; }

TEST(LrSchedule, decays_have_names) {
  EXPECT_EQ(name_of(LrDecay::kConstant), "constant");
  EXPECT_EQ(name_of(LrDecay::kLinear), "linear");
  EXPECT_EQ(name_of(LrDecay::kCosine), "cosine");
}

TEST(LrSchedule, the_first_rate_is_set_in_all_groups_at_once) {
  Groups g;
  const LrSchedule schedule(g.optimizer, {.lr = 0.8, .warmup_steps = 4});
  EXPECT_EQ(g.rates(), both(0.2));
  EXPECT_EQ(schedule.step_count(), 0);
  EXPECT_EQ(schedule.options().lr, 0.8);
}

TEST(LrSchedule, warm_up_rises_in_equal_steps_and_ends_at_lr) {
  Groups g;
  for (const LrDecay decay : {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    const LrSchedule schedule(g.optimizer,
                              {.lr = 0.8, .decay = decay, .warmup_steps = 4, .total_steps = 10});
    for (const int64_t s : {0, 1, 2, 3}) {
      EXPECT_DOUBLE_EQ(schedule.lr_at(s), 0.2 * static_cast<double>(s + 1));
    }
    EXPECT_EQ(schedule.lr_at(3), 0.8);
    EXPECT_EQ(schedule.lr_at(4), 0.8) << "the decay begins with the full rate";
  }
}

TEST(LrSchedule, without_warm_up_the_first_rate_is_lr) {
  Groups g;
  for (const LrDecay decay : {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    EXPECT_EQ(LrSchedule(g.optimizer, {.lr = 0.3, .decay = decay, .total_steps = 10}).lr_at(0),
              0.3);
  }
}

TEST(LrSchedule, the_warm_up_is_the_last_word_of_min_lr) {
  Groups g;
  const LrSchedule schedule(
      g.optimizer,
      {.lr = 1.0, .decay = LrDecay::kLinear, .warmup_steps = 10, .total_steps = 20, .min_lr = 0.5});
  EXPECT_EQ(schedule.lr_at(0), 0.1) << "min_lr is where a decay ends, not a floor";
}

TEST(LrSchedule, linear_and_cosine_are_their_formulas) {
  Groups g;
  const double lr = 0.9, least = 0.1;
  for (const LrDecay decay : {LrDecay::kLinear, LrDecay::kCosine}) {
    const LrSchedule schedule(
        g.optimizer,
        {.lr = lr, .decay = decay, .warmup_steps = 3, .total_steps = 11, .min_lr = least});
    for (int64_t s = 3; s < 11; ++s) {
      const double f = static_cast<double>(s - 3) / 8.0;
      const double left =
          decay == LrDecay::kLinear ? 1.0 - f : (1.0 + std::cos(std::acos(-1.0) * f)) / 2.0;
      EXPECT_NEAR(schedule.lr_at(s), least + (lr - least) * left, 1e-15);
    }
    EXPECT_NEAR(schedule.lr_at(7), 0.5, 1e-15) << "halfway";
    EXPECT_GT(schedule.lr_at(10), least) << "total_steps - 1 is still on its way";
  }
}

TEST(LrSchedule, after_the_end_a_decay_stays_at_exactly_min_lr) {
  Groups g;
  for (const LrDecay decay : {LrDecay::kLinear, LrDecay::kCosine}) {
    for (const double least : {0.0, 1e-5, 0.1}) {
      const LrSchedule schedule(
          g.optimizer,
          {.lr = 0.3, .decay = decay, .warmup_steps = 2, .total_steps = 9, .min_lr = least});
      for (const int64_t s : {int64_t{9}, int64_t{10}, int64_t{1000}, int64_t{1} << 53}) {
        EXPECT_EQ(schedule.lr_at(s), least);
      }
    }
  }
}

TEST(LrSchedule, a_constant_rate_never_ends_and_needs_no_total) {
  Groups g;
  const LrSchedule schedule(g.optimizer, {.lr = 0.3, .warmup_steps = 2});
  for (const int64_t s : {1, 2, 3, 1'000'000}) EXPECT_EQ(schedule.lr_at(s), 0.3);
}

TEST(LrSchedule, step_goes_on_by_one_and_sets_all_groups) {
  Groups g;
  LrSchedule schedule(
      g.optimizer,
      {.lr = 0.8, .decay = LrDecay::kCosine, .warmup_steps = 3, .total_steps = 8, .min_lr = 0.01});
  for (int64_t s = 0; s < 12; ++s) {
    EXPECT_EQ(schedule.step_count(), s);
    EXPECT_EQ(g.rates(), both(schedule.lr_at(s)));
    schedule.step();
  }
}

TEST(LrSchedule, apply_sets_the_rate_again_without_going_on) {
  Groups g;
  LrSchedule schedule(g.optimizer, {.lr = 0.8, .warmup_steps = 4});
  schedule.step();
  g.optimizer.set_lr(0.125);
  schedule.apply();
  EXPECT_EQ(g.rates(), both(0.4));
  EXPECT_EQ(schedule.step_count(), 1);
}

TEST(LrSchedule, options_that_make_no_sense_are_refused_and_the_optimizer_keeps_its_rates) {
  Groups g;
  const auto before = snapshot(g.optimizer);
  const auto refused = [&](const LrScheduleOptions& options, std::string_view what) {
    const std::string message =
        message_of<ArgumentError>([&] { LrSchedule(g.optimizer, options); });
    expect_says(message, {what});
    EXPECT_EQ(snapshot(g.optimizer), before) << what;
    EXPECT_EQ(g.rates(), std::pair(0.5, 0.25));
  };
  constexpr LrDecay kLinear = LrDecay::kLinear, kCosine = LrDecay::kCosine;
  refused({.lr = -0.1}, "[LrSchedule] lr = -0.1");
  refused({.lr = kNan}, "[LrSchedule] lr = nan");
  refused({.lr = 0.1, .min_lr = 0.2}, "min_lr = 0.2");
  refused({.lr = 0.1, .min_lr = -0.01}, "min_lr = -0.01");
  refused({.lr = 0.1, .min_lr = kNan}, "min_lr = nan");
  refused({.warmup_steps = -1}, "warmup_steps = -1");
  refused({.decay = kLinear}, "total_steps = 0");
  refused({.decay = kCosine, .warmup_steps = 5, .total_steps = 5}, "total_steps = 5");
  refused({.decay = kLinear, .warmup_steps = 5, .total_steps = 4}, "warmup_steps = 5");
  refused({.decay = kCosine, .total_steps = -3}, "total_steps = -3");
  // What only the optimizer can judge.
  refused({.lr = HUGE_VAL}, "[AdamW] lr = inf");
  refused({.lr = 1e39}, "[AdamW] lr = 1e+39");
}

TEST(LrSchedule, a_rate_that_the_last_group_refuses_is_taken_by_none) {
  AdamW optimizer(std::vector<optim::AdamWGroup>{
      {{make_parameter("a", {1.0f})}, {.lr = 0.5, .weight_decay = 0.0}},
      {{make_parameter("b", {1.0f})}, {.lr = 0.25, .weight_decay = 1e20}}});
  message_of<ArgumentError>([&] { LrSchedule(optimizer, {.lr = 1e30}); });
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.25);
}

TEST(LrSchedule, the_smallest_options_that_make_sense_are_taken) {
  SGD optimizer({make_parameter("w", {1.0f})});
  EXPECT_NO_THROW(LrSchedule(optimizer, {.lr = 0.0}));
  EXPECT_EQ(optimizer.lr(), 0.0);
  EXPECT_NO_THROW(LrSchedule(
      optimizer, {.lr = 0.1, .decay = LrDecay::kLinear, .total_steps = 1, .min_lr = 0.1}));
  EXPECT_EQ(optimizer.lr(), 0.1);
  EXPECT_NO_THROW(LrSchedule(optimizer, {.total_steps = -1})) << "a constant rate has no total";
}

TEST(LrScheduleState, the_step_is_saved_and_the_options_are_not) {
  SGD a({make_parameter("w", {1.0f})}), b({make_parameter("w", {1.0f})});
  LrSchedule saved(a, {.lr = 0.1, .warmup_steps = 4});
  for (int i = 0; i < 3; ++i) saved.step();
  const StateDict state = saved.state_dict();
  EXPECT_EQ(state.numbers, (std::map<std::string, double>{{"step", 3.0}}));
  EXPECT_TRUE(state.tensors.empty());

  LrSchedule longer(b, {.lr = 0.4, .warmup_steps = 8});
  longer.prepare_load(state)();
  EXPECT_EQ(longer.step_count(), 3);
  EXPECT_EQ(b.lr(), 0.05) << "a load leaves the optimizer alone";
  longer.apply();
  EXPECT_EQ(b.lr(), 0.2);
}

TEST(LrScheduleState, a_bad_state_is_refused_and_changes_nothing) {
  SGD optimizer({make_parameter("w", {1.0f})});
  LrSchedule schedule(optimizer, {.lr = 0.1, .warmup_steps = 4});
  schedule.step();
  const auto refused = [&](const StateDict& state, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { schedule.prepare_load(state); }),
                {"[LrSchedule.load] ", what});
    EXPECT_EQ(schedule.step_count(), 1);
    EXPECT_EQ(optimizer.lr(), 0.05);
  };
  for (const double bad : {-1.0, 0.5, kNan, HUGE_VAL}) {
    refused({.tensors = {}, .numbers = {{"step", bad}}}, "step = ");
  }
  refused({}, "step is missing");
  refused({.tensors = {}, .numbers = {{"step", 1.0}, {"lr", 0.1}}}, "lr is unknown");
}

}  // namespace
}  // namespace halfstep
