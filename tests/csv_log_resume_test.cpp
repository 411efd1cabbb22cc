// A CSV log that goes on where a run is resumed: exactly the rows before that step stay, one
// header, one writer; and a file that is something else stays as it is.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <string>
#include <vector>

#include "halfstep/amp/csv_log.h"
#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/file_testing.h"

namespace halfstep {
namespace {

using amp::CsvLog;
using amp::kCsvHeader;
using amp::StepLog;
using test::expect_says;
using test::message_of;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;

StepLog step(int64_t number, float loss = 0.5f) { return {number, 0.01, 2.0, 1.0, loss, 1.0}; }

std::string rows(int64_t begin, int64_t end) {
  std::string text;
  for (int64_t i = begin; i < end; ++i) text += amp::csv_row(step(i)) + "\n";
  return text;
}

std::string whole(int64_t steps) { return std::string(kCsvHeader) + "\n" + rows(0, steps); }

class CsvLogResume : public testing::Test {
 protected:
  const std::string& path() const { return path_; }

  /// What is in the file after it was opened at `next_step` and got one row more.
  std::string resumed(const std::string& before, int64_t next_step) {
    write_text(path_, before);
    CsvLog log(path_, next_step);
    log.append(step(next_step));
    return read_text(path_);
  }

  /// The complaint about a file that does not fit, which must stay as it was.
  std::string refusal(const std::string& before, int64_t next_step) {
    write_text(path_, before);
    const std::string message = message_of<FileError>([&] { CsvLog(path_, next_step); });
    EXPECT_EQ(read_text(path_), before);
    return message;
  }

 private:
  TemporaryFolder folder_;
  std::string path_ = folder_ / "run.csv";
};

TEST_F(CsvLogResume, keeps_the_rows_before_the_step_and_drops_the_others) {
  for (const int64_t next : {1, 2, 5}) {
    EXPECT_EQ(resumed(whole(5), next), whole(next + 1)) << next;
  }
}

TEST_F(CsvLogResume, drops_a_last_line_that_was_cut_short) {
  const std::string five = whole(5);
  for (size_t cut = 1; cut < 10; ++cut) {
    EXPECT_EQ(resumed(five.substr(0, five.size() - cut), 4), whole(5)) << cut;
    EXPECT_EQ(resumed(five + five.substr(five.size() - 20, cut), 5), whole(6)) << cut;
  }
}

TEST_F(CsvLogResume, works_across_the_pieces_in_which_a_long_file_is_read) {
  constexpr int64_t kSteps = 10'000;  // some 300,000 bytes
  for (const int64_t next : {1L, 2999L, 3000L, kSteps - 1, kSteps}) {
    EXPECT_EQ(resumed(whole(kSteps), next), whole(next + 1)) << next;
  }
}

TEST_F(CsvLogResume, at_step_0_the_file_is_replaced_whatever_it_holds) {
  EXPECT_EQ(resumed("something else", 0), whole(1));
  EXPECT_EQ(resumed(whole(5), 0), whole(1));
}

TEST_F(CsvLogResume, an_empty_or_missing_file_begins_with_the_row_of_the_step) {
  const std::string expected = std::string(kCsvHeader) + "\n" + rows(7, 8);
  EXPECT_EQ(resumed("", 7), expected);
  std::filesystem::remove(path());
  CsvLog log(path(), 7);
  log.append(step(7));
  EXPECT_EQ(read_text(path()), expected);
}

TEST_F(CsvLogResume, a_file_that_is_not_a_log_is_refused_untouched) {
  const std::string header(kCsvHeader);
  for (const std::string& text :
       {std::string("a,b\n1,2\n"), header, header + "x\n" + rows(0, 5), "x" + whole(5),
        "\n" + whole(5), header + "\r\n" + rows(0, 5), rows(0, 5)}) {
    expect_says(refusal(text, 3), {path(), "does not begin with the line", "step,lr"});
  }
}

TEST_F(CsvLogResume, a_row_that_is_missing_doubled_or_torn_is_refused_by_its_number) {
  const std::string header = std::string(kCsvHeader) + "\n";
  const auto says_row = [&](const std::string& text, int64_t row) {
    expect_says(refusal(text, 4), {path(), cat("step ", row), "resumed at step 4"});
  };
  says_row(header, 0);
  says_row(whole(2), 2);
  says_row(whole(3) + rows(4, 6), 3);
  says_row(whole(3) + rows(2, 6), 3);
  says_row(header + rows(1, 6), 0);
  says_row(whole(3) + "3,0.01,2,1,0.5,0,\n" + rows(4, 6), 3);     // one field too few
  says_row(whole(3) + "3,0.01,2,1,0.5,0,,1,\n" + rows(4, 6), 3);  // one too many
  says_row(whole(3) + "33,0.01,2,1,0.5,0,,1\n" + rows(4, 6), 3);  // another number that begins so
  says_row(whole(3) + rows(3, 4).substr(0, 10), 3);               // cut short, and needed
}

TEST_F(CsvLogResume, a_file_that_another_log_writes_to_is_refused_untouched) {
  write_text(path(), whole(2));
  CsvLog log(path(), 2);
  for (const int64_t next : {0, 1, 2}) {
    const auto open = [&] { CsvLog(path(), next); };
    expect_says(message_of<FileError>(open), {path(), "locked", "another run"});
  }
  log.append(step(2));
  EXPECT_EQ(read_text(path()), whole(3));
}

TEST_F(CsvLogResume, can_be_opened_again_when_the_log_is_gone) {
  { CsvLog log(path()); }
  CsvLog log(path());
  log.append(step(0));
  log.sync();
  EXPECT_EQ(read_text(path()), whole(1));
}

TEST(CsvLogSync, is_no_error_on_a_device_that_has_no_disk) {
  CsvLog log("/dev/null");
  log.append(step(0));
  EXPECT_NO_THROW(log.sync());
  EXPECT_NO_THROW(CsvLog("/dev/null")) << "devices are not locked";
}

}  // namespace
}  // namespace halfstep
