// amp_demo as a person runs it: the lesson's run in every precision, its exercises, the scaler.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

class EveryPrecision : public Demo, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Demo, EveryPrecision, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(EveryPrecision, the_injected_inf_at_step_5_is_the_only_skip) {
  for (const char* seed : {"0", "1", "2", "3", "18446744073709551615"}) {
    const Result result = log({"--precision", GetParam(), "--seed", seed});
    EXPECT_EQ(result.lines("STEP").size(), 19u);
    ASSERT_EQ(result.lines("SKIP").size(), 1u) << "seed " << seed;
    const std::string skip = result.lines("SKIP")[0];
    EXPECT_TRUE(skip.starts_with("SKIP     5 ")) << skip;
    EXPECT_TRUE(skip.ends_with("  non_finite_grad 0.weight[0]=inf")) << skip;
    EXPECT_EQ(result.summary("steps "), (std::vector<int64_t>{20}));
    EXPECT_EQ(result.summary("skips "), (std::vector<int64_t>{1, 1, 0}));
    ASSERT_EQ(result.rows.size(), 20u);
    const auto clipped = std::ranges::count_if(
        result.rows, [](const Row& row) { return !row.skipped() && row.pre() > 1.0; });
    EXPECT_EQ(result.summary("clipped "), (std::vector<int64_t>{clipped, 19}));
  }
}

TEST_P(EveryPrecision, rows_stand_in_columns_within_100_characters) {
  const Result result = run({"--precision", GetParam(), "--inject", "inf-grad@5", "--inject",
                             "target-spike@7:1e8", "--inject", "target-spike@9:1e38"});
  size_t width = 0;
  for (const std::string& line : split(result.out, '\n')) EXPECT_LE(line.size(), 100u) << line;
  for (const std::string& line : result.lines("STEP")) {
    EXPECT_EQ(line.size(), width == 0 ? width = line.size() : width) << line;
  }
  for (const std::string& line : result.lines("SKIP")) {
    EXPECT_EQ(line.find("  non_finite_"), width) << line;
  }
  EXPECT_EQ(result.lines("tag")[0].size(), width);
}

TEST_P(EveryPrecision, the_csv_is_the_canonical_one) {
  const Result result = log({"--precision", GetParam()});
  const std::string text = read_file(path("log.csv"));
  EXPECT_TRUE(text.starts_with(
      "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale\n"));
  EXPECT_TRUE(text.ends_with('\n'));
  ASSERT_EQ(result.rows.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    const Row& row = result.rows[i];
    ASSERT_EQ(row.fields.size(), 8u);
    EXPECT_EQ(row.fields[0], std::to_string(i));
    EXPECT_EQ(row.fields[1], "0.01");
    EXPECT_TRUE(std::isfinite(row.loss()));
    EXPECT_EQ(row.skipped(), i == 5);
    if (i == 5) {
      EXPECT_EQ(row.fields[2], "inf");
      EXPECT_EQ(row.fields[3], "");
      EXPECT_EQ(row.reason(), "non_finite_grad");
    } else {
      EXPECT_NEAR(row.post(), std::min(row.pre(), 1.0), 1e-12);
      EXPECT_EQ(row.reason(), "");
    }
  }
}

TEST_P(EveryPrecision, a_skip_halves_the_scale_where_the_scaler_is_on_and_it_is_1_elsewhere) {
  const Result result = log({"--precision", GetParam()});
  const bool is_on = std::string_view(GetParam()) == "fp16";
  for (size_t i = 0; i < result.rows.size(); ++i) {
    EXPECT_EQ(result.rows[i].scale(), !is_on ? 1.0 : i <= 5 ? 65536.0 : 32768.0) << i;
  }
  EXPECT_EQ(result.summary("final scale").at(0), is_on ? 32768 : 1);
}

TEST_P(EveryPrecision, max_norm_inf_never_clips) {
  const Result result = log({"--precision", GetParam(), "--max-norm", "inf"});
  EXPECT_EQ(result.summary("clipped "), (std::vector<int64_t>{0, 19}));
  for (const Row& row : result.rows) {
    if (!row.skipped()) {
      EXPECT_EQ(row.fields[2], row.fields[3]);
    }
  }
}

TEST_P(EveryPrecision, a_target_spike_is_skipped_in_fp16_and_clipped_elsewhere) {
  const Result result =
      log({"--precision", GetParam(), "--inject", "target-spike@7:1e8", "--max-norm", "0.5"});
  const Row& row = result.rows.at(7);
  if (std::string_view(GetParam()) == "fp16") {
    EXPECT_TRUE(result.lines("SKIP").at(0).starts_with("SKIP     7 "));
    EXPECT_EQ(row.reason(), "non_finite_grad");
    EXPECT_EQ(result.summary("skips "), (std::vector<int64_t>{1, 1, 0}));
  } else {
    EXPECT_EQ(result.lines("STEP").size(), 20u);
    EXPECT_FALSE(row.skipped());
    EXPECT_GT(row.pre(), 1e6);
    EXPECT_NEAR(row.post(), 0.5, 1e-9);
    EXPECT_EQ(result.summary("skips "), (std::vector<int64_t>{0, 0, 0}));
  }
}

TEST_P(EveryPrecision, the_loss_falls) {
  const Result result = log({"--precision", GetParam(), "--steps", "200", "--inject", "none"});
  const auto mean_loss = [&](size_t begin) {
    double sum = 0.0;
    for (size_t i = begin; i < begin + 10; ++i) sum += result.rows.at(i).loss();
    return sum / 10;
  };
  EXPECT_LT(mean_loss(10), 0.8 * mean_loss(0));
  EXPECT_LT(mean_loss(190), 0.1 * mean_loss(0));
}

TEST_P(EveryPrecision, the_same_seed_gives_the_same_log_and_another_seed_another) {
  const auto csv = [&](const char* seed) {
    log({"--precision", GetParam(), "--seed", seed});
    return read_file(path("log.csv"));
  };
  const std::string first = csv("7");
  EXPECT_EQ(csv("7"), first);
  EXPECT_NE(csv("8"), first);
}

TEST_F(Demo, bf16_is_the_default_and_precisions_have_short_names) {
  EXPECT_EQ(run({}).out, run({"--precision", "bf16"}).out);
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    EXPECT_EQ(run({"--" + precision}).out, run({"--precision=" + precision}).out);
  }
  EXPECT_NE(run({"--fp16"}).lines("STEP"), run({"--fp32"}).lines("STEP"));
}

TEST_F(Demo, batch_lr_and_max_norm_change_the_run) {
  const Words rows = run({}).lines("STEP");
  EXPECT_EQ(run({"--batch", "8", "--lr", "1e-2", "--max-norm", "1"}).lines("STEP"), rows);
  EXPECT_NE(run({"--batch", "7"}).lines("STEP"), rows);
  EXPECT_NE(run({"--lr", "0.02"}).lines("STEP"), rows);
  EXPECT_NE(run({"--max-norm", "0.9"}).lines("STEP"), rows);
}

TEST_F(Demo, inject_replaces_the_default_repeats_and_none_is_nothing) {
  const auto skipped_steps = [&](const Words& arguments) {
    Words steps;
    for (const std::string& line : log(arguments).lines("SKIP")) {
      steps.push_back(line.substr(5, 5));
    }
    return steps;
  };
  EXPECT_EQ(skipped_steps({"--inject", "none"}), Words{});
  EXPECT_EQ(skipped_steps({"--inject", "inf-grad@3"}), Words{"    3"});
  EXPECT_EQ(skipped_steps({"--inject", "inf-grad@3", "--inject=inf-grad@19"}),
            (Words{"    3", "   19"}));
  EXPECT_EQ(skipped_steps({"--steps", "3"}), Words{}) << "the default lies beyond the end";
}

TEST_F(Demo, a_loss_that_is_not_finite_is_a_skip_of_its_own_kind) {
  const Result result = log({"--inject", "target-spike@2:1e38"});
  const Row& row = result.rows.at(2);
  EXPECT_EQ(row.reason(), "non_finite_loss");
  EXPECT_EQ(row.fields[2] + row.fields[3], "");
  EXPECT_EQ(row.fields[4], "inf");
  EXPECT_TRUE(result.lines("SKIP").at(0).ends_with("  non_finite_loss"));
}

TEST_F(Demo, the_scale_climbs_in_powers_of_two_until_it_saturates_and_oscillates) {
  const Result result = log({"--growth-interval", "2", "--steps", "200", "--precision", "fp16"});
  size_t first_overflow = 0;
  int rises = 0, falls = 0;
  for (size_t i = 1; i < result.rows.size(); ++i) {
    const Row& before = result.rows[i - 1];
    const double ratio = result.rows[i].scale() / before.scale();
    EXPECT_TRUE(ratio == 1.0 || ratio == 2.0 || ratio == 0.5) << i;
    EXPECT_EQ(ratio == 0.5, before.skipped()) << i;
    rises += ratio == 2.0 ? 1 : 0;
    falls += ratio == 0.5 ? 1 : 0;
    if (before.skipped() && i - 1 != 5 && first_overflow == 0) first_overflow = i - 1;
  }
  ASSERT_GT(first_overflow, 0u);
  EXPECT_GE(result.rows[first_overflow].scale(), 2 * 65536.0) << "it climbed first";
  EXPECT_GE(rises, 10);
  EXPECT_GE(falls, 10);
  const std::vector<int64_t> skips = result.summary("skips ");
  EXPECT_EQ(skips.at(0), falls + (result.rows.back().skipped() ? 1 : 0));
  EXPECT_EQ(skips.at(1), 1);
  EXPECT_EQ(skips.at(2), skips.at(0) - 1) << "those of overflow, without the injected one";

  EXPECT_EQ(log({"--growth-interval", "2", "--steps", "200"}).summary("skips "),
            (std::vector<int64_t>{1, 1, 0}))
      << "bf16 for comparison";
}

TEST_F(Demo, scaler_settings_reach_the_scaler) {
  const auto scales = [&](Words arguments) {
    arguments.insert(arguments.end(), {"--fp16", "--steps", "4", "--inject", "inf-grad@2"});
    std::vector<double> values;
    for (const Row& row : log(arguments).rows) values.push_back(row.scale());
    return values;
  };
  using Scales = std::vector<double>;
  EXPECT_EQ(scales({"--init-scale", "1024"}), (Scales{1024, 1024, 1024, 512}));
  EXPECT_EQ(scales({"--init-scale", "1024", "--growth-interval", "1", "--growth-factor", "4"}),
            (Scales{1024, 4096, 16384, 8192}));
  EXPECT_EQ(scales({"--init-scale", "1024", "--backoff-factor", "0.25"}),
            (Scales{1024, 1024, 1024, 256}));
  EXPECT_EQ(scales({"--init-scale", "1024", "--min-scale", "1000"}),
            (Scales{1024, 1024, 1024, 1000}));
  EXPECT_EQ(scales({"--init-scale", "1024", "--growth-interval", "1", "--max-scale", "2048"}),
            (Scales{1024, 2048, 2048, 1024}));
}

TEST_F(Demo, the_defaults_take_less_than_50_ms_of_cpu_time) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a statement about optimised builds";
#endif
  double best = 1.0;
  for (int i = 0; i < 5; ++i) best = std::min(best, run({}).cpu_seconds);
  EXPECT_LT(best, 0.050);
}

}  // namespace
}  // namespace halfstep::demo
