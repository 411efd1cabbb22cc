// What a long run of amp_demo shows while it goes on: a line on the terminal, fewer rows, none.
#include <regex>

#include "halfstep/tests/demo_process.h"

namespace halfstep::demo {
namespace {

class Terminal : public Demo {
 protected:
  void SetUp() override {
    if (!Running::can_open_terminal()) GTEST_SKIP() << "there are no pseudo terminals";
  }
  /// What the terminal is sent until `is_enough` of it, or until the program ends.
  template <class IsEnough>
  static std::string read_until(const Running& running, IsEnough is_enough) {
    std::string text;
    while (!is_enough(text)) {
      const std::string part = running.read_terminal();
      if (part.empty()) break;
      text += part;
    }
    EXPECT_TRUE(is_enough(text)) << "the program has ended";
    return text;
  }
  static auto returns(int count) {
    return [count](const std::string& text) { return std::ranges::count(text, '\r') >= count; };
  }
};

TEST_F(Terminal, shows_how_far_the_run_is_and_is_clean_afterwards) {
  Running running({"--steps", "200000000", "--quiet", "--fp16"}, "");
  std::string text = read_until(running, returns(3));
  running.deliver(SIGINT);
  running.read_rest();
  for (std::string part; !(part = running.read_terminal()).empty();) text += part;
  EXPECT_EQ(running.wait(), 130);

  const std::regex line(R"(step \d+/200000000 \(\d+\.\d %\), \d+ steps/s, \d+:\d\d(:\d\d)? left, )"
                        R"(loss [-+.0-9a-z]+, scale \d+, skips \d+)");
  const Words drawn = split(text, '\r');
  ASSERT_GE(drawn.size(), 5u);
  EXPECT_EQ(drawn[0], "") << "each begins by going back to the beginning of the line";
  size_t lines = 0;
  for (const std::string& state : drawn) {
    if (!state.starts_with("\033[Kstep ")) continue;
    EXPECT_TRUE(std::regex_match(state.substr(3), line)) << state;
    EXPECT_LE(state.size(), 100u + 3u);
    ++lines;
  }
  EXPECT_GE(lines, 2u);
  // Then the line is taken away, and the message stands in its place.
  EXPECT_TRUE(text.find("\r\033[Kamp_demo: interrupted after step ") != std::string::npos) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

TEST_F(Terminal, that_is_narrow_shows_as_much_as_fits_into_a_line) {
  Running running({"--steps", "200000000", "--quiet"}, "");
  running.set_terminal_width(40);
  const std::string text = read_until(running, returns(2));
  const std::string line = split(text, '\r').at(1).substr(3);
  EXPECT_EQ(line.size(), 39u) << line;
  EXPECT_TRUE(line.starts_with("step ")) << line;
}

TEST_F(Terminal, shows_a_warning_in_the_place_of_the_line) {
  Running running({"--steps", "200000000", "--quiet", "--inject", "inf-loss@20000-200000"}, "");
  const std::string text = read_until(running, [](const std::string& so_far) {
    return so_far.find("steps in a row") != std::string::npos;
  });
  const size_t warning = text.find("halfstep: warning");
  ASSERT_NE(warning, std::string::npos);
  EXPECT_TRUE(warning == 0 || text.substr(0, warning).ends_with("\r\033[K")) << text;
}

TEST_F(Terminal, has_no_rows_when_they_go_elsewhere) {
  Running running({"--steps", "200000000", "--log-every", "3000"}, "");
  std::string rows, text;
  while (!returns(3)(text)) {
    const std::string row = running.read_write();
    ASSERT_NE(row, "") << "the program has ended";
    rows += row;
    if (running.has_terminal_output()) text += running.read_terminal();
  }
  EXPECT_EQ(rows.find('\r'), std::string::npos);
  EXPECT_EQ(text.find("STEP"), std::string::npos);
}

TEST_F(Demo, log_every_prints_these_steps_the_skips_and_the_last_one) {
  const auto steps = [&](const Words& arguments) {
    std::string text;
    for (const std::string& line : split(run(arguments).out, '\n')) {
      const bool is_row =
          line.starts_with("STEP") || line.starts_with("SKIP") || line.starts_with("EPOCH ");
      if (is_row) text += line.substr(0, 2) + std::to_string(std::stoi(line.substr(5, 7))) + " ";
    }
    return text;
  };
  EXPECT_EQ(steps({"--log-every", "6"}), "ST0 SK5 ST6 ST12 ST18 ST19 ");
  EXPECT_EQ(steps({"--log-every", "1000"}), "ST0 SK5 ST19 ");
  EXPECT_EQ(steps({"--log-every", "5", "--steps", "11", "--inject", "inf-loss@10"}),
            "ST0 ST5 SK10 ");
  EXPECT_EQ(steps({"--quiet", "--log-every", "6"}), "");
  EXPECT_EQ(steps({"--data", AMP_DEMO_DIGITS_CSV, "--epochs", "6", "--log-every", "4"}),
            "EP0 EP4 EP5 ");
  EXPECT_EQ(run({"--log-every", "1"}).out, run({}).out);
}

TEST_F(Demo, the_log_does_not_depend_on_what_is_printed) {
  log({});
  const std::string whole = read_file(path("log.csv"));
  for (const Words& arguments : {Words{"--quiet"}, {"--log-every", "7"}}) {
    log(arguments);
    EXPECT_EQ(read_file(path("log.csv")), whole);
  }
}

TEST_F(Demo, quiet_leaves_what_is_run_and_the_summary) {
  const Result loud = run({});
  const Result quiet = run({"--quiet"});
  std::string expected = loud.out;
  const size_t begin = expected.find("tag ");
  expected.erase(begin, expected.find("steps   ") - begin);
  EXPECT_EQ(quiet.out, expected);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Demo, a_hundred_thousand_steps_take_less_than_10_s_of_cpu_time_and_print_no_progress) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a statement about optimised builds";
#endif
  const Result result = log({"--steps", "100000", "--quiet", "--inject", "none"});
  EXPECT_LT(result.cpu_seconds, 10.0);
  EXPECT_EQ(result.err, "") << "standard error is no terminal";
  EXPECT_EQ(result.rows.size(), 100'000u);
  EXPECT_EQ(result.summary("steps "), (std::vector<int64_t>{100'000}));
}

}  // namespace
}  // namespace halfstep::demo
