// Checkpoints of amp_demo that cannot be resumed: each is refused in one line that names the file,
// before anything is written. And which settings may change.
#include <random>

#include "halfstep/core/safetensors.h"
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

class BadCheckpoint : public Demo {
 protected:
  BadCheckpoint() {
    const Result result =
        run({"--fp16", "--steps", "5", "--csv", log_, "--checkpoint", good_, "--inject", "none"});
    EXPECT_EQ(result.status, 0) << result.err;
    log_text_ = read_file(log_);
  }

  /// Resuming from `checkpoint` fails like that, and leaves all files as they are.
  void expect_refused(const std::string& checkpoint, int status, std::string_view about,
                      const Words& more = {}) const {
    SCOPED_TRACE(checkpoint);
    const bool is_file = std::filesystem::is_regular_file(checkpoint);
    const std::string before = is_file ? read_file(checkpoint) : "";
    Words arguments{"--resume", checkpoint, "--csv", log_, "--checkpoint", path("new.ckpt")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    expect_complaint(result, status, about);
    EXPECT_NE(result.err.find(checkpoint), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(read_file(log_), log_text_);
    EXPECT_EQ(is_file ? read_file(checkpoint) : "", before);
    EXPECT_FALSE(std::filesystem::exists(path("new.ckpt")));
  }
  std::string bad_file(const std::string& contents) const {
    write_file(path("bad.ckpt"), contents);
    return path("bad.ckpt");
  }

  const std::string good_ = path("good.ckpt");
  const std::string log_ = path("log.csv");
  std::string log_text_;
};

TEST_F(BadCheckpoint, that_is_cut_is_refused) {
  const std::string good = read_file(good_);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, good.size() / 4,
                            good.size() / 2, good.size() - 8, good.size() - 1}) {
    expect_refused(bad_file(good.substr(0, size)), 1, "");
  }
  expect_refused(bad_file(good + '\0'), 1, "");
}

TEST_F(BadCheckpoint, with_one_bit_that_has_flipped_is_refused_wherever_that_is) {
  const std::string good = read_file(good_);
  std::mt19937_64 random(0);
  for (int i = 0; i < 40; ++i) {
    // Every other flip in the first tenth: the header.
    const size_t byte = random() % (i % 2 == 0 ? good.size() : good.size() / 10);
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 1 << random() % 8);
    SCOPED_TRACE(byte);
    expect_refused(bad_file(bad), 1, "");
  }
}

TEST_F(BadCheckpoint, that_is_something_else_is_refused) {
  expect_refused(bad_file(""), 1, "");
  expect_refused(bad_file("step,lr\n0,1\n"), 1, "");
  expect_refused(AMP_DEMO_DIGITS_CSV, 1, "");
  expect_refused(path("nowhere.ckpt"), 1, "No such file");
  expect_refused(path(""), 1, "");
  expect_refused(good_ + "/below", 1, "Not a directory");
  Safetensors tensors = read_safetensors(good_);
  tensors.metadata = {};
  write_safetensors(path("bare.ckpt"), tensors);
  expect_refused(path("bare.ckpt"), 1, "no settings of a run");
}

TEST_F(BadCheckpoint, with_a_tensor_exchanged_or_missing_is_refused) {
  const Safetensors good = read_safetensors(good_);
  for (const char* name : {"train.model.2.weight", "train.optimizer.state.0.exp_avg_sq",
                           "train.scaler.scale", "monitor.outcomes", "run.skips"}) {
    Safetensors bad = good;
    ASSERT_EQ(bad.tensors.erase(name), 1u) << name;
    write_safetensors(path("bad.ckpt"), bad);
    expect_refused(path("bad.ckpt"), 1, "damaged");
  }
  Safetensors bad = good;
  std::swap(bad.tensors.at("train.model.0.bias"),
            bad.tensors.at("train.optimizer.state.1.exp_avg"));
  write_safetensors(path("bad.ckpt"), bad);
  expect_refused(path("bad.ckpt"), 1, "damaged");
}

TEST_F(BadCheckpoint, of_other_settings_is_refused_and_both_values_are_named) {
  const struct {
    Words arguments;
    std::string given, saved;
  } cases[] = {
      {{"--precision", "bf16"}, "--precision 'bf16'", "'fp16'"},
      {{"--fp32"}, "--precision 'fp32'", "'fp16'"},
      {{"--batch", "9"}, "--batch '9'", "'8'"},
      {{"--lr", "0.02"}, "--lr '0.02'", "'0.01'"},
      {{"--seed", "1"}, "--seed '1'", "'0'"},
      {{"--max-norm", "inf"}, "--max-norm 'inf'", "'1'"},
      {{"--clip", "value"}, "--clip 'value'", "'norm'"},
      {{"--clip-value", "2"}, "--clip-value '2'", "'1'"},
      {{"--optimizer", "sgd", "--weight-decay", "0.01"}, "--optimizer 'sgd'", "'adamw'"},
      {{"--weight-decay", "0"}, "--weight-decay '0'", "'0.01'"},
      {{"--warmup", "3"}, "--warmup '3'", "'0'"},
      {{"--decay", "linear"}, "--decay 'linear'", "'constant'"},
      {{"--advance-on-skip"}, "--advance-on-skip 'true'", "'false'"},
      {{"--no-belts"}, "--no-belts 'true'", "'false'"},
      {{"--inject", "inf-grad@7"}, "--inject 'inf-grad@7'", "'none'"},
      {{"--init-scale", "4"}, "--init-scale '4'", "'65536'"},
      {{"--growth-interval", "3"}, "--growth-interval '3'", "'2000'"},
      {{"--growth-factor", "4"}, "--growth-factor '4'", "'2'"},
      {{"--backoff-factor", "0.25"}, "--backoff-factor '0.25'", "'0.5'"},
      {{"--min-scale", "2"}, "--min-scale '2'", "'1'"},
      {{"--max-scale", "1e6"}, "--max-scale '1e+06'", "'3.4028"},
  };
  for (const auto& [arguments, given, saved] : cases) {
    expect_refused(good_, 2, cat(given, " given, but the run in ", good_, " has ", saved),
                   arguments);
  }
  // With --data another setting is in the way first; which one, does not matter.
  expect_complaint(run({"--resume", good_, "--data", AMP_DEMO_DIGITS_CSV}), 2, "--data");
}

TEST_F(BadCheckpoint, of_other_data_is_refused_even_under_the_same_name) {
  const std::string text = read_file(AMP_DEMO_DIGITS_CSV);
  write_file(path("data.csv"), text);
  const std::string checkpoint = path("data.ckpt");
  ASSERT_EQ(run({"--data", path("data.csv"), "--epochs", "1", "--checkpoint", checkpoint}).status,
            0);
  // The same data may lie elsewhere.
  EXPECT_EQ(
      run({"--resume", checkpoint, "--data", AMP_DEMO_DIGITS_CSV, "--checkpoint", path("other")})
          .status,
      0);

  std::string other = text;
  other[other.find("\n0,") + 1] = '1';  // one pixel
  write_file(path("data.csv"), other);
  expect_refused(checkpoint, 1, "other data", {"--epochs", "2"});
  write_file(path("data.csv"), text.substr(0, text.size() / 2).append("\n"));
  std::filesystem::resize_file(path("data.csv"), text.rfind('\n', text.size() / 2) + 1);
  expect_refused(checkpoint, 1, "other data", {"--epochs", "2"});
  std::filesystem::remove(path("data.csv"));
  expect_complaint(run({"--resume", checkpoint}), 1, path("data.csv"));

  write_file(path("data.csv"), text);
  EXPECT_EQ(run({"--resume", checkpoint, "--epochs", "2"}).status, 0);
}

TEST_F(BadCheckpoint, is_none_that_only_differs_in_what_results_do_not_depend_on) {
  const Result whole = run({"--fp16", "--steps", "12", "--inject", "none", "--csv", path("w.csv")});
  const Result result = run({"--resume",
                             good_,
                             "--steps",
                             "12",
                             "--quiet",
                             "--log-every",
                             "3",
                             "--checkpoint",
                             path("new.ckpt"),
                             "--checkpoint-every",
                             "4",
                             "--max-skip-rate",
                             "0.5",
                             "--alert-after",
                             "7",
                             "--max-skips-in-a-row",
                             "3",
                             "--run-card",
                             path("card.md"),
                             "--precision",
                             "fp16",
                             "--lr",
                             "1e-2",
                             "--inject",
                             "none"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_file(log_), read_file(path("w.csv"))) << "the log of the run that it resumes";
  EXPECT_TRUE(std::filesystem::exists(path("new.ckpt")));
  EXPECT_TRUE(std::filesystem::exists(path("card.md")));
}

TEST_F(BadCheckpoint, or_none_is_no_help_for_a_sweep) {
  expect_complaint(run({"--resume", good_, "--sweep", "max-norm=1,2"}), 2, "--sweep");
}

}  // namespace
}  // namespace halfstep::demo
