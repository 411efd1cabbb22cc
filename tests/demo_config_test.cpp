// amp_demo --config and --print-config: a file that says what a command line says, and what is said
// of a file that does not.
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

class Config : public Demo {
 protected:
  Result run_config(const std::string& text, const Words& more = {}) const {
    write_file(file_, text);
    Words arguments{"--config", file_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  std::string printed(Words arguments) const {
    arguments.emplace_back("--print-config");
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }

  const std::string file_ = path("config.json");
};

TEST_F(Config, that_was_printed_gives_the_same_run_and_is_printed_again) {
  const Words runs[] = {
      {},
      {"--fp16", "--growth-interval", "3", "--steps", "30", "--inject", "inf-grad@5", "--inject",
       "target-spike@7-8:1e8=skip", "--inject", "nan-grad@9:2.weight"},
      {"--seed", "18446744073709551615", "--max-norm", "inf", "--lr", "1e-5", "--inject", "none"},
      {"--optimizer", "sgd", "--momentum", "0.9", "--clip", "value", "--clip-value", "0.1",
       "--warmup", "5", "--decay", "cosine", "--min-lr", "1e-4", "--advance-on-skip"},
      {"--no-belts", "--precision", "fp32", "--batch", "3", "--lr", "0.1", "--steps", "100"},
      {"--max-skip-rate", "0.1", "--alert-after", "7", "--max-skips-in-a-row", "2", "--log-every",
       "4"},
      {"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "1", "--hidden", "16", "--target", "digit"},
      {"--quiet", "--fp16", "--init-scale", "3.5e-20", "--min-scale", "1e-30", "--max-scale", "1e5",
       "--backoff-factor", "0.3", "--growth-factor", "1.7"},
  };
  for (const Words& arguments : runs) {
    const std::string text = printed(arguments);
    write_file(file_, text);
    EXPECT_EQ(printed({"--config", file_}), text);
    const Result by_flags = run(arguments);
    const Result by_config = run({"--config", file_});
    EXPECT_EQ(by_flags.status, 0) << by_flags.err;
    EXPECT_EQ(by_config.out, by_flags.out);
    EXPECT_EQ(by_config.err, by_flags.err);
  }
}

TEST_F(Config, has_every_setting_of_the_run_by_name) {
  const std::string text = printed({"--csv", "a.csv", "--checkpoint", "a.ckpt"});
  for (const char* line :
       {"\"steps\": 20,", "\"lr\": 0.01,", "\"precision\": \"bf16\",", "\"no-belts\": false,",
        "\"csv\": \"a.csv\",", "\"checkpoint\": \"a.ckpt\"", "\"inject\": ["}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in " << text;
  }
  EXPECT_EQ(text.find("\"epochs\""), std::string::npos) << "it belongs to --data";
  EXPECT_FALSE(std::filesystem::exists("a.csv")) << "printing is not running";
  EXPECT_NE(printed({"--max-norm", "inf"}).find("\"max-norm\": \"inf\""), std::string::npos);
}

TEST_F(Config, is_overridden_by_flags) {
  const std::string config = R"({"steps": 7, "lr": 0.5, "precision": "fp16", "inject": ["none"]})";
  EXPECT_EQ(run_config(config).out,
            run({"--steps", "7", "--lr", "0.5", "--fp16", "--inject", "none"}).out);
  EXPECT_EQ(run_config(config, {"--steps", "6", "--fp32", "--inject", "inf-grad@2"}).out,
            run({"--steps", "6", "--lr", "0.5", "--fp32", "--inject", "inf-grad@2"}).out);
}

TEST_F(Config, may_have_comments_and_numbers_in_any_form) {
  const std::string twelve = run({"--steps", "12", "--max-norm", "inf", "--lr", "1"}).out;
  EXPECT_EQ(run_config("// a line\n{/* a\nblock */ \"steps\": 12, \"max-norm\": \"inf\", // end\n"
                       "\"lr\": 1}\n")
                .out,
            twelve);
  EXPECT_EQ(run_config(R"({"steps": 12.0, "max-norm": "inf", "lr": 1e0})").out, twelve);
  EXPECT_EQ(run_config(R"({"steps": 1.2e1, "max-norm": "inf", "lr": "1"})").out, twelve);
  EXPECT_EQ(run_config(R"({"steps": 1e5})", {"--print-config"}).out,
            printed({"--steps", "100000"}));
  EXPECT_EQ(run_config(R"({"inject": "inf-grad@2"})").out, run({"--inject", "inf-grad@2"}).out);
  EXPECT_EQ(run_config("{}").out, run({}).out);
}

TEST_F(Config, of_a_resumed_run_is_the_checkpoints) {
  ASSERT_EQ(run({"--lr", "0.5", "--steps", "2", "--checkpoint", path("c")}).status, 0);
  const Result shown = run({"--resume", path("c"), "--steps", "3", "--print-config"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_NE(shown.out.find("\"lr\": 0.5"), std::string::npos) << shown.out;
  write_file(path("config.json"), shown.out);
  EXPECT_EQ(run({"--config", path("config.json")}).summary("steps "), (std::vector<int64_t>{3}));
}

TEST_F(Config, that_is_wrong_is_one_line_that_names_the_file_and_status_2) {
  const struct {
    std::string text, about;
  } cases[] = {
      {R"({"max_norm": 1})", "unknown setting 'max_norm'; the nearest is 'max-norm'"},
      {R"({"lrr": 1})", "the nearest is 'lr'"},
      {R"({"presicion": "fp16"})", "the nearest is 'precision'"},
      {R"({"checkpoint-evry": 1})", "the nearest is 'checkpoint-every'"},
      {R"({"": 1})", "unknown setting ''"},
      {R"({"config": "x.json"})", "unknown setting 'config'"},
      {R"({"a\nb": 1})", "'a\\nb'"},
      {R"({"lr": 1, "steps": 2, "lr": 1})", "'lr' is there twice"},
      {R"({"fp16": true})", R"(write "precision": "fp16")"},
      {R"({"lr": true})", "'lr' is true; it must be a number"},
      {R"({"lr": null})", "'lr' is null"},
      {R"({"lr": [1]})", "'lr' is [1]"},
      {R"({"lr": {"lr": 1}})", "'lr' is {"},
      {R"({"quiet": 1})", "'quiet' is 1; it must be true or false"},
      {R"({"quiet": "true"})", "it must be true or false"},
      {R"({"csv": 3})", "'csv' is 3; it must be a text"},
      {R"({"precision": 16})", "it must be a text"},
      {R"({"inject": 5})", "it must be a text or a list of texts"},
      {R"({"inject": []})", "it must be a text or a list of texts"},
      {R"({"inject": ["none", 5]})", "it must be a text or a list of texts"},
      {R"({"lr": -1})", "--lr '-1'"},
      {R"({"lr": "fast"})", "--lr 'fast'"},
      {R"({"steps": 1.5})", "--steps '1.5'"},
      {R"({"steps": 0})", "--steps '0'"},
      {R"({"precision": "fp17"})", "--precision 'fp17'"},
      {R"({"inject": "inf-grad"})", "--inject 'inf-grad'"},
      {R"({"inject": ["none", "none"]})", "--inject none"},
      {R"({"csv": ""})", "--csv ''"},
      {R"([1, 2])", "must hold an object"},
      {R"(3)", "must hold an object"},
      {R"("lr")", "must hold an object"},
      {"", "is not JSON"},
      {"lr = 1", "is not JSON"},
      {R"({"lr": 1,})", "is not JSON"},
      {R"({"lr": 1)", "is not JSON"},
      {R"({"lr": 1} {})", "is not JSON"},
      {R"({"lr": 1e999})", "is not JSON"},
      {"{\"csv\": \"\xff\"}", "is not JSON"},
  };
  for (const auto& [text, about] : cases) {
    SCOPED_TRACE(text);
    const Result result = run_config(text);
    expect_complaint(result, 2, about);
    EXPECT_NE(result.err.find(file_), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Config, that_contradicts_itself_or_a_flag_is_status_2) {
  expect_complaint(run_config(R"({"epochs": 3})"), 2, "--epochs given without --data");
  expect_complaint(run_config(R"({"momentum": 0.9})"), 2, "--optimizer sgd");
  expect_complaint(run_config(R"({"min-lr": 1})"), 2, "min-lr <= lr");
  expect_complaint(run_config(R"({"checkpoint-every": 3})"), 2, "--checkpoint");
  expect_complaint(run_config(R"({"steps": 3})", {"--data", AMP_DEMO_DIGITS_CSV}), 2, "--epochs");
  expect_complaint(run({"--config", file_, "--config", file_}), 2, "--config");
}

TEST_F(Config, that_cannot_be_read_is_one_line_and_status_1) {
  expect_complaint(run({"--config", path("none.json")}), 1,
                   cat("cannot read ", path("none.json"), ": No such file or directory"));
  expect_complaint(run({"--config", path("")}), 1,
                   cat("cannot read ", path(""), ": Is a directory"));
  expect_complaint(run({"--config", ""}), 2, "--config ''");
  expect_complaint(run({"--config"}), 2, "--config given without a value");
}

TEST_F(Config, of_every_example_is_understood_and_that_of_the_help_runs) {
  const std::string folder = HALFSTEP_SOURCE_DIR "/demo/configs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_NE(printed({"--config", entry.path()}), "") << entry.path();
  }
  EXPECT_EQ(run({"--config", folder + "/spike.json"}).status, 0);
  EXPECT_EQ(run({"--config", folder + "/spike.json", "--bf16"}).status, 4) << "it is clipped there";
}

}  // namespace
}  // namespace halfstep::demo
