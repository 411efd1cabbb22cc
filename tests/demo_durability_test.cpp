// What a run of amp_demo has written stays, whatever ends it: kill -9, Ctrl-C, a full disk, a
// reader that goes away, a second run on the same files. AMP_DEMO_KILLS=1000 kills it more often.
#include <chrono>
#include <random>
#include <set>

#include "halfstep/core/safetensors.h"
#include "halfstep/tests/demo_process.h"

namespace halfstep::demo {
namespace {

class Durable : public Demo {
 protected:
  /// A run to log.csv and run.ckpt.
  Words to_files(const Words& more) const {
    Words arguments{"--csv", log_, "--checkpoint", checkpoint_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string log_of(Words arguments) const {
    arguments.insert(arguments.end(), {"--csv", path("whole.csv")});
    EXPECT_EQ(run(arguments).status, 0);
    return read_file(path("whole.csv"));
  }
  void expect_no_temporary_files() const {
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
      EXPECT_FALSE(entry.path().string().ends_with(".tmp")) << entry.path();
    }
  }

  const std::string log_ = path("log.csv");
  const std::string checkpoint_ = path("run.ckpt");
};

/// Whether `log` is the beginning of `whole`, cut anywhere.
bool is_beginning(const std::string& log, const std::string& whole) {
  return whole.compare(0, log.size(), log) == 0;
}

TEST_F(Durable, a_kill_at_any_moment_leaves_the_rows_before_it_and_a_checkpoint_that_goes_on) {
  const char* wanted = std::getenv("AMP_DEMO_KILLS");
  const int kills = wanted != nullptr ? std::stoi(wanted) : 40;
  const Words settings{"--fp16", "--growth-interval", "3", "--steps", "1500", "--quiet"};
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const std::string whole = log_of(settings);
  const std::chrono::microseconds duration =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);

  std::mt19937_64 random(7);
  std::set<size_t> sizes;
  for (int i = 0; i < kills; ++i) {
    std::filesystem::remove(log_);
    std::filesystem::remove(checkpoint_);
    Words arguments = to_files(settings);
    arguments.insert(arguments.end(), {"--checkpoint-every", "300"});
    Running running(arguments, path("err"));
    ::usleep(static_cast<useconds_t>(random() % static_cast<uint64_t>(duration.count())));
    running.send(SIGKILL);
    ASSERT_EQ(running.wait(), -SIGKILL) << "its output is not read, so that it cannot end";
    const std::string log = read_file(log_);
    ASSERT_TRUE(is_beginning(log, whole)) << log.size() << " bytes: " << log.substr(0, 2000);
    sizes.insert(log.size());
    if (!std::filesystem::exists(checkpoint_) || i % 5 != 0) continue;
    const Result result = run({"--resume", checkpoint_});
    ASSERT_EQ(result.status, 0) << result.err;
    ASSERT_EQ(read_file(log_), whole);
  }
  EXPECT_GT(sizes.size(), 2u) << "the moments were different ones";
}

TEST_F(Durable, a_row_is_in_the_file_before_it_is_printed) {
  const std::string whole = log_of({});
  Running running(to_files({}), path("err"));
  for (int row = -2; row < 20; ++row) {
    running.await_output();
    const Words lines = split(read_file(log_), '\n');
    EXPECT_GE(static_cast<int>(lines.size()), row + 2);
    EXPECT_LE(static_cast<int>(lines.size()), row + 3 + (row < 0 ? 1 : 0)) << "and not much sooner";
    EXPECT_TRUE(is_beginning(read_file(log_), whole));
    running.read_write();
  }
}

TEST_F(Durable, a_second_ctrl_c_ends_the_run_at_once_with_its_rows_and_without_a_checkpoint) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer keeps signals back while a write waits";
#endif
  Running running(to_files({"--steps", "1000"}), path("err"));
  running.await_output();
  running.deliver(SIGINT);
  running.send(SIGINT);
  EXPECT_EQ(running.wait(), 130) << "though its output is not read";
  EXPECT_EQ(read_file(path("err")), "");
  EXPECT_FALSE(std::filesystem::exists(checkpoint_));
  EXPECT_TRUE(is_beginning(read_file(log_), log_of({"--steps", "1000"})));
}

TEST_F(Durable, a_terminal_that_is_closed_is_an_interrupt_unless_nohup_ignores_it) {
  for (const bool ignored : {false, true}) {
    const auto before = ::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
    Running running(to_files({}), path("err"));
    ::signal(SIGHUP, before);
    running.await_output();
    running.deliver(SIGHUP);
    running.read_rest();
    EXPECT_EQ(running.wait(), ignored ? 0 : 128 + SIGHUP);
    EXPECT_EQ(read_safetensors(checkpoint_).tensors.at("run.steps").item(), ignored ? 20 : 1);
  }
}

TEST_F(Durable, a_reader_that_goes_away_ends_the_run_with_its_rows_and_its_state_saved) {
  const std::string whole = log_of({"--steps", "1000"});
  Running running(to_files({"--steps", "1000"}), path("err"));
  for (int i = 0; i < 10; ++i) running.read_write();
  running.close_output();
  EXPECT_EQ(running.wait(), 1);
  EXPECT_EQ(read_file(path("err")), "amp_demo: cannot write to standard output: Broken pipe\n");
  const std::string log = read_file(log_);
  EXPECT_TRUE(is_beginning(log, whole));
  EXPECT_EQ(read_safetensors(checkpoint_).tensors.at("run.steps").item(),
            static_cast<double>(std::ranges::count(log, '\n') - 1));
  EXPECT_EQ(run({"--resume", checkpoint_}).status, 0);
  EXPECT_EQ(read_file(log_), whole);
}

TEST_F(Durable, a_new_run_replaces_the_log_and_a_refused_one_does_not) {
  log_of({});
  write_file(log_, std::string(100'000, 'x'));
  EXPECT_EQ(run({"--csv", log_}).status, 0);
  EXPECT_EQ(read_file(log_), read_file(path("whole.csv")));
  for (const Words& wrong : {Words{"--inject", "inf-grad@5:nothing"},
                             {"--data", path("none")},
                             {"--checkpoint", path("no/such/folder")},
                             {"--plot", path("no/x.svg")},
                             {"--checkpoint", path("")},
                             {"--warmup", "20", "--decay", "linear"}}) {
    Words arguments{"--csv", log_};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Result result = run(arguments);
    expect_complaint(result, result.status == 1 ? 1 : 2, wrong.at(1));
    EXPECT_EQ(result.out, "") << "it is told before the run, not after it";
    EXPECT_EQ(read_file(log_), read_file(path("whole.csv")));
  }
}

TEST_F(Durable, a_log_that_is_not_this_runs_is_refused_and_stays) {
  ASSERT_EQ(run(to_files({"--steps", "10"})).status, 0);
  const std::string log = read_file(log_);
  const auto line = [&](int step) { return log.find(cat("\n", step, ",")) + 1; };
  const std::string bad_logs[] = {
      log.substr(0, line(9)),                                    // a row is missing at the end
      log.substr(0, log.size() - 1),                             // the last one is torn
      log.substr(0, line(4)) + log.substr(line(5)),              // a gap
      log.substr(0, line(0)) + log.substr(line(3)),              // at the beginning
      log.substr(0, line(0)),                                    // the header alone
      log.substr(line(0)),                                       // no header
      "x" + log,                                                 // another one
      log.substr(0, 20),                                         // a torn one
      log.substr(0, line(4)) + "4,1,1\n" + log.substr(line(5)),  // a row of 3 fields
      "a letter, not a log\n",
      std::string(100'000, '\n'),
  };
  for (const std::string& bad : bad_logs) {
    SCOPED_TRACE(bad);
    write_file(log_, bad);
    expect_complaint(run({"--resume", checkpoint_, "--steps", "20"}), 1, log_);
    EXPECT_EQ(read_file(log_), bad);
  }
}

TEST_F(Durable, a_second_run_on_the_same_log_is_refused_and_the_first_goes_on) {
  const std::string whole = log_of({});
  Running running(to_files({}), path("running.err"));
  for (int i = 0; i < 5; ++i) running.read_write();
  const Result second = run({"--csv", log_, "--seed", "1"});
  expect_complaint(second, 1, "is another run writing to it?");
  EXPECT_EQ(second.out, "");
  running.read_rest();
  EXPECT_EQ(running.wait(), 0);
  EXPECT_EQ(read_file(log_), whole);
}

TEST_F(Durable, a_disk_that_fills_up_leaves_the_old_checkpoint_and_all_rows) {
  ASSERT_EQ(run(to_files({"--steps", "4"})).status, 0);
  const std::string before = read_file(checkpoint_);
  const auto limit_files_to = [](rlim_t bytes) {
    return [bytes] {
      const rlimit limit{bytes, bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    };
  };
  ASSERT_GT(before.size(), 8192u);
  const Result result = run({"--resume", checkpoint_, "--steps", "20"}, limit_files_to(8192));
  expect_complaint(result, 1, checkpoint_);
  EXPECT_NE(result.err.find("File too large"), std::string::npos) << result.err;
  EXPECT_EQ(read_file(checkpoint_), before);
  EXPECT_EQ(read_file(log_), log_of({}));
  expect_no_temporary_files();

  // The log is full first: what the step changed is not saved, because its row is not.
  const Result full_log =
      run(to_files({"--checkpoint-every", "1"}), [&] { limit_files_to(700)(); });
  EXPECT_EQ(full_log.status, 1);
  EXPECT_EQ(read_file(checkpoint_), before);
  expect_no_temporary_files();
  EXPECT_EQ(run({"--resume", checkpoint_, "--steps", "5", "--csv", path("other.csv")}).status, 0);
}

TEST_F(Durable, an_interrupted_sweep_ends_with_the_rows_that_are_done) {
  Running running({"--sweep", "seed=1,2,3,4,5", "--steps", "50"}, path("err"));
  running.await_output();
  running.deliver(SIGINT);
  const size_t lines = split(running.read_rest(), '\n').size();
  EXPECT_EQ(running.wait(), 130);
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, 3u);
  EXPECT_TRUE(read_file(path("err")).starts_with("amp_demo: interrupted at seed = "));
}

}  // namespace
}  // namespace halfstep::demo
