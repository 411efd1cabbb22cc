// amp_demo on real data: what it learns, and what it says of data that it cannot read.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

TEST_F(Demo, digits_are_learnt_equally_well_in_every_precision) {
  std::vector<double> means;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    double sum = 0.0;
    for (const char* seed : {"0", "1", "2"}) {
      const Result result =
          log({"--data", AMP_DEMO_DIGITS_CSV, "--precision", precision, "--seed", seed});
      EXPECT_EQ(result.lines("EPOCH").size(), 40u);
      EXPECT_EQ(result.lines("SKIP").size() + result.lines("STEP").size(), 0u);
      EXPECT_TRUE(split(result.out, '\n').back().starts_with("test accuracy: "));
      EXPECT_EQ(result.summary("steps ").at(0), static_cast<int64_t>(result.rows.size()));
      EXPECT_EQ(result.summary("skips ").at(1), 0);
      const bool is_live = result.rows.front().scale() != result.rows.back().scale();
      EXPECT_EQ(is_live, std::string_view(precision) == "fp16") << "the scale has moved";
      for (const std::string& line : split(result.out, '\n')) EXPECT_LE(line.size(), 100u);
      sum += result.test_accuracy();
    }
    means.push_back(sum / 3);
    EXPECT_GE(means.back(), 97.5) << precision;
  }
  EXPECT_LE(std::ranges::max(means) - std::ranges::min(means), 1.0);
}

TEST_F(Demo, settings_are_respected_with_data) {
  const Result result = log({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "2", "--hidden", "16",
                             "--lr", "0.5", "--batch", "500", "--inject", "inf-grad@4", "--fp32"});
  ASSERT_EQ(result.rows.size(), 6u) << "1,437 rows are 3 batches";
  EXPECT_EQ(result.rows[0].fields[1], "0.5");
  EXPECT_TRUE(result.rows[4].skipped());
  EXPECT_EQ(result.lines("EPOCH").size(), 2u);
  EXPECT_EQ(result.summary("skips "), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(result.lines("Linear(64, 16) / GELU / Linear(16, 10)").size(), 1u);
}

TEST_F(Demo, every_epoch_has_an_order_of_its_own) {
  const Result result = log(
      {"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "2", "--batch", "500", "--lr", "0", "--fp32"});
  ASSERT_EQ(result.rows.size(), 6u);
  EXPECT_NE(result.rows[0].loss(), result.rows[3].loss()) << "the first batches of both epochs";
}

TEST_F(Demo, a_batch_larger_than_the_data_is_the_whole_of_it) {
  EXPECT_EQ(log({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "2", "--batch", "5000"}).rows.size(),
            2u);
}

TEST_F(Demo, line_ends_of_the_data_do_not_matter) {
  std::string text = read_file(AMP_DEMO_DIGITS_CSV);
  std::string with_returns;
  for (const char c : text) with_returns += c == '\n' ? std::string("\r\n") : std::string(1, c);
  with_returns.resize(with_returns.size() - 2);
  write_file(path("crlf.csv"), with_returns);
  EXPECT_EQ(run({"--data", path("crlf.csv"), "--epochs", "1"}).out,
            run({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "1"}).out);
}

TEST_F(Demo, bad_data_is_one_line_naming_file_line_and_column_and_leaves_the_old_csv_alone) {
  write_file(path("old.csv"), "kept");
  const struct {
    std::string contents, complaint;
  } cases[] = {
      {"", " is empty"},
      {"a,b\n", " has a header and no rows"},
      {"a,b\n1,2\n3\n", ", line 3, column 2 ('b') is missing"},
      {"a,b\n1,2\n3,4,5\n", ", line 3, column 3 is one too many"},
      {"a,b\n1,2\n3,x\n", ", line 3, column 2 ('b') is 'x'"},
      {"a,b\n1,2\nnan,1\n", ", line 3, column 1 ('a') is 'nan'"},
      {"a,b\n1,2\n3,2\n", ", column 2 ('b') is 2 in every row"},
      {std::string("\x7f"
                   "ELF\0,\n",
                   7),
       ", line 1, column 1 has a zero byte"},
      {"a,b\n1,1\n", " has 1 row"},
  };
  const std::string file = path("bad.csv");
  for (const auto& [contents, complaint] : cases) {
    write_file(file, contents);
    const Result result = run({"--data", file, "--csv", path("old.csv")});
    expect_complaint(result, 1, file + complaint);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(read_file(path("old.csv")), "kept");
  }
  expect_complaint(run({"--data", path("none.csv")}), 1, path("none.csv: No such file"));
  expect_complaint(run({"--data", path("")}), 1, "Is a directory");
}

TEST_F(Demo, the_data_file_is_never_overwritten) {
  const std::string contents = "a,b\n1,0\n2,1\n3,0\n";
  write_file(path("d.csv"), contents);
  std::filesystem::create_symlink("d.csv", path("link.csv"));
  for (const char* name : {"d.csv", "link.csv"}) {
    expect_complaint(run({"--data", path("d.csv"), "--csv", path(name)}), 2, "the file of --data");
    EXPECT_EQ(read_file(path("d.csv")), contents);
  }
}

TEST_F(Demo, the_config_and_the_checkpoint_that_are_read_are_never_overwritten) {
  const std::string config = "{\"steps\": 3}";
  write_file(path("run.json"), config);
  EXPECT_EQ(run({"--steps", "3", "--checkpoint", path("run.ckpt")}).status, 0);
  const std::string checkpoint = read_file(path("run.ckpt"));
  for (const char* flag : {"--csv", "--checkpoint", "--run-card"}) {
    expect_complaint(run({"--config", path("run.json"), flag, path("run.json")}), 2,
                     "the file of --config");
    EXPECT_EQ(read_file(path("run.json")), config);
    if (flag == std::string("--checkpoint")) continue;  // a resumed run replaces its checkpoint
    expect_complaint(run({"--resume", path("run.ckpt"), "--steps", "4", flag, path("run.ckpt")}), 2,
                     "the file of --resume");
    EXPECT_EQ(read_file(path("run.ckpt")), checkpoint);
  }
}

}  // namespace
}  // namespace halfstep::demo
