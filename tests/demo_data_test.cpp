// The demo's data without the program: strict numbers, the reader of data files, and the task that
// a table makes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/table.h"
#include "halfstep/demo/tasks.h"

namespace halfstep::demo {
namespace {

using namespace std::string_literals;

class TableFile {
 public:
  explicit TableFile(const std::string& contents)
      : path_(testing::TempDir() + "halfstep_table_" + std::to_string(::getpid()) + ".csv") {
    std::ofstream(path_, std::ios::binary) << contents;
  }
  ~TableFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Table table_of(const std::string& contents) { return read_table(TableFile(contents).path()); }

/// What the reader says about a file, with `FILE` for its path; empty if it is content.
std::string complaint(const std::string& contents) {
  const TableFile file(contents);
  try {
    read_table(file.path());
    return "";
  } catch (const FileError& error) {
    std::string message = error.what();
    for (size_t at = 0; (at = message.find(file.path())) != std::string::npos;) {
      message.replace(at, file.path().size(), "FILE");
    }
    return message;
  }
}

TEST(Parse, the_whole_text_must_be_a_number) {
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("+12"), 12);
  EXPECT_EQ(parse_number("1e-2"), 0.01);
  EXPECT_EQ(parse_number("+.5"), 0.5);
  EXPECT_EQ(parse_unsigned("18446744073709551615"), 18446744073709551615u);
  for (const char* text :
       {"", " ", "1x", " 1", "1 ", "+", "-", "+-1", "0x10", "1e", "1,5", "1e999"}) {
    EXPECT_FALSE(parse_number(text)) << text;
    EXPECT_FALSE(parse_integer(text)) << text;
  }
  EXPECT_FALSE(parse_integer("1e6"));
  EXPECT_FALSE(parse_integer("9223372036854775808"));
  EXPECT_FALSE(parse_unsigned("-1"));
}

TEST(Parse, quoted_text_stays_on_one_line_and_short) {
  EXPECT_EQ(quote("a\nb\t\x01"), "'a\\nb\\t\\x01'");
  EXPECT_EQ(quote("gr\u00fcn \u6570 \U0001F642"), "'gr\u00fcn \u6570 \U0001F642'");
  EXPECT_EQ(quote("\xff\xc3(\xed\xa0\x80\xc2\x85\xf0\x9f"),
            "'\\xff\\xc3(\\xed\\xa0\\x80\\xc2\\x85\\xf0\\x9f'");
  EXPECT_EQ(quote(std::string(1000, 'x')), "'" + std::string(40, 'x') + "'...");
}

TEST(Table, rows_columns_and_line_numbers_are_read) {
  const Table table = table_of("a,b,digit\n1,2.5,0\n-3e2,4,1\n");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b", "digit"}));
  EXPECT_EQ(table.values, (std::vector<double>{1, 2.5, 0, -300, 4, 1}));
  EXPECT_EQ(table.line_of_row, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(class_labels(table, 2), (std::vector<int64_t>{0, 1}));
}

TEST(Table, line_ends_blanks_quotes_and_a_byte_order_mark_do_not_matter) {
  const std::vector<double> values{1, 2, 3, 4};
  for (const std::string& contents :
       {"a,b\r\n1,2\r\n3,4\r\n"s, "a,b\n1,2\n3,4"s, "a,b\r\n1,2\r\n3,4"s, "\n1,2\n\n3,4\n\n"s,
        "\xEF\xBB\xBF\"a\",\"b\"\n 1 ,\t2\n3,4\n"s}) {
    const Table table = table_of(contents[0] == '\n' ? "a,b" + contents : contents);
    EXPECT_EQ(table.values, values) << contents;
    EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b"})) << contents;
  }
  EXPECT_EQ(table_of("a,b\n1,2\n\n3,4\n").line_of_row, (std::vector<int64_t>{2, 4}));
}

TEST(Table, what_is_wrong_is_said_with_file_line_and_column) {
  EXPECT_EQ(complaint(""), "FILE is empty; it must begin with a header row of column names");
  EXPECT_EQ(complaint("a,b\n"), "FILE has a header and no rows; at least one must follow");
  EXPECT_EQ(complaint("a,b"), "FILE has a header and no rows; at least one must follow");
  EXPECT_EQ(complaint("1,2\n3,4\n"),
            "FILE, line 1 holds numbers; it must be a header row of column names");
  EXPECT_EQ(complaint("a;b\n1;2\n"),
            "FILE, line 1 has one column, 'a;b'; there must be at least one feature and a target, "
            "separated by commas");
  EXPECT_EQ(complaint("a,b\n1,2\n3\n"),
            "FILE, line 3, column 2 ('b') is missing; the header has 2 columns");
  EXPECT_EQ(complaint("a,b\n1,2,3\n"),
            "FILE, line 2, column 3 is one too many; the header has 2 columns");
  EXPECT_EQ(complaint("a,b\n1,2,\n"),
            "FILE, line 2, column 3 is one too many; the header has 2 columns");
  const std::string rule = "; it must be a finite number within float32";
  EXPECT_EQ(complaint("a,b\n1,2\nx\ty,4\n"), "FILE, line 3, column 1 ('a') is 'x\\ty'" + rule);
  EXPECT_EQ(complaint("a,b\n1,\n"), "FILE, line 2, column 2 ('b') is ''" + rule);
  EXPECT_EQ(complaint("a,b\n1,2\n\r\nnan,1\n"), "FILE, line 4, column 1 ('a') is 'nan'" + rule);
  EXPECT_EQ(complaint("a,b\n-inf,1\n"), "FILE, line 2, column 1 ('a') is '-inf'" + rule);
  EXPECT_EQ(complaint("a,b\n1e39,1\n"), "FILE, line 2, column 1 ('a') is '1e39'" + rule);
  EXPECT_EQ(complaint("a,b\n1,2\n1\0,3\n"s),
            "FILE, line 3, column 1 has a zero byte; this is not a text file");
  EXPECT_EQ(complaint(std::string(size_t{5} << 20, 'a')),
            "FILE, line 1, column 1: more than 4 MiB in one line; is this a CSV file?");
}

TEST(Table, a_missing_file_and_a_directory_are_named_with_the_reason) {
  const auto message = [](const std::string& path) {
    try {
      read_table(path);
    } catch (const FileError& error) {
      return std::string(error.what());
    }
    return "no complaint about " + path;
  };
  EXPECT_EQ(message("/nowhere/x.csv"), "cannot open /nowhere/x.csv: No such file or directory");
  EXPECT_EQ(message("/tmp"), "cannot read /tmp: Is a directory");
  EXPECT_EQ(message("/dev/zero"),
            "/dev/zero, line 1, column 1 has a zero byte; this is not a text file");
}

TEST(Table, classes_are_whole_numbers_from_0_to_999) {
  const auto holds = [](const std::string& target) {
    return holds_classes(table_of("a,c\n1,0\n1," + target + "\n"), 1);
  };
  EXPECT_TRUE(holds("999"));
  EXPECT_TRUE(holds("3"));
  for (const char* target : {"1000", "1e30", "-1", "0.5"}) EXPECT_FALSE(holds(target)) << target;
}

/// 10 rows; the features are row, 100 row and a constant, the class is row % 3.
Table small_table() {
  std::string text = "x,y,z,class\n";
  for (int row = 0; row < 10; ++row) text += cat(row, ",", 100 * row, ",7,", row % 3, "\n");
  return table_of(text);
}

template <class E>
std::string task_complaint(const std::string& contents, std::string_view target = "") {
  const Table table = table_of(contents);
  Generator generator(0);
  try {
    TableTask(table, target, 2, generator);
    return "";
  } catch (const E& error) {
    std::string message = error.what();
    return message.replace(message.find(table.path), table.path.size(), "FILE");
  }
}

TEST(TableTask, what_cannot_be_learned_is_said) {
  EXPECT_EQ(task_complaint<FileError>("a,c\n1,1\n"),
            "FILE has 1 row; there must be at least 2, to train and to test");
  EXPECT_EQ(task_complaint<FileError>("a,c\n1,2\n2,2\n"),
            "FILE, column 2 ('c') is 2 in every row; there is nothing to learn");
  EXPECT_EQ(task_complaint<FileError>("a,c\n1,2.5\n2,2.5\n"),
            "FILE, column 2 ('c') is 2.5 in every row; there is nothing to learn");
  EXPECT_EQ(task_complaint<UsageError>("a,c\n1,2\n2,1\n", "d"),
            "--target 'd' given; FILE has no column of that name in its header");
  EXPECT_EQ(task_complaint<UsageError>("a,c\n1,2\n2,1\n", "a"), "");
}

TEST(TableTask, the_split_is_80_to_20_and_features_are_standardised_on_the_training_part) {
  Generator generator(3);
  TableTask task(small_table(), "", 8, generator);
  EXPECT_EQ(task.features(), 3);
  EXPECT_TRUE(task.has_classes());
  EXPECT_EQ(task.outputs(), 3);
  ASSERT_EQ(task.train_count(), 8);
  EXPECT_EQ(task.test_count(), 2);
  const std::vector<float> x = task.next_batch().inputs.to_vector<float>();
  for (size_t column = 0; column < 3; ++column) {
    double sum = 0.0, squares = 0.0;
    for (size_t row = 0; row < 8; ++row) {
      const double value = static_cast<double>(x[3 * row + column]);
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum, 0.0, 1e-5);
    EXPECT_NEAR(squares / 8, column == 2 ? 0.0 : 1.0, 1e-5);  // the constant column becomes 0
  }
}

TEST(TableTask, a_number_to_predict_is_standardised_and_the_other_columns_are_features) {
  Generator generator(3);
  TableTask task(small_table(), "y", 8, generator);  // y is 100 x: 900 is a class, so shift it
  EXPECT_TRUE(task.has_classes());
  std::string text = "x,y,z\n";
  for (int row = 0; row < 10; ++row) text += cat(row, ",", 0.5 + row, ",", row * row, "\n");
  TableTask numbers(table_of(text), "y", 8, generator);
  EXPECT_FALSE(numbers.has_classes());
  EXPECT_EQ(numbers.outputs(), 1);
  EXPECT_EQ(numbers.features(), 2);
  const Batch batch = numbers.next_batch();
  const std::vector<float> x = batch.inputs.to_vector<float>();
  const std::vector<float> y = batch.targets.to_vector<float>();
  double squares = 0.0;
  for (size_t row = 0; row < 8; ++row) {
    EXPECT_NEAR(x[2 * row], y[row], 1e-6);  // y is x + 0.5: the same once standardised
    squares += static_cast<double>(y[row]) * static_cast<double>(y[row]);
  }
  EXPECT_NEAR(squares / 8, 1.0, 1e-5);
}

TEST(TableTask, every_epoch_uses_every_row_once_with_its_class_in_a_new_order) {
  Generator generator(3);
  TableTask task(small_table(), "", 8, generator);
  std::map<float, std::vector<float>> target_of;  // by the first feature, which tells rows apart
  std::set<std::vector<float>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const Batch batch = task.next_batch();
    const std::vector<float> x = batch.inputs.to_vector<float>();
    const std::vector<float> y = batch.targets.to_vector<float>();
    std::vector<float> order;
    for (size_t row = 0; row < 8; ++row) {
      const std::vector<float> target(y.begin() + static_cast<long>(3 * row),
                                      y.begin() + static_cast<long>(3 * row + 3));
      EXPECT_EQ(std::accumulate(target.begin(), target.end(), 0.0f), 1.0f);
      const auto [known, is_new] = target_of.emplace(x[3 * row], target);
      EXPECT_EQ(is_new, epoch == 0);
      EXPECT_EQ(known->second, target);
      order.push_back(x[3 * row]);
    }
    orders.insert(order);
  }
  EXPECT_EQ(target_of.size(), 8u);
  EXPECT_EQ(orders.size(), 4u);
}

TEST(TableTask, the_last_batch_of_an_epoch_is_the_rest) {
  Generator generator(3);
  TableTask task(small_table(), "", 3, generator);
  EXPECT_EQ(task.steps_per_epoch(), 3);
  for (const int64_t rows : {3, 3, 2, 3}) EXPECT_EQ(task.next_batch().inputs.dim(0), rows);
}

TEST(TableTask, goes_on_from_any_batch_as_if_it_had_not_stopped) {
  for (int batches = 0; batches < 7; ++batches) {
    Generator generator(3);
    TableTask task(small_table(), "", 3, generator);
    for (int i = 0; i < batches; ++i) task.next_batch();
    Generator other(3);
    TableTask resumed(small_table(), "", 3, other);
    resumed.prepare_load(task.state_dict())();
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(resumed.next_batch().inputs.to_vector<float>(),
                task.next_batch().inputs.to_vector<float>())
          << batches << " batches before, " << i << " after";
    }
    EXPECT_EQ(other.state(), generator.state());
  }
}

}  // namespace
}  // namespace halfstep::demo
