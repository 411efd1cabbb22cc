// amp_demo and file names that are more than names: pipes, links, the output's own file, what
// gnuplot takes for a command; and signals that come twice.
#include <sys/stat.h>

#include "halfstep/tests/demo_process.h"

namespace halfstep::demo {
namespace {

class Files : public Demo {};

TEST_F(Files, a_log_that_is_a_pipe_ends_the_run_when_its_reader_goes_away) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  Running demo({"--csv", path("pipe"), "--quiet", "--steps", "1000000000"}, path("err"));
  std::string row;
  pollfd ready{.fd = reader, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&ready, 1, -1), 1);
  ::close(reader);
  EXPECT_EQ(demo.wait(), 1);
  EXPECT_NE(read_file(path("err")).find("Broken pipe"), std::string::npos);
}

TEST_F(Files, a_log_is_not_the_file_that_the_output_goes_to) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const Result result = run({"--csv", path("log")}, [&] {
      ::dup2(::open(path("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), stream);
    });
    EXPECT_EQ(result.status, 2);
    const std::string said = stream == STDERR_FILENO ? read_file(path("log")) : result.err;
    EXPECT_NE(said.find("the file that the output goes to"), std::string::npos) << said;
  }
}

TEST_F(Files, one_file_under_two_names_is_one_file) {
  const std::string data = "a,b\n1,0\n2,1\n3,0\n";
  write_file(path("d.csv"), data);
  std::filesystem::create_hard_link(path("d.csv"), path("hard.csv"));
  expect_complaint(run({"--data", path("d.csv"), "--csv", path("hard.csv")}), 2, "--data");
  EXPECT_EQ(read_file(path("d.csv")), data);

  std::filesystem::create_symlink("new.csv", path("link"));  // to what is not there yet
  expect_complaint(run({"--csv", path("new.csv"), "--checkpoint", path("link")}), 2, "--csv");
  EXPECT_FALSE(std::filesystem::exists(path("new.csv")));
}

TEST_F(Files, what_cannot_be_written_in_the_end_is_told_at_the_beginning) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  for (const char* flag : {"--checkpoint", "--run-card"}) {
    const Result result = run({flag, path("pipe")});
    expect_complaint(result, 1, "not a regular file");
    EXPECT_EQ(result.out, "");
    expect_complaint(run({flag, path(std::string(250, 'x'))}), 1, "File name too long");
  }
}

TEST_F(Files, names_that_gnuplot_takes_for_commands_are_names) {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no gnuplot";
  const auto in_folder = [this] { ASSERT_EQ(::chdir(path("").c_str()), 0); };
  EXPECT_EQ(run({"--plot", "|touch spoilt;.svg"}, in_folder).err, "");
  EXPECT_EQ(run({"--csv", "<touch spoilt; cat x.csv", "--plot", "a.svg"}, in_folder).err, "");
  EXPECT_FALSE(std::filesystem::exists(path("spoilt")));
  EXPECT_TRUE(std::filesystem::exists(path("|touch spoilt;.svg")));
  EXPECT_TRUE(read_file(path("a.svg")).ends_with("</svg>\n\n") ||
              read_file(path("a.svg")).find("</svg>") != std::string::npos);
}

TEST_F(Files, a_picture_that_was_cut_short_does_not_replace_a_whole_one) {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no gnuplot";
  write_file(path("a.svg"), "whole");
  const Result result =
      run({"--steps", "300", "--quiet", "--csv", path("x.csv"), "--plot", path("a.svg")}, [] {
        const rlimit limit{40'000, 40'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
      });
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("a.svg was not drawn"), std::string::npos) << result.err;
  EXPECT_EQ(read_file(path("a.svg")), "whole");
}

TEST_F(Files, a_signal_that_comes_twice_is_one_unless_it_is_ctrl_c) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Running demo({"--steps", "1000000000", "--csv", path("log"), "--checkpoint", path("c")},
                 path("err"));
    demo.await_output();
    demo.deliver(signal);
    demo.deliver(signal);
    demo.deliver(SIGTERM);
    const std::string out = demo.read_rest();
    EXPECT_EQ(demo.wait(), 128 + signal);
    EXPECT_NE(out.find("final loss"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(path("c")));
    std::filesystem::remove(path("c"));
  }
}

TEST_F(Files, a_log_that_begins_in_the_middle_of_a_run_is_warned_of) {
  ASSERT_EQ(run({"--steps", "3", "--checkpoint", path("c")}).status, 0);
  const Result result = run({"--resume", path("c"), "--steps", "5", "--csv", path("new.csv")});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("no rows of the steps before 3"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace halfstep::demo
