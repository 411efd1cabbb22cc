// amp_demo given what it cannot do: one clear line, the right exit status, nothing lost.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

TEST_F(Demo, a_wrong_command_line_is_one_line_on_stderr_and_status_2) {
  const struct {
    Words arguments;
    std::string about;
  } cases[] = {
      {{"--foo"}, "'--foo'"},
      {{"-x"}, "'-x'"},
      {{"foo"}, "'foo'"},
      {{"--steps", "-1"}, "--steps '-1'"},
      {{"--steps", "0"}, "--steps '0'"},
      {{"--steps", "1.5"}, "--steps '1.5'"},
      {{"--steps", "99999999999999999999"}, "--steps '99999999999999999999'"},
      {{"--steps", ""}, "--steps ''"},
      {{"--steps="}, "'--steps='"},
      {{"--steps"}, "--steps given without a value"},
      {{"--steps", "1", "--steps", "2"}, "--steps given 2 times"},
      {{"--steps", "a\nb"}, "'a\\nb'"},
      {{"--batch", "0"}, "--batch '0'"},
      {{"--batch", "1000000000000"}, "--batch '1000000000000'"},
      {{"--lr", "nan"}, "--lr 'nan'"},
      {{"--lr", "-1"}, "--lr '-1'"},
      {{"--lr", "-inf"}, "--lr '-inf'"},
      {{"--lr", "inf"}, "--lr 'inf'"},
      {{"--lr", "1e99999"}, "--lr '1e99999'"},
      {{"--lr", "1e-2x"}, "--lr '1e-2x'"},
      {{"--lr", "0,01"}, "--lr '0,01'"},
      {{"--max-norm", "0"}, "--max-norm '0'"},
      {{"--max-norm", "-1"}, "--max-norm '-1'"},
      {{"--max-norm", "nan"}, "--max-norm 'nan'"},
      {{"--seed", "-1"}, "--seed '-1'"},
      {{"--seed", "18446744073709551616"}, "--seed '18446744073709551616'"},
      {{"--precision", "fp17"}, "--precision 'fp17'"},
      {{"--precision", ""}, "--precision ''"},
      {{"--bf16", "--fp16"}, "--bf16 and --fp16"},
      {{"--precision", "bf16", "--fp16"}, "--precision and --fp16"},
      {{"--fp16=yes"}, "'--fp16=yes'"},
      {{"--device", "tpu"}, "--device 'tpu'"},
      {{"--inject", "foo@x"}, "--inject 'foo@x'"},
      {{"--inject", ""}, "--inject ''"},
      {{"--inject", "inf-grad@20"}, "from 0 to 19"},
      {{"--inject", "none", "--inject", "inf-grad@1"}, "--inject none"},
      {{"--init-scale", "0"}, "--init-scale '0'"},
      {{"--init-scale", "1e39"}, "--init-scale '1e39'"},
      {{"--init-scale", "0.5"}, "min <= init <= max"},
      {{"--growth-factor", "1"}, "--growth-factor '1'"},
      {{"--backoff-factor", "1"}, "--backoff-factor '1'"},
      {{"--growth-interval", "0"}, "--growth-interval '0'"},
      {{"--min-scale", "70000"}, "min <= init <= max"},
      {{"--max-scale", "1"}, "min <= init <= max"},
      {{"--csv", ""}, "--csv ''"},
      {{"--data", ""}, "--data ''"},
      {{"--epochs", "3"}, "--data"},
      {{"--hidden", "3"}, "--data"},
      {{"--data", AMP_DEMO_DIGITS_CSV, "--steps", "3"}, "--epochs"},
      {{"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "1", "--inject", "inf-grad@1000"},
       "the step must be"},
  };
  for (const auto& [arguments, about] : cases) {
    const Result result = run(arguments);
    expect_complaint(result, 2, about);
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Demo, cuda_is_refused_in_one_line_where_the_build_has_none) {
  const Result result = run({"--device", "cuda"});
  if (result.status == 0) GTEST_SKIP() << "this build has CUDA";
  expect_complaint(result, 2, "this build has no CUDA");
}

TEST_F(Demo, help_and_version_go_to_stdout) {
  const Result help = run({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* flag : {"--steps", "--inject", "--max-scale", "--csv", "--data"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
  EXPECT_EQ(help.err, "");
  const Result version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("amp_demo (halfstep) ")) << version.out;
}

TEST_F(Demo, a_csv_path_that_cannot_be_written_is_one_line) {
  for (const std::string& file : {path("no/such/folder.csv"), path(""), std::string("/dev/full")}) {
    const Result result = run({"--csv", file});
    expect_complaint(result, 1, file);
    EXPECT_EQ(result.out, "");
  }
  expect_complaint(run({"--csv", path("no\nsuch/folder.csv")}), 1, path("no\\nsuch/folder.csv"));
}

TEST_F(Demo, rows_stay_when_the_disk_fills_up) {
  log({});
  const std::string whole = read_file(path("log.csv"));
  const Result result = run({"--csv", path("cut.csv")}, [] {
    const rlimit limit{700, 700};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
  });
  expect_complaint(result, 1, path("cut.csv"));
  // The row that did not fit is taken back, so that the file ends in a complete one.
  EXPECT_EQ(read_file(path("cut.csv")), whole.substr(0, whole.rfind('\n', 700) + 1));
}

TEST_F(Demo, a_full_or_closed_stdout_is_one_line_and_the_csv_row_is_there) {
  const auto full = [] { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); };
  const auto closed = [] { ::close(STDOUT_FILENO); };
  for (const auto& prepare : {std::function<void()>(full), std::function<void()>(closed)}) {
    expect_complaint(run({"--csv", path("log.csv")}, prepare), 1, "standard output");
    EXPECT_TRUE(read_file(path("log.csv")).starts_with("step,lr,"));
    expect_complaint(run({"--help"}, prepare), 1, "standard output");
  }
}

TEST_F(Demo, a_closed_stderr_does_not_put_messages_into_files) {
  const Result result = run({"--csv", path("log.csv")}, [] {
    ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
    ::close(STDERR_FILENO);
  });
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(read_file(path("log.csv")).find("amp_demo"), std::string::npos);
}

}  // namespace
}  // namespace halfstep::demo
