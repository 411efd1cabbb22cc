// The demo's parts without the program: strict numbers, the reader of data files, injections, what
// settings turn into, and rows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "halfstep/core/error.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/report.h"
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
    const Table table = read_table(file.path());
    class_labels(table, table.column_count() - 1);
    return "";
  } catch (const FileError& error) {
    std::string message = error.what();
    for (size_t at = 0; (at = message.find(file.path())) != std::string::npos;) {
      message.replace(at, file.path().size(), "FILE");
    }
    return message;
  }
}

template <class Fn>
std::string usage_complaint(Fn&& fn) {
  try {
    fn();
    return "";
  } catch (const UsageError& error) {
    return error.what();
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
            "FILE, line 1 has one column, 'a;b'; there must be at least one feature and a class, "
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
  const std::string rule = "; a class must be a whole number from 0 to 999";
  EXPECT_EQ(complaint("a,c\n1,0\n1,999\n"), "");
  EXPECT_EQ(complaint("a,c\n1,0\n1,1000\n"), "FILE, line 3, column 2 ('c') is 1000" + rule);
  EXPECT_EQ(complaint("a,c\n1,1e30\n"), "FILE, line 2, column 2 ('c') is 1e+30" + rule);
  EXPECT_EQ(complaint("a,c\n1,-1\n"), "FILE, line 2, column 2 ('c') is -1" + rule);
  EXPECT_EQ(complaint("a,c\n1,0.5\n"), "FILE, line 2, column 2 ('c') is 0.5" + rule);
  EXPECT_EQ(complaint("a,c\n1,0\n2,0\n"),
            "FILE, column 2 ('c') is 0 in every row; there must be at least two classes");
}

/// 10 rows; the features are row, 100 row and a constant, the class is row % 3.
Table small_table() {
  std::string text = "x,y,z,class\n";
  for (int row = 0; row < 10; ++row) text += cat(row, ",", 100 * row, ",7,", row % 3, "\n");
  return table_of(text);
}

TEST(ClassTask, one_row_is_too_few) {
  Generator generator(0);
  EXPECT_THROW(ClassTask(table_of("a,c\n1,1\n"), generator), FileError);
}

TEST(ClassTask, the_split_is_80_to_20_and_features_are_standardised_on_the_training_part) {
  Generator generator(3);
  const ClassTask task(small_table(), generator);
  EXPECT_EQ(task.features(), 3);
  EXPECT_EQ(task.classes(), 3);
  ASSERT_EQ(task.train_count(), 8);
  EXPECT_EQ(task.test_count(), 2);
  const std::vector<float> x = task.batch(0, 8).inputs.to_vector<float>();
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

TEST(ClassTask, shuffling_keeps_each_row_with_its_class_and_uses_every_row_once) {
  Generator generator(3);
  ClassTask task(small_table(), generator);
  std::map<float, std::vector<float>> target_of;  // by the first feature, which tells rows apart
  std::set<std::vector<float>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const Batch batch = task.batch(0, 8);
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
    task.shuffle(generator);
  }
  EXPECT_EQ(target_of.size(), 8u);
  EXPECT_EQ(orders.size(), 4u);
}

TEST(Injection, is_read_and_written_in_the_same_form) {
  for (const char* text :
       {"inf-grad@5", "inf-grad@0", "target-spike@7:1e+08", "target-spike@7:-2"}) {
    EXPECT_EQ(parse_injection(text).str(), text);
  }
  EXPECT_EQ(parse_injection("target-spike@7:1e8"),
            (Injection{.kind = Injection::Kind::kTargetSpike, .step = 7, .factor = 1e8}));
}

TEST(Injection, anything_else_is_refused_with_what_was_given) {
  for (const char* text :
       {"", "foo", "foo@5", "inf-grad", "inf-grad@", "inf-grad@x", "inf-grad@-1", "inf-grad@1.5",
        "inf-grad@5:", "inf-grad@5:1", "target-spike@7", "target-spike@7:", "target-spike@7:x",
        "target-spike@7:inf", "target-spike@7:nan", "target-spike@7:1e39", "@5", "inf-grad@5@5"}) {
    const std::string message = usage_complaint([&] { parse_injection(text); });
    EXPECT_TRUE(message.starts_with(cat("--inject ", quote(text), " given; "))) << message;
  }
}

TEST(Injection, none_stands_alone) {
  EXPECT_TRUE(parse_injections({"none"}).empty());
  EXPECT_EQ(parse_injections({"inf-grad@1", "inf-grad@2"}).size(), 2u);
  EXPECT_THROW(parse_injections({"none", "inf-grad@1"}), UsageError);
  EXPECT_THROW(parse_injections({"none", "none"}), UsageError);
}

TEST(Injection, acts_at_its_step_only_and_leaves_the_targets_given_alone) {
  const Injector injector(
      parse_injections({"target-spike@2:10", "target-spike@2:3", "inf-grad@4"}));
  const Tensor targets = Tensor::from({1, 2}, {2});
  EXPECT_EQ(injector.spoil_targets(2, targets).to_vector<float>(), (std::vector<float>{30, 60}));
  EXPECT_EQ(injector.spoil_targets(1, targets).to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(targets.to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_TRUE(injector.acts_at(2));
  EXPECT_TRUE(injector.acts_at(4));
  EXPECT_FALSE(injector.acts_at(3));
}

TEST(Options, defaults_are_the_lessons_run) {
  const DemoOptions options = make_options({});
  EXPECT_EQ(options.steps, 20);
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.lr, 1e-2);
  EXPECT_EQ(options.max_norm, 1.0);
  EXPECT_EQ(options.seed, 0u);
  EXPECT_EQ(options.dtype, DType::BF16);
  EXPECT_FALSE(options.scaler.enabled);
  EXPECT_EQ(options.injections, parse_injections({"inf-grad@5"}));
}

TEST(Options, with_data_the_defaults_are_those_of_the_digits_run) {
  const DemoOptions options = make_options({{"data", {"x.csv"}}});
  EXPECT_EQ(options.epochs, 40);
  EXPECT_EQ(options.hidden, 128);
  EXPECT_EQ(options.lr, 3e-3);
  EXPECT_TRUE(options.injections.empty());
}

TEST(Options, what_is_given_replaces_the_default_in_both_modes) {
  for (const bool with_data : {false, true}) {
    GivenSettings given{{"lr", {"0.5"}},
                        {"batch", {"3"}},
                        {"inject", {"inf-grad@1", "inf-grad@2"}},
                        {"fp16", {""}}};
    if (with_data) given["data"] = {"x.csv"};
    const DemoOptions options = make_options(given);
    EXPECT_EQ(options.lr, 0.5);
    EXPECT_EQ(options.batch, 3);
    EXPECT_EQ(options.injections, parse_injections({"inf-grad@1", "inf-grad@2"}));
    EXPECT_EQ(options.dtype, DType::F16);
    EXPECT_TRUE(options.scaler.enabled);
  }
}

TEST(Report, a_row_ends_after_100_characters) {
  const amp::SkipLog skip{.step = 1'000'000'000,
                          .lr = 1e-10,
                          .grad_l2_pre_clip = INFINITY,
                          .loss = 1e-30f,
                          .reason = amp::SkipReason::kNonFiniteGrad,
                          .scaler_scale = 1e30,
                          .parameter = std::string(100, 'x')};
  EXPECT_EQ(step_row(skip).size(), 100u);
}

TEST(Report, numbers_are_readable_whatever_their_size) {
  const auto row = [](double pre, double post, float loss, double scale) {
    return step_row(amp::StepLog{.step = 3,
                                 .lr = 3e-5,
                                 .grad_l2_pre_clip = pre,
                                 .grad_l2_post_clip = post,
                                 .loss = loss,
                                 .scaler_scale = scale});
  };
  EXPECT_EQ(row(1.10349e8, 1.0, 0.46231f, 16777216),
            "STEP     3     0.4623 3.000e-05  1.103e+08     1.0000   16777216");
  EXPECT_EQ(row(0.0, 1e-300, 1e30f, 0x1p100),
            "STEP     3  1.000e+30 3.000e-05          0 1.000e-300 1.2677e+30");
  EXPECT_EQ(row(99998.0, 0.001, 0.0f, 0.5),
            "STEP     3          0 3.000e-05 99998.0000     0.0010        0.5");
}

}  // namespace
}  // namespace halfstep::demo
