// What the tests of amp_demo share: running the real executable, reading what it printed and wrote.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {

using Words = std::vector<std::string>;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

inline Words split(const std::string& text, char separator) {
  Words parts;
  std::string part;
  for (const char c : text) {
    if (c == separator) {
      parts.push_back(std::move(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!part.empty()) parts.push_back(part);  // what no separator ends
  return parts;
}

/// One row of the CSV log.
struct Row {
  Words fields;

  double number(size_t column) const { return parse_number(fields.at(column)).value(); }
  double pre() const { return number(2); }
  double post() const { return number(3); }
  double loss() const { return number(4); }
  bool skipped() const { return fields.at(5) == "1"; }
  const std::string& reason() const { return fields.at(6); }
  double scale() const { return number(7); }
};

inline std::vector<Row> read_log(const std::string& path) {
  std::vector<Row> rows;
  for (const std::string& line : split(read_file(path), '\n')) {
    rows.push_back({split(line + ",", ',')});
  }
  if (!rows.empty()) rows.erase(rows.begin());  // the header
  return rows;
}

struct Result {
  int status = -1;  // -1: ended by a signal
  std::string out;
  std::string err;
  std::vector<Row> rows;  // of the CSV log
  double cpu_seconds = 0.0;

  Words lines(std::string_view tag) const {
    Words found;
    for (const std::string& line : split(out, '\n')) {
      if (line.starts_with(tag)) found.push_back(line);
    }
    return found;
  }
  /// The whole numbers in the line of the summary that begins with `name`.
  std::vector<int64_t> summary(std::string_view name) const {
    std::vector<int64_t> numbers;
    const Words found = lines(name);
    if (found.size() != 1) return {};
    for (std::string word : split(found[0], ' ')) {
      if (word.ends_with(',')) word.pop_back();
      if (const auto value = parse_integer(word)) numbers.push_back(*value);
    }
    return numbers;
  }
  double test_accuracy() const {
    const Words found = lines("test accuracy: ");
    return found.size() == 1 ? parse_number(split(found[0], ' ').at(2)).value() : NAN;
  }
};

class Demo : public testing::Test {
 protected:
  Demo() {
    std::string pattern = testing::TempDir() + "amp_demo_test.XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Demo() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// Runs amp_demo; `prepare` is called in the new process, its standard output and error already
  /// in files.
  Result run(const Words& arguments, const std::function<void()>& prepare = {}) const {
    Words words{AMP_DEMO_PATH};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    const pid_t child = ::fork();
    if (child == 0) {
      const int flags = O_WRONLY | O_CREAT | O_TRUNC;
      ::dup2(::open(path("out").c_str(), flags, 0600), STDOUT_FILENO);
      ::dup2(::open(path("err").c_str(), flags, 0600), STDERR_FILENO);
      if (prepare) prepare();
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    int status = 0;
    rusage usage{};
    ::wait4(child, &status, 0, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = read_file(path("out")),
            .err = read_file(path("err")),
            .rows = {},
            .cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
  }

  /// A run that must succeed, with --csv.
  Result log(Words arguments) const {
    arguments.insert(arguments.end(), {"--csv", path("log.csv")});
    Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    result.rows = read_log(path("log.csv"));
    return result;
  }

 private:
  std::string folder_;
};

/// One line that says what went wrong, as all failures do.
inline void expect_complaint(const Result& result, int status, std::string_view about) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_TRUE(result.err.starts_with("amp_demo: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with('\n'));
  EXPECT_NE(result.err.find(about), std::string::npos) << result.err;
}

}  // namespace halfstep::demo
