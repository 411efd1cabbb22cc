// Checkpoints of amp_demo: a run that was stopped, anywhere, and resumed is the run that was not.
#include <cstring>

#include "halfstep/core/safetensors.h"
#include "halfstep/tests/demo_process.h"

namespace halfstep::demo {
namespace {

/// The lines from the summary's first on.
std::string summary_of(const Result& result) {
  return result.out.substr(std::min(result.out.find("\nsteps   "), result.out.size()));
}

double step_of(const std::string& checkpoint) {
  return read_safetensors(checkpoint).tensors.at("run.steps").item();
}

void expect_same_state(const std::string& path, const std::string& other_path) {
  const Safetensors one = read_safetensors(path);
  const Safetensors other = read_safetensors(other_path);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (const auto& [name, tensor] : one.tensors) {
    ASSERT_TRUE(other.tensors.contains(name)) << name;
    const Tensor& twin = other.tensors.at(name);
    ASSERT_EQ(tensor.dtype(), twin.dtype()) << name;
    ASSERT_EQ(tensor.shape(), twin.shape()) << name;
    const auto bytes = static_cast<size_t>(tensor.numel()) * size_of(tensor.dtype());
    EXPECT_EQ(std::memcmp(tensor.raw_data(), twin.raw_data(), bytes), 0) << name;
  }
}

class ResumedRun : public Demo {
 protected:
  /// The run that is not interrupted.
  void run_whole(Words arguments) {
    arguments_ = std::move(arguments);
    const Result result =
        run(with({"--csv", path("whole.csv"), "--checkpoint", path("whole.ckpt")}));
    ASSERT_EQ(result.status, 0) << result.err;
    summary_ = summary_of(result);
  }
  Words with(const Words& more) const {
    Words all = arguments_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// A part of it, to part.csv and part.ckpt.
  Words part(const Words& more) const {
    Words all = with({"--csv", path("part.csv"), "--checkpoint", path("part.ckpt")});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Goes on from part.ckpt.
  void expect_resumes_to_the_whole(const Words& more) const {
    Words arguments{"--resume", path("part.ckpt")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(read_file(path("part.csv")), read_file(path("whole.csv")));
    EXPECT_EQ(summary_of(result), summary_);
    expect_same_state(path("part.ckpt"), path("whole.ckpt"));
  }

 private:
  Words arguments_;
  std::string summary_;
};

class Resume : public ResumedRun, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Demo, Resume, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Resume, after_any_step_gives_the_same_log_summary_and_state) {
  run_whole({"--precision", GetParam(), "--growth-interval", "3", "--inject", "inf-grad@5",
             "--inject", "nan-grad@12:2.weight"});
  for (int k = 1; k <= 20; ++k) {
    SCOPED_TRACE(k);
    const Result result = run(part({"--steps", std::to_string(k)}));
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(step_of(path("part.ckpt")), k);
    expect_resumes_to_the_whole({"--steps", "20"});
  }
}

TEST_P(Resume, twice_is_like_once_and_sgd_and_a_schedule_go_on_where_they_were) {
  run_whole({"--precision", GetParam(), "--optimizer", "sgd", "--momentum", "0.9", "--warmup", "8",
             "--growth-interval", "3"});
  for (const char* steps : {"4", "9"}) {
    const Result result = run(part({"--steps", steps}));
    ASSERT_EQ(result.status, 0) << result.err;
    ASSERT_EQ(run({"--resume", path("part.ckpt"), "--steps", "13"}).status, 0);
    expect_resumes_to_the_whole({"--steps", "20"});
  }
}

TEST_P(Resume, in_the_middle_of_an_epoch_gives_the_same_log_summary_and_state) {
  // An epoch has 90 steps. The alarm is what ends the first part; it is no part of the results.
  run_whole({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "3", "--precision", GetParam(), "--inject",
             "inf-grad@100"});
  for (const auto& [alert_after, steps] : {std::pair{"1", 101}, {"80", 180}, {"130", 230}}) {
    SCOPED_TRACE(steps);
    const Result result = run(part({"--max-skip-rate", "0", "--alert-after", alert_after}));
    ASSERT_EQ(result.status, 3) << result.err;
    EXPECT_EQ(step_of(path("part.ckpt")), steps);
    expect_resumes_to_the_whole({"--max-skip-rate", "1", "--epochs", "3"});
  }
}

TEST_P(Resume, after_ctrl_c_gives_the_same_log_summary_and_state) {
  run_whole({"--precision", GetParam(), "--growth-interval", "3"});
  for (const size_t rows_read : {0, 3, 8}) {
    Running running(part({}), path("running.err"));
    for (size_t i = 0; i < rows_read + 2; ++i) running.read_write();  // with the two headings
    running.await_output();
    running.deliver(SIGINT);
    const std::string text = running.read_rest();
    EXPECT_EQ(running.wait(), 130);
    const auto rows = static_cast<int64_t>(split(read_file(path("part.csv")), '\n').size()) - 1;
    EXPECT_LE(rows, static_cast<int64_t>(rows_read) + 2) << "it ends after the step it was in";
    EXPECT_EQ(step_of(path("part.ckpt")), static_cast<double>(rows));
    EXPECT_NE(text.find(cat("\nsteps        ", rows, "\n")), std::string::npos) << text;
    EXPECT_EQ(read_file(path("running.err")),
              cat("amp_demo: interrupted after step ", rows - 1, "\n"));
    expect_resumes_to_the_whole({});
  }
}

TEST_P(Resume, after_ctrl_c_in_an_epoch_and_with_a_decay_gives_the_same_log) {
  run_whole({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "3", "--precision", GetParam(), "--warmup",
             "20", "--decay", "cosine"});
  Running running(part({}), path("running.err"));
  running.await_output();
  running.deliver(SIGTERM);
  running.read_rest();
  EXPECT_EQ(running.wait(), 143);
  EXPECT_EQ(step_of(path("part.ckpt")), 1);
  expect_resumes_to_the_whole({});
}

TEST_P(Resume, goes_on_from_the_last_of_the_checkpoints_that_a_killed_run_wrote) {
  run_whole({"--precision", GetParam(), "--growth-interval", "3"});
  for (const int64_t row : {5, 7, 12, 14, 19}) {
    std::filesystem::remove(path("part.ckpt"));
    Running running(part({"--checkpoint-every", "7"}), path("running.err"));
    for (int64_t i = 0; i < row + 2; ++i) running.read_write();
    running.await_output();  // the row of step `row`: all before it is done, and the next one waits
    running.send(SIGKILL);
    EXPECT_EQ(running.wait(), -SIGKILL);
    ASSERT_EQ(std::filesystem::exists(path("part.ckpt")), row >= 7) << row;
    if (row < 7) continue;
    if (row < 19) {
      EXPECT_EQ(step_of(path("part.ckpt")), static_cast<double>(row / 7 * 7));
    }
    expect_resumes_to_the_whole({"--checkpoint-every", "1"});
  }
}

TEST_P(Resume, on_a_log_with_later_rows_and_a_torn_one_drops_those) {
  run_whole({"--precision", GetParam()});
  ASSERT_EQ(run(part({"--steps", "8"})).status, 0);
  const std::string whole = read_file(path("whole.csv"));
  write_file(path("part.csv"), whole.substr(0, whole.find("\n11,") + 5));
  expect_resumes_to_the_whole({"--steps", "20"});
}

TEST_P(Resume, without_the_log_begins_one_with_the_next_step) {
  run_whole({"--precision", GetParam()});
  ASSERT_EQ(run(part({"--steps", "8"})).status, 0);
  const Result result =
      run({"--resume", path("part.ckpt"), "--steps", "20", "--csv", path("new.csv")});
  EXPECT_EQ(result.status, 0) << result.err;
  const std::string whole = read_file(path("whole.csv"));
  EXPECT_EQ(read_file(path("new.csv")),
            whole.substr(0, whole.find('\n') + 1) + whole.substr(whole.find("\n8,") + 1));
}

TEST_F(ResumedRun, can_be_a_finished_one_that_is_made_longer) {
  run_whole({"--fp16"});
  ASSERT_EQ(run(part({"--steps", "10"})).status, 0);
  expect_resumes_to_the_whole({"--steps", "20"});
  expect_resumes_to_the_whole({"--steps", "20", "--quiet"});
  expect_complaint(run({"--resume", path("part.ckpt"), "--steps", "19"}), 2, path("part.ckpt"));
}

}  // namespace
}  // namespace halfstep::demo
