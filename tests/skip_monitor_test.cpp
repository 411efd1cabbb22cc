// SkipMonitor: what counts as a skip, the window it looks back on, when exactly it raises the alarm
// and when it warns, and that a saved one goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::SkipLog;
using amp::SkipMonitor;
using amp::SkipMonitorOptions;
using amp::SkipReason;
using amp::StepLog;
using test::expect_says;
using test::message_of;
using test::WarningCollector;

constexpr double kScale = 1024.0;

void taken(SkipMonitor& monitor, int64_t count = 1) {
  for (int64_t i = 0; i < count; ++i) monitor.add(StepLog{0, 0.1, 0.5, 0.5, 1.0f, kScale}, kScale);
}
void clipped(SkipMonitor& monitor, int64_t count = 1) {
  for (int64_t i = 0; i < count; ++i) monitor.add(StepLog{0, 0.1, 9.0, 1.0, 1.0f, kScale}, kScale);
}
void skipped(SkipMonitor& monitor, int64_t count = 1,
             SkipReason reason = SkipReason::kNonFiniteGrad, double scale_after = kScale / 2.0) {
  for (int64_t i = 0; i < count; ++i) {
    monitor.add(SkipLog{0, 0.1, HUGE_VAL, 1.0f, reason, kScale, "w", 0, HUGE_VALF}, scale_after);
  }
}

TEST(SkipMonitor, the_rate_is_skips_over_steps) {
  SkipMonitor monitor;
  EXPECT_EQ(monitor.rate(), 0.0);
  EXPECT_EQ(monitor.window(), 0);
  taken(monitor, 3);
  EXPECT_EQ(monitor.rate(), 0.0);
  skipped(monitor);
  EXPECT_EQ(monitor.rate(), 0.25);
  skipped(monitor, 1, SkipReason::kNonFiniteLoss, kScale);
  EXPECT_EQ(monitor.rate(), 0.4);
  clipped(monitor, 5);
  EXPECT_EQ(monitor.rate(), 0.2) << "a clipped step is no skip";
  EXPECT_EQ(monitor.window(), 10);
}

TEST(SkipMonitor, the_window_is_the_last_1000_steps) {
  SkipMonitor monitor;
  taken(monitor);
  skipped(monitor, 4);
  taken(monitor, 995);
  EXPECT_EQ(monitor.window(), 1000);
  EXPECT_EQ(monitor.rate(), 0.004);
  taken(monitor);
  EXPECT_EQ(monitor.rate(), 0.004) << "a taken step has left";
  for (const double rate : {0.003, 0.002, 0.001, 0.0, 0.0}) {
    taken(monitor);
    EXPECT_EQ(monitor.rate(), rate);
    EXPECT_EQ(monitor.window(), 1000);
  }
  skipped(monitor, 10);
  EXPECT_EQ(monitor.rate(), 0.01);
  taken(monitor, 990);
  EXPECT_EQ(monitor.rate(), 0.01);
  skipped(monitor);
  EXPECT_EQ(monitor.rate(), 0.01) << "one comes, one goes";
}

TEST(SkipMonitor, the_alarm_is_raised_by_the_last_of_alert_after_steps_above_the_limit) {
  SkipMonitor monitor({.max_skip_rate = 0.5, .alert_after = 3});
  taken(monitor, 2);
  skipped(monitor, 2);
  EXPECT_EQ(monitor.rate(), 0.5);
  for (const bool alarm : {false, false, true, true}) {
    skipped(monitor);
    EXPECT_EQ(monitor.alarm(), alarm);
  }
  taken(monitor, 3);
  EXPECT_TRUE(monitor.alarm()) << "6 of 11 is still above";
  taken(monitor);
  EXPECT_EQ(monitor.rate(), 0.5);
  EXPECT_FALSE(monitor.alarm());
  skipped(monitor, 2);
  EXPECT_FALSE(monitor.alarm()) << "counting starts again";
  skipped(monitor);
  EXPECT_TRUE(monitor.alarm());
}

TEST(SkipMonitor, taken_steps_count_too_while_the_rate_is_above) {
  SkipMonitor monitor({.max_skip_rate = 0.05, .alert_after = 100});
  const WarningCollector warnings;  // of 11 skips in a row
  taken(monitor, 100);
  skipped(monitor, 11);  // 11 of 111; above 5 % from the sixth skip, at step 106, to step 219
  taken(monitor, 93);    // step 205 is the 100th above
  EXPECT_FALSE(monitor.alarm());
  taken(monitor);
  EXPECT_TRUE(monitor.alarm());
  taken(monitor, 14);
  EXPECT_TRUE(monitor.alarm()) << "11 of 219";
  taken(monitor);
  EXPECT_FALSE(monitor.alarm()) << "11 of 220 are 5 %";
}

TEST(SkipMonitor, a_limit_of_0_is_passed_by_any_skip_and_one_of_1_by_none) {
  SkipMonitor never({.max_skip_rate = 1.0, .alert_after = 1}),
      any({.max_skip_rate = 0.0, .alert_after = 1});
  taken(any);
  EXPECT_FALSE(any.alarm());
  skipped(any);
  EXPECT_TRUE(any.alarm());
  const WarningCollector warnings;
  skipped(never, 50, SkipReason::kNonFiniteLoss);
  EXPECT_EQ(never.rate(), 1.0);
  EXPECT_FALSE(never.alarm());
}

TEST(SkipMonitor, calibration_is_no_skip_and_no_step) {
  SkipMonitor monitor;
  skipped(monitor, 15);
  EXPECT_EQ(monitor.calibration_skips(), 15);
  EXPECT_EQ(monitor.window(), 0);
  EXPECT_EQ(monitor.rate(), 0.0);
  EXPECT_EQ(monitor.skips_in_a_row(), 0);
  taken(monitor);
  skipped(monitor);
  EXPECT_EQ(monitor.calibration_skips(), 15) << "it ends with the first step that is taken";
  EXPECT_EQ(monitor.rate(), 0.5);
  EXPECT_EQ(monitor.skips_in_a_row(), 1);
}

TEST(SkipMonitor, more_than_128_falls_of_the_scale_are_no_calibration) {
  SkipMonitor monitor;
  skipped(monitor, 128);
  EXPECT_EQ(monitor.calibration_skips(), 128);
  EXPECT_EQ(monitor.window(), 0);
  skipped(monitor, 2);
  EXPECT_EQ(monitor.calibration_skips(), 128);
  EXPECT_EQ(monitor.rate(), 1.0);
}

TEST(SkipMonitor, a_skip_at_which_the_scale_did_not_fall_is_no_calibration) {
  SkipMonitor monitor;
  skipped(monitor, 1, SkipReason::kNonFiniteGrad, kScale);  // at the floor, or disabled
  EXPECT_EQ(monitor.calibration_skips(), 0);
  EXPECT_EQ(monitor.window(), 1);
  EXPECT_EQ(monitor.rate(), 1.0);
  skipped(monitor);
  EXPECT_EQ(monitor.calibration_skips(), 1) << "no step was taken yet";
  EXPECT_EQ(monitor.window(), 1);
}

TEST(SkipMonitor, a_non_finite_loss_is_no_calibration) {
  SkipMonitor monitor;
  skipped(monitor, 1, SkipReason::kNonFiniteLoss, kScale / 2.0);
  EXPECT_EQ(monitor.calibration_skips(), 0);
  EXPECT_EQ(monitor.rate(), 1.0);
}

TEST(SkipMonitor, a_clipped_step_ends_calibration_too) {
  SkipMonitor monitor;
  clipped(monitor);
  skipped(monitor);
  EXPECT_EQ(monitor.calibration_skips(), 0);
}

TEST(SkipMonitor, skips_in_a_row_are_warned_of_once_by_the_first_one_too_many) {
  SkipMonitor monitor({.most_skips_in_a_row = 3});
  const WarningCollector warnings;
  taken(monitor);
  skipped(monitor, 3);
  taken(monitor);
  EXPECT_EQ(monitor.skips_in_a_row(), 0);
  skipped(monitor, 3);
  EXPECT_TRUE(warnings.messages.empty());
  skipped(monitor, 1, SkipReason::kNonFiniteLoss);
  ASSERT_EQ(warnings.messages.size(), 1u);
  expect_says(warnings.messages[0], {"[SkipMonitor] 4 steps in a row"});
  EXPECT_EQ(monitor.skips_in_a_row(), 4);
  skipped(monitor, 20);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(SkipMonitor, clipping_is_warned_of_once_by_the_96th_of_the_last_100_steps) {
  SkipMonitor monitor;
  const WarningCollector warnings;
  clipped(monitor, 95);
  taken(monitor, 5);
  EXPECT_TRUE(warnings.messages.empty());
  clipped(monitor, 95);
  EXPECT_TRUE(warnings.messages.empty()) << "95 of 100";
  clipped(monitor);
  ASSERT_EQ(warnings.messages.size(), 1u) << "96 of 100";
  expect_says(warnings.messages[0], {"[SkipMonitor] ", "95 of the last 100"});
  clipped(monitor, 200);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(SkipMonitor, clipping_is_not_judged_before_100_steps) {
  SkipMonitor monitor;
  const WarningCollector warnings;
  clipped(monitor, 99);
  EXPECT_TRUE(warnings.messages.empty());
  clipped(monitor);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(SkipMonitor, the_oldest_of_the_100_steps_counts_and_the_one_before_does_not) {
  SkipMonitor monitor, later;
  const WarningCollector warnings;
  clipped(later, 2);
  taken(later, 5);
  clipped(later, 94);  // 95 of the last 100, and the one before
  EXPECT_TRUE(warnings.messages.empty());
  clipped(monitor);
  taken(monitor, 4);
  clipped(monitor, 94);
  EXPECT_TRUE(warnings.messages.empty()) << "99 steps";
  clipped(monitor);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(SkipMonitor, the_clip_window_slides_over_the_end_of_the_ring) {
  SkipMonitor monitor;
  const WarningCollector warnings;
  taken(monitor, 950);
  clipped(monitor, 95);
  EXPECT_TRUE(warnings.messages.empty());
  clipped(monitor);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(SkipMonitor, describes_itself_in_one_line) {
  SkipMonitor monitor({.max_skip_rate = 0.25, .alert_after = 2});
  skipped(monitor, 1, SkipReason::kNonFiniteLoss);
  taken(monitor, 4);
  skipped(monitor, 3);
  EXPECT_EQ(monitor.describe(),
            "skip rate 0.5 over the last 8 steps, above 0.25 for 3 steps in a row; skipped for 3 "
            "non_finite_grad and 1 non_finite_loss");
  taken(monitor, 1000);
  expect_says(monitor.describe(), {"rate 0 over the last 1000 ", " for 0 non_finite_grad and 0 "});
}

TEST(SkipMonitor, options_outside_their_range_are_refused) {
  const auto refused = [](const SkipMonitorOptions& options, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { SkipMonitor{options}; }), {"[SkipMonitor] ", what});
  };
  refused({.max_skip_rate = -0.1}, "max_skip_rate = -0.1");
  refused({.max_skip_rate = 1.5}, "max_skip_rate = 1.5");
  refused({.max_skip_rate = std::nan("")}, "max_skip_rate = nan");
  refused({.alert_after = 0}, "alert_after = 0");
  refused({.most_skips_in_a_row = 0}, "most_skips_in_a_row = 0");
}

}  // namespace
}  // namespace halfstep
