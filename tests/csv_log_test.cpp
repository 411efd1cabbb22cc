// The CSV log: the exact text of its rows, that every row is in the file before the next step
// begins, and that a full disk costs no row that was already written.
#include "halfstep/amp/csv_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::csv_row;
using amp::CsvLog;
using amp::SkipLog;
using amp::SkipReason;
using amp::StepLog;
using test::expect_says;
using test::message_of;

constexpr std::string_view kHeader =
    "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale";

/// A file name of this test process that is removed at the end.
struct TemporaryFile {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("halfstep_csv_" + std::to_string(getpid()) + ".csv"))
                         .string();
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::string text() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

const StepLog kStep{3, 0.01, 2.5, 1.0, 0.1f, 65536.0};
const std::string kStepRow = "3,0.01,2.5,1,0.1,0,,65536";

SkipLog skip(SkipReason reason, std::optional<double> pre, float loss) {
  return {4, 0.01, pre, loss, reason, 32768.0, "0.weight", 7, test::kInfinity};
}

TEST(CsvRow, of_a_step) { EXPECT_EQ(csv_row(kStep), kStepRow); }

TEST(CsvRow, of_a_non_finite_gradient_has_the_norm_before_and_none_after) {
  EXPECT_EQ(csv_row(skip(SkipReason::kNonFiniteGrad, HUGE_VAL, 0.5f)),
            "4,0.01,inf,,0.5,1,non_finite_grad,32768");
  for (const double nan : {std::nan(""), -std::nan("")}) {
    EXPECT_EQ(csv_row(skip(SkipReason::kNonFiniteGrad, nan, 0.5f)),
              "4,0.01,nan,,0.5,1,non_finite_grad,32768");
  }
}

TEST(CsvRow, of_a_non_finite_loss_has_no_norms) {
  const auto row = [](float loss) {
    return csv_row(skip(SkipReason::kNonFiniteLoss, std::nullopt, loss));
  };
  EXPECT_EQ(row(test::kInfinity), "4,0.01,,,inf,1,non_finite_loss,32768");
  EXPECT_EQ(row(-test::kInfinity), "4,0.01,,,-inf,1,non_finite_loss,32768");
  EXPECT_EQ(row(test::kNan), "4,0.01,,,nan,1,non_finite_loss,32768");
  EXPECT_EQ(row(-test::kNan), "4,0.01,,,nan,1,non_finite_loss,32768");
}

TEST(CsvRow, numbers_are_the_shortest_that_read_back) {
  EXPECT_EQ(csv_row(StepLog{0, 0.1 + 0.2, 1e-300, 1e300, 16777216.0f, 1.0}),
            "0,0.30000000000000004,1e-300,1e+300,16777216,0,,1");
  EXPECT_EQ(csv_row(StepLog{9007199254740993, 1.0 / 3.0, 0.0, -0.0, 1.0f / 3.0f, 0x1p-126}),
            "9007199254740993,0.3333333333333333,0,-0,0.33333334,0,,1.1754943508222875e-38");
  Generator generator(1);
  const auto values = generator.normal({1000}).to_vector<float>();
  for (const float v : values) {
    const double wide = static_cast<double>(v) / 3.0;
    double lr = 0.0, pre = 0.0, post = 0.0;
    float loss = 0.0f;
    const std::string row = csv_row(StepLog{0, wide, wide, wide, v, 1.0});
    ASSERT_EQ(std::sscanf(row.c_str(), "0,%lf,%lf,%lf,%f,0,,1", &lr, &pre, &post, &loss), 4) << row;
    EXPECT_EQ(lr, wide);
    EXPECT_EQ(pre, wide);
    EXPECT_EQ(post, wide);
    EXPECT_EQ(loss, v);
  }
}

/// Numbers as German writes them, for streams that ask the global locale.
struct DecimalComma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(CsvRow, does_not_depend_on_the_locale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new DecimalComma));
  EXPECT_EQ(csv_row(kStep), kStepRow) << "C++ locale";
  std::locale::global(before);
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "sv_SE.UTF-8"}) {
    if (std::setlocale(LC_ALL, name) == nullptr) continue;  // not installed
    EXPECT_EQ(csv_row(kStep), kStepRow) << name;
  }
  std::setlocale(LC_ALL, c_before.c_str());
}

TEST(CsvRow, has_as_many_fields_as_the_header) {
  const auto fields = [](std::string_view row) { return std::count(row.begin(), row.end(), ','); };
  EXPECT_EQ(amp::kCsvHeader, kHeader);
  EXPECT_EQ(fields(csv_row(kStep)), fields(kHeader));
  EXPECT_EQ(fields(csv_row(skip(SkipReason::kNonFiniteLoss, std::nullopt, 1.0f))), fields(kHeader));
}

TEST(CsvLog, every_row_is_in_the_file_as_soon_as_it_is_appended) {
  const TemporaryFile file;
  CsvLog log(file.path);
  std::string expected = std::string(kHeader) + "\n";
  EXPECT_EQ(file.text(), expected);
  for (int i = 0; i < 3; ++i) {
    log.append(kStep);
    expected += kStepRow + "\n";
    EXPECT_EQ(file.text(), expected);
  }
}

TEST(CsvLog, replaces_the_file) {
  const TemporaryFile file;
  std::ofstream(file.path) << "something else\nthat is longer than the header by far"
                           << std::string(200, '.');
  const CsvLog log(file.path);
  EXPECT_EQ(file.text(), std::string(kHeader) + "\n");
}

TEST(CsvLog, an_unwritable_path_is_an_error_that_names_it) {
  for (const std::string path : {"/no/such/folder/log.csv", "/proc", ""}) {
    expect_says(message_of<FileError>([&] { CsvLog log(path); }), {"CsvLog", "cannot open", path});
  }
}

TEST(CsvLog, a_full_disk_is_an_error_that_names_the_path) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  expect_says(message_of<FileError>([] { CsvLog log("/dev/full"); }), {"/dev/full", "space"});
}

/// While it lives, no file of this process may grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(CsvLog, a_row_that_could_not_be_written_whole_does_not_spoil_the_others) {
  const TemporaryFile file;
  CsvLog log(file.path);
  log.append(kStep);
  const std::string complete = file.text();
  for (const size_t room : {0, 1, 5}) {  // for a part of a row
    const FileSizeLimit limit(complete.size() + room);
    expect_says(message_of<FileError>([&] { log.append(kStep); }), {file.path, "File too large"});
    EXPECT_EQ(file.text(), complete) << room;
  }
  // The disk has room again: complete lines are exactly the rows that were appended.
  log.append(kStep);
  EXPECT_EQ(file.text(), complete + kStepRow + "\n");
}

}  // namespace
}  // namespace halfstep
