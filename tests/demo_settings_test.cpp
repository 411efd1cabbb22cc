// Settings of amp_demo that change what a run does, seen in its log: faults, clipping, the
// optimizer, no safety belts, the column to learn; and the exit status of each way to end.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

using Steps = std::vector<int64_t>;

class Faults : public Demo {
 protected:
  /// The steps that were skipped for `reason`.
  static Steps skipped(const Result& result, std::string_view reason) {
    Steps steps;
    for (const Row& row : result.rows) {
      if (row.reason() == reason) steps.push_back(parse_integer(row.fields[0]).value());
    }
    return steps;
  }
};

TEST_F(Faults, act_at_their_step_or_at_all_steps_of_a_range) {
  const Result result = log({"--inject", "inf-grad@2", "--inject", "nan-grad@4-6", "--inject",
                             "inf-loss@9-10", "--inject", "nan-input@13", "--fp32"});
  EXPECT_EQ(skipped(result, "non_finite_grad"), (Steps{2, 4, 5, 6}));
  EXPECT_EQ(skipped(result, "non_finite_loss"), (Steps{9, 10, 13}));
  EXPECT_EQ(result.summary("skips "), (Steps{7, 7, 0}));
  EXPECT_EQ(result.rows[2].fields[2], "inf");
  EXPECT_EQ(result.rows[4].fields[2], "nan");
  EXPECT_EQ(result.rows[9].fields[4], "inf");
  EXPECT_EQ(result.rows[13].fields[4], "nan");
  EXPECT_EQ(
      skipped(log({"--inject", "inf-grad@0-19", "--max-skips-in-a-row", "20"}), "non_finite_grad")
          .size(),
      20u);
}

TEST_F(Faults, go_into_the_parameter_that_is_named) {
  for (const std::string name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
    const Words lines = log({"--inject", "inf-grad@3:" + name}).lines("SKIP");
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(lines[0].ends_with("non_finite_grad " + name + "[0]=inf")) << lines[0];
  }
  const Result wrong = run({"--inject", "nan-grad@3:1.weight", "--csv", path("wrong.csv")});
  expect_complaint(wrong, 2, "the parameters are 0.weight 0.bias 2.weight 2.bias");
  expect_complaint(wrong, 2, "'nan-grad@3:1.weight'");
  EXPECT_FALSE(std::filesystem::exists(path("wrong.csv")));
}

TEST_F(Faults, multiply_targets_and_leave_all_other_steps_alone) {
  const Result calm = log({"--inject", "none", "--fp32"});
  const Result spiked = log({"--inject", "target-spike@7:1000", "--fp32"});
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(spiked.rows[i].fields, calm.rows[i].fields) << i;
  EXPECT_GT(spiked.rows[7].loss(), 1000 * calm.rows[7].loss());
  EXPECT_LT(spiked.rows[8].loss(), 3.0);
  EXPECT_EQ(log({"--inject", "target-spike@7:1", "--fp32"}).rows[7].fields, calm.rows[7].fields);
  // Two of them at one step act both.
  const Result twice =
      log({"--inject", "target-spike@7:10", "--inject", "target-spike@6-8:100", "--fp32"});
  EXPECT_NEAR(twice.rows[7].loss() / spiked.rows[7].loss(), 1.0, 0.01);
}

TEST_F(Faults, of_no_effect_on_the_parameters_leave_the_rest_of_the_run_as_it_is) {
  const auto rows_after = [&](const Words& arguments) {
    log(arguments);
    const std::string text = read_file(path("log.csv"));
    return text.substr(text.find("\n6,"));
  };
  // In fp32 a skipped step is one without an update, whatever the reason.
  EXPECT_EQ(rows_after({"--inject", "inf-grad@5", "--fp32"}),
            rows_after({"--inject", "inf-loss@5", "--fp32"}));
  EXPECT_EQ(rows_after({"--inject", "inf-grad@5", "--fp32"}),
            rows_after({"--inject", "nan-input@5", "--fp32"}));
}

TEST_F(Faults, whose_expected_effect_does_not_come_are_status_4_at_the_end_of_the_run) {
  const struct {
    Words arguments;
    std::string complaint;  // none: all is as expected
  } cases[] = {
      {{"--inject", "inf-grad@5=skip"}, ""},
      {{"--inject", "target-spike@7:1e8=step"}, ""},
      {{"--inject", "target-spike@7:1e8=skip", "--fp16"}, ""},
      {{"--inject", "inf-grad@5:2.bias=skip", "--inject", "inf-loss@3-4=skip"}, ""},
      {{"--inject", "target-spike@7:1e8=skip"},
       "--inject target-spike@7:1e+08=skip: step 7 was taken; it was expected to be skipped"},
      {{"--inject", "target-spike@7:1e8=step", "--fp16"},
       "--inject target-spike@7:1e+08=step: step 7 was skipped; it was expected to be taken"},
      {{"--inject", "target-spike@3-9:1=skip"}, "step 3 was taken"},
      {{"--inject", "inf-grad@5=skip", "--inject", "inf-loss@5=step"}, "step 5 was skipped"},
      {{"--inject", "inf-grad@5=skip", "--no-belts", "--fp32"}, "step 5 was taken"},
  };
  for (const auto& [arguments, complaint] : cases) {
    SCOPED_TRACE(arguments[1]);
    Words all{"--csv", path("log.csv")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Result result = run(all);
    if (complaint.empty()) {
      EXPECT_EQ(result.status, 0) << result.err;
      EXPECT_EQ(result.err, "");
    } else {
      expect_complaint(result, 4, complaint);
    }
    EXPECT_EQ(read_log(path("log.csv")).size(), 20u);
  }
}

TEST_F(Faults, of_an_unexpected_effect_are_status_4_in_a_resumed_run_too) {
  const Words first{"--inject", "inf-grad@2=step", "--steps", "4", "--checkpoint", path("c")};
  const Result whole = run(first);
  expect_complaint(whole, 4, "step 2 was skipped; it was expected to be taken");
  const Result resumed = run({"--resume", path("c"), "--steps", "6"});
  EXPECT_EQ(resumed.status, 4);
  EXPECT_EQ(resumed.err, whole.err);
  EXPECT_EQ(run({"--resume", path("c")}).status, 4) << "also if there is nothing to do";
}

TEST_F(Faults, behind_the_end_are_refused_unless_the_run_can_be_made_longer) {
  expect_complaint(run({"--inject", "inf-grad@18-20"}), 2, "from 0 to 19");
  expect_complaint(run({"--inject", "inf-grad@90", "--data", AMP_DEMO_DIGITS_CSV, "--epochs", "1"}),
                   2, "from 0 to 89");
  EXPECT_EQ(run({"--inject", "inf-grad@20", "--checkpoint", path("run.ckpt")}).status, 0);
  const Result longer = run({"--resume", path("run.ckpt"), "--steps", "21"});
  EXPECT_EQ(longer.lines("SKIP    20").size(), 1u);
}

class Clipping : public Demo {};

TEST_F(Clipping, is_by_norm_by_value_or_not_at_all) {
  const Result norm = log({"--fp32", "--inject", "none", "--max-norm", "0.5"});
  const Result value =
      log({"--fp32", "--inject", "none", "--clip", "value", "--clip-value", "0.05"});
  const Result none = log({"--fp32", "--inject", "none", "--clip", "none"});
  const Result inf = log({"--fp32", "--inject", "none", "--max-norm", "inf"});
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(norm.rows[i].post(), std::min(0.5, norm.rows[i].pre()), 1e-12);
    EXPECT_EQ(none.rows[i].fields[2], none.rows[i].fields[3]);
    EXPECT_EQ(none.rows[i].fields, inf.rows[i].fields);
    EXPECT_LT(value.rows[i].post(), value.rows[i].pre());
    EXPECT_LE(value.rows[i].post(), 0.05 * std::sqrt(16 * 32 + 32 + 32 * 4 + 4));
  }
  EXPECT_EQ(value.rows[0].fields[2], norm.rows[0].fields[2]) << "the same gradients";
  EXPECT_EQ(none.summary("clipped "), (Steps{0, 20}));
  EXPECT_EQ(value.summary("clipped "), (Steps{20, 20}));
  EXPECT_EQ(none.lines("batch 8, lr 0.01, no clipping").size(), 1u);
  EXPECT_EQ(value.lines("batch 8, lr 0.01, max value 0.05").size(), 1u);
  EXPECT_EQ(log({"--fp32", "--clip", "value", "--clip-value", "inf"}).summary("clipped "),
            (Steps{0, 19}));
}

class Optimizers : public Demo {};

TEST_F(Optimizers, sgd_takes_the_plain_step_that_the_log_allows_to_check) {
  const Result sgd = log({"--optimizer", "sgd", "--fp32", "--inject", "none"});
  EXPECT_EQ(sgd.lines("Linear(16, 32) / GELU / Linear(32, 4), SGD, MSE").size(), 1u);
  const Result adamw = log({"--fp32", "--inject", "none"});
  EXPECT_EQ(sgd.rows[0].fields, adamw.rows[0].fields) << "before any step";
  EXPECT_NE(sgd.rows[1].fields, adamw.rows[1].fields);
  // Without momentum and decay nothing but lr times the clipped gradient moves the parameters.
  const Result still = log({"--optimizer", "sgd", "--lr", "0", "--fp32", "--inject", "none"});
  const Result frozen = log({"--lr", "0", "--fp32", "--inject", "none"});
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(still.rows[i].fields, frozen.rows[i].fields);
  const Result half = log({"--optimizer", "sgd", "--lr", "0.02", "--max-norm", "0.0005", "--fp32",
                           "--inject", "none", "--steps", "2"});
  const Result full = log({"--optimizer", "sgd", "--lr", "0.01", "--max-norm", "0.001", "--fp32",
                           "--inject", "none", "--steps", "2"});
  EXPECT_NEAR(half.rows[1].loss(), full.rows[1].loss(), 1e-6) << "the same product";
}

TEST_F(Optimizers, momentum_and_decay_belong_where_they_are_said_to) {
  const Words sgd{"--optimizer", "sgd", "--fp32"};
  const auto csv = [&](Words arguments) {
    arguments.insert(arguments.end(), sgd.begin(), sgd.end());
    log(arguments);
    return read_file(path("log.csv"));
  };
  const std::string plain = csv({});
  EXPECT_EQ(csv({"--weight-decay", "0", "--momentum", "0"}), plain);
  EXPECT_NE(csv({"--weight-decay", "0.1"}), plain);
  EXPECT_NE(csv({"--momentum", "0.9"}), plain);
  expect_complaint(run({"--momentum", "0.9"}), 2, "it belongs to --optimizer sgd");
  expect_complaint(run({"--optimizer", "adam"}), 2, "adamw or sgd");
}

class NoBelts : public Demo {};

TEST_F(NoBelts, lets_the_fault_into_the_weights_that_the_belts_keep_out) {
  const Result bare = log({"--no-belts", "--fp32"});
  EXPECT_EQ(bare.summary("skips "), (Steps{0, 0, 0}));
  EXPECT_TRUE(std::isfinite(bare.rows[5].loss()));
  for (size_t i = 6; i < 20; ++i) EXPECT_EQ(bare.rows[i].fields[4], "nan") << i;
  EXPECT_EQ(bare.lines("final loss   nan").size(), 1u);
  EXPECT_EQ(bare.summary("clipped "), (Steps{0, 20}));
  EXPECT_TRUE(std::isfinite(log({"--fp32"}).rows[19].loss()));
  for (const Row& row : log({"--no-belts", "--fp16", "--inject", "none"}).rows) {
    EXPECT_EQ(row.scale(), 1.0) << "no loss scaling";
  }
}

class Columns : public Demo {
 protected:
  /// y = 3 a - 2 b + 1 between its features; c has 3 classes by the size of a + b.
  std::string table() const {
    std::string text = "a,y,b,c\n";
    for (int i = 0; i < 400; ++i) {
      const double a = std::sin(i * 1.37), b = std::cos(i * 2.91);
      const int c = a + b > 0.4 ? 2 : a + b > -0.4 ? 1 : 0;
      text += cat(a, ",", 3 * a - 2 * b + 1, ",", b, ",", c, "\n");
    }
    write_file(path("table.csv"), text);
    return path("table.csv");
  }
};

TEST_F(Columns, of_numbers_are_learnt_as_numbers_and_scored_by_r2) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Result result = log({"--data", table(), "--target", "y", "--precision", precision});
    const Words score = result.lines("test R2: ");
    ASSERT_EQ(score.size(), 1u) << result.out;
    EXPECT_GT(parse_number(score[0].substr(9)).value(), 0.95) << precision;
    EXPECT_EQ(result.lines("Linear(3, 128) / GELU / Linear(128, 1)").size(), 1u);
    EXPECT_EQ(result.lines("320 rows to train on, 80 to test, 20 steps per epoch").size(), 1u);
  }
}

TEST_F(Columns, of_whole_numbers_are_classes_and_scored_by_accuracy) {
  const Result result = log({"--data", table()});  // the last column
  EXPECT_GT(result.test_accuracy(), 90.0);
  EXPECT_EQ(result.lines("Linear(3, 128) / GELU / Linear(128, 3)").size(), 1u);
  EXPECT_EQ(run({"--data", path("table.csv"), "--target", "c"}).out, result.out);
}

TEST_F(Columns, that_are_not_there_are_refused) {
  expect_complaint(run({"--data", table(), "--target", "z"}), 2, "'z'");
  expect_complaint(run({"--data", table(), "--target", "A"}), 2, "no column of that name");
  expect_complaint(run({"--target", "y"}), 2, "--data");
}

TEST_F(Demo, each_exit_status_is_in_the_help_and_is_what_it_says) {
  const std::string help = run({"--help"}).out;
  const std::string text = help.substr(std::min(help.find("Exit status:"), help.size()));
  for (const char* part :
       {"0 all went well", "1 the run failed", "2 the command line or the config",
        "3 too many steps were skipped", "4 a fault did not have", "130"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(run({}).status, 0);
  EXPECT_EQ(run({"--csv", path("")}).status, 1);
  EXPECT_EQ(run({"--csv"}).status, 2);
  EXPECT_EQ(run({"--max-skip-rate", "0", "--alert-after", "1"}).status, 3);
  EXPECT_EQ(run({"--inject", "inf-grad@5=step"}).status, 4);
}

}  // namespace
}  // namespace halfstep::demo
