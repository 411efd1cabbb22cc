// What keeps a long run of amp_demo healthy, seen from outside: the learning rate's schedule, the
// alarm, and warnings.
#include <numbers>

#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

class Schedule : public Demo {
 protected:
  std::vector<double> rates(const Words& arguments) const {
    std::vector<double> values;
    for (const Row& row : log(arguments).rows) values.push_back(row.number(1));
    return values;
  }
};

/// The rate of the s-th step that counts: warm-up of 5 to 0.02, then `left` of the way to `low`.
template <class Left>
double rate(int s, double low, Left left) {
  if (s < 5) return 0.02 * (s + 1) / 5;
  return low + (0.02 - low) * left((s - 5) / 15.0);
}

double linear(double f) { return 1.0 - f; }
double cosine(double f) { return 0.5 * (1.0 + std::cos(std::numbers::pi * f)); }
double constant(double) { return 1.0; }

TEST_F(Schedule, is_the_formula_in_every_row_and_skips_do_not_advance_it_unless_told_so) {
  const struct {
    Words arguments;
    double (*left)(double);
    double low;
  } cases[] = {
      {{"--decay", "linear"}, linear, 0.0},
      {{"--decay", "linear", "--min-lr", "0.004"}, linear, 0.004},
      {{"--decay", "cosine"}, cosine, 0.0},
      {{"--decay", "cosine", "--min-lr", "0.004"}, cosine, 0.004},
      {{"--decay", "constant"}, constant, 0.0},
      {{}, constant, 0.0},
  };
  for (const auto& [arguments, left, low] : cases) {
    for (const bool advances : {false, true}) {
      Words all = arguments;
      all.insert(all.end(), {"--lr", "0.02", "--warmup", "5", "--inject", "inf-grad@2", "--inject",
                             "inf-loss@9-10"});
      if (advances) all.emplace_back("--advance-on-skip");
      const std::vector<double> values = rates(all);
      ASSERT_EQ(values.size(), 20u);
      for (int step = 0, counted = 0; step < 20; ++step) {
        EXPECT_NEAR(values[static_cast<size_t>(step)], rate(counted, low, left), 1e-17) << step;
        const bool skipped = step == 2 || step == 9 || step == 10;
        counted += !skipped || advances ? 1 : 0;
      }
    }
  }
}

TEST_F(Schedule, spans_all_epochs_and_is_told_in_the_heading) {
  const Result result = log({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "2", "--decay", "linear",
                             "--warmup", "10", "--lr", "0.01", "--min-lr", "0.001"});
  ASSERT_EQ(result.rows.size(), 180u);
  EXPECT_NEAR(result.rows[9].number(1), 0.01, 1e-17);
  EXPECT_NEAR(result.rows[95].number(1), 0.0055, 1e-17);
  EXPECT_NEAR(result.rows[179].number(1), 0.001 + 0.009 / 170, 1e-17);
  EXPECT_EQ(result.lines("lr: warm-up of 10 steps, then linear decay to 0.001").size(), 1u);
}

TEST_F(Schedule, that_cannot_be_is_refused) {
  expect_complaint(run({"--decay", "cosine", "--warmup", "20"}), 2, "--warmup 20");
  expect_complaint(run({"--decay", "step"}), 2, "--decay 'step'");
  expect_complaint(run({"--min-lr", "0.02"}), 2, "min-lr <= lr");
  expect_complaint(run({"--warmup", "-1"}), 2, "--warmup '-1'");
  EXPECT_EQ(run({"--warmup", "100"}).status, 0) << "a run that ends in its warm-up";
}

class Alarm : public Demo {
 protected:
  /// The last step, and the message, of a run that the alarm ends.
  void expect_alarm(const Words& arguments, int64_t last_step, const std::string& message) const {
    Words all{"--csv", path("log.csv")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Result result = run(all);
    expect_complaint(result, 3, message);
    const std::vector<Row> rows = read_log(path("log.csv"));
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows.back().fields[0], std::to_string(last_step));
    EXPECT_EQ(result.summary("steps "), (std::vector<int64_t>{last_step + 1}));
  }
};

TEST_F(Alarm, ends_the_run_at_the_step_and_says_rate_window_threshold_and_reasons) {
  // From step 3 on the rate is 1/4, 2/5, ...
  expect_alarm({"--steps", "300", "--inject", "inf-loss@3-200", "--max-skip-rate", "0.05",
                "--alert-after", "7"},
               9,
               "amp_demo: skip rate 0.7 over the last 10 steps, above 0.05 for 7 steps in a row; "
               "skipped for 0 non_finite_grad and 7 non_finite_loss\n");
  // 3/6 at step 5 is not more than a half; 4/7 is.
  expect_alarm({"--steps", "300", "--inject", "inf-loss@3-4", "--inject", "inf-grad@5-200",
                "--max-skip-rate", "0.5", "--alert-after", "2"},
               7,
               "skip rate 0.625 over the last 8 steps, above 0.5 for 2 steps in a row; "
               "skipped for 3 non_finite_grad and 2 non_finite_loss");
  expect_alarm({"--max-skip-rate", "0", "--alert-after", "1"}, 5, "over the last 6 steps, above 0");
  expect_alarm({"--max-skip-rate", "0", "--alert-after", "1", "--inject", "nan-input@19"}, 19, "");
}

TEST_F(Alarm, looks_back_on_1000_steps) {
  expect_alarm({"--steps", "1100", "--quiet", "--inject", "inf-loss@1050-1099", "--max-skip-rate",
                "0.01", "--alert-after", "3", "--max-skips-in-a-row", "50"},
               1062, "skip rate 0.013 over the last 1000 steps, above 0.01 for 3 steps in a row");
  // What lies 1,000 steps back no longer counts: 11 skips are too many until step 1000 comes.
  const Words old{
      "--quiet", "--inject", "inf-loss@0-10", "--max-skip-rate", "0.01", "--max-skips-in-a-row",
      "50"};
  Words just_enough = old, too_many = old;
  just_enough.insert(just_enough.end(), {"--steps", "1100", "--alert-after", "1001"});
  too_many.insert(too_many.end(), {"--steps", "1100", "--alert-after", "1000"});
  EXPECT_EQ(run(just_enough).status, 0);
  expect_alarm(too_many, 999, "skip rate 0.011 over the last 1000 steps");
}

TEST_F(Alarm, is_never_raised_by_default_and_saves_the_checkpoint_when_it_is) {
  EXPECT_EQ(run({"--inject", "inf-loss@0-19", "--max-skips-in-a-row", "30"}).status, 0);
  expect_alarm({"--max-skip-rate", "0", "--alert-after", "2", "--checkpoint", path("run.ckpt")}, 6,
               "for 2 steps in a row");
  const Result result = run({"--resume", path("run.ckpt"), "--max-skip-rate", "1"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_log(path("log.csv")).size(), 20u);
}

TEST_F(Alarm, does_not_count_the_skips_by_which_the_first_scale_falls) {
  const Words start{"--fp16",  "--init-scale",    "1e30", "--steps",       "200",
                    "--quiet", "--max-skip-rate", "0",    "--alert-after", "1"};
  Words calm = start;
  calm.insert(calm.end(), {"--inject", "none"});
  const Result result = log(calm);
  const int64_t calibration = result.summary("calibration ").at(0);
  EXPECT_GT(calibration, 50);
  EXPECT_EQ(result.summary("skips "), (std::vector<int64_t>{calibration, 0, calibration}));
  EXPECT_FALSE(result.rows[static_cast<size_t>(calibration)].skipped());

  Words faulty = start;
  faulty.insert(faulty.end(), {"--inject", "inf-grad@150"});
  const int64_t steps = 151 - calibration;
  expect_alarm(faulty, 150,
               cat("skip rate ", 1.0 / static_cast<double>(steps), " over the last ", steps,
                   " steps, above 0 for 1 steps in a row; skipped for 1 non_finite_grad"));
  EXPECT_EQ(log({"--inject", "none"}).lines("calibration").size(), 0u);
}

TEST_F(Alarm, skips_per_epoch_are_in_the_summary_of_a_run_with_data) {
  const Result result = log({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "4", "--batch", "500",
                             "--inject", "inf-loss@1", "--inject", "inf-grad@3-4", "--fp32"});
  ASSERT_EQ(result.rows.size(), 12u) << "3 steps per epoch";
  EXPECT_EQ(result.lines("skips/epoch"),
            (Words{"skips/epoch  0.7500 on the mean, at most 2 (epoch 1)"}));
}

size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Alarm, warnings_come_once_each_on_stderr) {
  const Result skips = run({"--fp16", "--steps", "60", "--inject", "inf-grad@0-20", "--inject",
                            "inf-grad@30-50", "--init-scale", "16"});
  EXPECT_EQ(skips.status, 0);
  EXPECT_EQ(count(skips.err, "the floor"), 1u) << skips.err;
  EXPECT_EQ(count(skips.err, "11 steps in a row were skipped"), 1u) << skips.err;
  EXPECT_EQ(count(skips.err, "\n"), 2u) << skips.err;
  EXPECT_EQ(count(skips.out, "warning"), 0u);

  const Result clips = run({"--steps", "300", "--max-norm", "0.001", "--quiet"});
  EXPECT_EQ(count(clips.err, "clipping at every step"), 1u) << clips.err;
  EXPECT_EQ(count(clips.err, "\n"), 1u) << clips.err;
  EXPECT_EQ(run({"--steps", "300", "--max-norm", "10", "--quiet"}).err, "");
}

TEST_F(Alarm, how_many_skips_in_a_row_are_warned_of_can_be_set) {
  EXPECT_EQ(run({"--inject", "inf-grad@5-14"}).err, "");
  EXPECT_EQ(count(run({"--inject", "inf-grad@5-15"}).err, "11 steps in a row"), 1u);
  EXPECT_EQ(
      count(run({"--inject", "inf-grad@5-8", "--max-skips-in-a-row", "3"}).err, "4 steps in a row"),
      1u);
  EXPECT_EQ(run({"--inject", "inf-grad@5-15", "--max-skips-in-a-row", "11"}).err, "");
}

}  // namespace
}  // namespace halfstep::demo
