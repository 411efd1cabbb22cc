// What amp_demo makes of a run besides its log: pictures, run cards, sweeps, explanations; and that
// other programs can read the log.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

bool has_command(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class Plot : public Demo {};

TEST_F(Plot, is_drawn_as_svg_or_png_with_and_without_a_csv) {
  if (!has_command("gnuplot --version")) GTEST_SKIP() << "there is no gnuplot";
  for (const Words& more : {Words{},
                            {"--csv", path("log.csv")},
                            {"--fp32"},
                            {"--steps", "1"},
                            {"--clip", "none"},
                            {"--max-norm", "inf"},
                            {"--no-belts", "--fp32"}}) {
    SCOPED_TRACE(more.empty() ? "" : more[0]);
    for (const char* name : {"run.svg", "run.png"}) {
      Words arguments{"--plot", path(name)};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Result result = run(arguments);
      EXPECT_EQ(result.status, 0);
      EXPECT_EQ(result.err, "");
    }
    const std::string svg = read_file(path("run.svg"));
    EXPECT_TRUE(contains(svg, "<svg"));
    EXPECT_TRUE(contains(svg, "gradient norm"));
    EXPECT_TRUE(contains(svg, "loss scale"));
    EXPECT_EQ(contains(svg, "threshold 1"),
              more.empty() || more[0] == "--csv" || more[0] == "--fp32" || more[0] == "--steps");
    EXPECT_TRUE(read_file(path("run.png")).starts_with("\x89PNG\r\n"));
    std::filesystem::remove(path("run.svg"));
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "run.png" || name == "log.csv" || name == "out" || name == "err") << name;
    ++files;
  }
  EXPECT_EQ(files, 4u);
}

TEST_F(Plot, of_a_run_in_which_nothing_was_finite_or_all_was_skipped_is_drawn) {
  if (!has_command("gnuplot --version")) GTEST_SKIP() << "there is no gnuplot";
  for (const Words& more : {Words{"--inject", "inf-loss@0-19", "--max-skips-in-a-row", "99"},
                            {"--inject", "nan-grad@0", "--no-belts"},
                            {"--inject", "inf-grad@0-19", "--max-skips-in-a-row", "99"}}) {
    SCOPED_TRACE(more[1]);
    Words arguments{"--plot", path("run.svg")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_TRUE(contains(read_file(path("run.svg")), "</svg>"));
  }
}

TEST_F(Plot, names_with_quotes_and_blanks_are_names) {
  if (!has_command("gnuplot --version")) GTEST_SKIP() << "there is no gnuplot";
  std::filesystem::create_directory(path("it's \"a\" $HOME `id`"));
  const std::string folder = path("it's \"a\" $HOME `id`/");
  const Result result = run({"--plot", folder + "run 1.svg", "--csv", folder + "a 'log'.csv"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(contains(read_file(folder + "run 1.svg"), "</svg>"));
}

TEST_F(Plot, that_gnuplot_is_missing_for_is_a_warning_and_the_log_is_there) {
  const std::string csv = path("log.csv");
  const Result result =
      run({"--plot", path("run.svg"), "--csv", csv}, [] { ::setenv("PATH", "/nowhere", 1); });
  expect_complaint(result, 0, "amp_demo: warning: ");
  EXPECT_TRUE(contains(result.err, "there is no gnuplot")) << result.err;
  EXPECT_TRUE(contains(result.err, path("run.svg"))) << result.err;
  EXPECT_EQ(read_log(csv).size(), 20u);
  EXPECT_EQ(result.out, run({}).out);
  EXPECT_FALSE(std::filesystem::exists(path("run.svg")));
}

TEST_F(Plot, of_an_unknown_kind_is_refused) {
  for (const char* name : {"run.pdf", "run", "svg", "run.SVG", "run.svg.gz"}) {
    expect_complaint(run({"--plot", path(name)}), 2, "it must end in .svg or .png");
  }
  expect_complaint(run({"--plot", path("x.svg"), "--csv", path("x.svg")}), 2, "--plot");
}

class RunCard : public Demo {
 protected:
  std::string card(Words arguments) const {
    std::filesystem::remove(path("card.md"));
    arguments.insert(arguments.end(), {"--run-card", path("card.md")});
    run(arguments);
    return read_file(path("card.md"));
  }
  /// The line of the card that begins with "- " and this.
  std::string line(const Words& arguments, const std::string& name) const {
    for (const std::string& text : split(card(arguments), '\n')) {
      if (text.starts_with("- " + name)) return text;
    }
    return {};
  }
};

TEST_F(RunCard, says_what_each_safety_belt_was_set_to) {
  EXPECT_TRUE(contains(line({}, "Clip threshold"), "global L2 norm of 1 "));
  EXPECT_TRUE(contains(line({"--max-norm", "0.25"}, "Clip threshold"), "global L2 norm of 0.25 "));
  EXPECT_TRUE(contains(line({"--clip", "value", "--clip-value", "0.5"}, "Clip threshold"), "±0.5"));
  EXPECT_TRUE(contains(line({"--clip", "none"}, "Clip threshold"), "not clipped"));
  EXPECT_TRUE(contains(line({"--fp32"}, "Autocast"), "no autocast"));
  EXPECT_TRUE(contains(line({"--bf16"}, "Autocast"), "bfloat16"));
  EXPECT_TRUE(contains(line({"--fp16"}, "Autocast"), "float16"));
  EXPECT_TRUE(contains(line({}, "Loss scaling"), "off"));
  EXPECT_EQ(
      line({"--fp16", "--init-scale", "1024", "--growth-interval", "7", "--growth-factor", "4",
            "--backoff-factor", "0.25", "--min-scale", "2", "--max-scale", "4096"},
           "Loss scaling"),
      "- Loss scaling: The gradient scaler starts at 1024, grows by 4 after 7 good steps in a "
      "row, backs off by 0.25, and stays between 2 and 4096. It ended at 4096.");
  EXPECT_TRUE(contains(line({}, "Skip alert"), "No alert"));
  const std::string alert = line({"--max-skip-rate", "0.125", "--alert-after", "17"}, "Skip alert");
  EXPECT_TRUE(contains(alert, "exceeds 0.125 for 17 steps")) << alert;
  EXPECT_TRUE(contains(alert, "last rate was 0.05")) << alert;
}

TEST_F(RunCard, names_the_files_and_how_it_ended) {
  EXPECT_TRUE(contains(card({}), "No CSV was written"));
  EXPECT_TRUE(contains(card({"--csv", path("a.csv")}), "`" + path("a.csv") + "`"));
  EXPECT_TRUE(contains(card({}), "All 20 steps were run."));
  EXPECT_TRUE(contains(card({}), "skips        1, of which injected 1, other 0"));
  const std::string alarm = card({"--max-skip-rate", "0", "--alert-after", "1"});
  EXPECT_TRUE(contains(alarm, "(status 3): skip rate 0.1667 over") ||
              contains(alarm, "(status 3): skip rate 0.16"))
      << alarm;
  EXPECT_TRUE(contains(card({"--inject", "inf-grad@5=step"}), "(status 4): --inject"));
}

TEST_F(RunCard, has_a_config_that_runs_it_again) {
  const std::string text = card({"--fp16", "--steps", "7", "--inject", "none"});
  const size_t begin = text.find("```json\n") + 8;
  write_file(path("again.json"), text.substr(begin, text.find("```\n", begin) - begin));
  EXPECT_EQ(run({"--config", path("again.json")}).out,
            run({"--fp16", "--steps", "7", "--inject", "none"}).out);
}

TEST_F(RunCard, goes_into_a_new_folder_and_replaces_an_old_card) {
  ASSERT_EQ(run({"--run-card", path("new/folder/card.md")}).status, 0);
  const std::string first = read_file(path("new/folder/card.md"));
  EXPECT_TRUE(first.starts_with("# Run card"));
  ASSERT_EQ(run({"--fp32", "--run-card", path("new/folder/card.md")}).status, 0);
  EXPECT_NE(read_file(path("new/folder/card.md")), first);
  expect_complaint(run({"--run-card", path("out") + "/card.md"}), 1, path("out"));
}

TEST_F(Demo, a_sweep_is_a_table_with_the_same_numbers_as_the_runs) {
  const Words base{"--fp16", "--steps", "50", "--growth-interval", "3"};
  const auto with = [&](Words more) {
    more.insert(more.end(), base.begin(), base.end());
    return more;
  };
  const Result table = run(with({"--sweep", "max-norm=0.5,1,inf"}));
  EXPECT_EQ(table.status, 0);
  const Words lines = split(table.out, '\n');
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(contains(lines[0], "max-norm"));
  const char* values[] = {"0.5", "1", "inf"};
  for (size_t i = 0; i < 3; ++i) {
    const Result single = run(with({"--max-norm", values[i]}));
    Words fields;
    for (const std::string& field : split(lines[i + 1], ' ')) {
      if (!field.empty()) fields.push_back(field);
    }
    ASSERT_EQ(fields.size(), 7u) << lines[i + 1];
    EXPECT_EQ(fields[0], values[i]);
    EXPECT_EQ("final loss   " + fields[1], single.lines("final loss").at(0));
    const std::vector<int64_t> clipped = single.summary("clipped");
    EXPECT_NEAR(parse_number(fields[2]).value(),
                100.0 * static_cast<double>(clipped.at(0)) / static_cast<double>(clipped.at(1)),
                0.05);
    EXPECT_EQ(fields[4], std::to_string(single.summary("skips").at(0)));
    EXPECT_EQ("final scale  " + fields[5], single.lines("final scale").at(0));
    EXPECT_EQ(fields[6], "-");
  }
}

TEST_F(Demo, a_sweep_that_cannot_be_is_refused_before_its_first_run) {
  for (const char* sweep : {"max-norm", "max-norm=", "max-norm=1,,2", "max-norm=1,x", "foo=1",
                            "steps=1,2", "csv=a,b", "fp16=true", "inject=none", "=1"}) {
    SCOPED_TRACE(sweep);
    const Result result = run({"--sweep", sweep});
    expect_complaint(result, 2, " given; ");
    EXPECT_EQ(result.out, "");
  }
  expect_complaint(run({"--sweep", "max-nrm=1"}), 2, "the nearest is 'max-norm'");
  expect_complaint(run({"--sweep", "steps=1,2"}), 2, "cannot be compared by 'steps'");
  for (const char* flag : {"--csv", "--run-card", "--checkpoint"}) {
    expect_complaint(run({"--sweep", "lr=0.1,0.2", flag, path("none")}), 2, "writes no files");
    EXPECT_FALSE(std::filesystem::exists(path("none")));
  }
  expect_complaint(run({"--sweep", ""}), 2, "--sweep ''");
  const Result data =
      run({"--sweep", "lr=0.001,0.01", "--data", AMP_DEMO_DIGITS_CSV, "--epochs", "1"});
  EXPECT_EQ(data.status, 0);
  EXPECT_EQ(std::ranges::count(data.out, '%'), 4) << data.out;
}

TEST_F(Demo, explain_tells_dtypes_scaler_and_machine) {
  for (const auto& [flag, dtype] : {std::pair{"--fp16", "f16"}, {"--bf16", "bf16"}}) {
    const Result result = run({flag, "--explain"});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.lines("linear ").size(), 3u) << "the policy, and two of the model";
    EXPECT_TRUE(contains(result.out, cat("to           0.weight f32")));
    EXPECT_TRUE(contains(result.lines("gelu ").back(), dtype));
    EXPECT_EQ(result.lines("SIMD target  ").size(), 1u);
    EXPECT_EQ(result.lines("BLAS         OpenBLAS, core ").size(), 1u);
    EXPECT_EQ(result.lines("GPU ").size(), 1u);
    EXPECT_EQ(contains(result.out, "init scale 65536"), std::string_view(flag) == "--fp16");
  }
  const Result three = run({"--explain"}, [] { ::setenv("HALFSTEP_NUM_THREADS", "3", 1); });
  EXPECT_EQ(three.lines("threads "), (Words{"threads      3"}));
  const Result fp32 = run({"--fp32", "--explain"});
  EXPECT_FALSE(contains(fp32.out.substr(fp32.out.find("One step")), "bf16"));
}

TEST_F(Demo, pandas_reads_the_log) {
  if (!has_command("python3 -c 'import pandas'")) GTEST_SKIP() << "there is no pandas";
  log({"--inject", "inf-grad@5", "--inject", "inf-loss@7"});
  write_file(path("read.py"), R"(import sys, pandas
t = pandas.read_csv(sys.argv[1])
assert list(t.step) == list(range(20)), t
assert list(t[t.skipped == 1].step) == [5, 7], t
assert list(t.skip_reason.dropna()) == ['non_finite_grad', 'non_finite_loss'], t
assert t.loss.dtype == t.lr.dtype == t.grad_l2_pre_clip.dtype == 'float64', t.dtypes
assert t.grad_l2_post_clip.isna().sum() == 2 and t.loss[7] == float('inf'), t
)");
  EXPECT_TRUE(has_command(cat("python3 ", path("read.py"), " ", path("log.csv"))));
}

}  // namespace
}  // namespace halfstep::demo
