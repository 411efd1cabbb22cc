// Reading a table line by line, so that a wrong file is refused at its first wrong line.
#include "halfstep/demo/table.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

constexpr size_t kLongestLine = size_t{1} << 22;
constexpr size_t kMostValues = size_t{1} << 26;  // half a gigabyte
constexpr int64_t kMostClasses = 1000;

std::string place(const std::string& path, int64_t line) { return cat(path, ", line ", line); }

std::string place(const std::string& path, int64_t line, size_t column, std::string_view name) {
  return cat(place(path, line), ", column ", column + 1, " (", quote(name), ")");
}

/// Lines of a file, without their ends.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : path_(path), file_(open(path)) {}

  /// False at the end of the file. The text is valid until the next call.
  bool next(std::string_view& text) {
    line_.clear();
    ++number_;
    for (int c = 0; (c = ::getc_unlocked(file_.get())) != EOF;) {
      if (c == '\n') return finish(text);
      if (c == '\0') refuse(" has a zero byte; this is not a text file");
      if (line_.size() == kLongestLine)
        refuse(": more than 4 MiB in one line; is this a CSV file?");
      line_ += static_cast<char>(c);
    }
    if (std::ferror(file_.get())) {
      throw FileError(cat("cannot read ", path_, ": ", system_message(errno)));
    }
    return !line_.empty() && finish(text);
  }

  int64_t number() const { return number_; }

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  static File open(const std::string& path) {
    File file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) throw FileError(cat("cannot open ", path, ": ", system_message(errno)));
    return file;
  }

  bool finish(std::string_view& text) {
    text = line_;
    if (text.ends_with('\r')) text.remove_suffix(1);
    return true;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    const auto column = 1 + std::ranges::count(line_, ',');
    throw FileError(cat(place(path_, number_), ", column ", column, what));
  }

  const std::string& path_;
  File file_;
  std::string line_;
  int64_t number_ = 0;
};

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// Calls fn(index, field) for each comma-separated field; returns how many there are.
template <class Fn>
size_t for_each_field(std::string_view line, Fn&& fn) {
  size_t count = 0;
  for (size_t begin = 0; begin <= line.size(); ++count) {
    const size_t end = std::min(line.find(',', begin), line.size());
    fn(count, trim(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return count;
}

std::vector<std::string> read_header(LineReader& lines, const std::string& path) {
  std::string_view line;
  if (!lines.next(line)) {
    throw FileError(cat(path, " is empty; it must begin with a header row of column names"));
  }
  if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  std::vector<std::string> names;
  size_t numbers = 0;
  for_each_field(line, [&](size_t, std::string_view field) {
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"') {
      field = field.substr(1, field.size() - 2);
    }
    numbers += parse_number(field) ? 1 : 0;
    names.emplace_back(field);
  });
  if (names.size() < 2) {
    throw FileError(cat(place(path, 1), " has one column, ", quote(names.front()),
                        "; there must be at least one feature and a target, separated by commas"));
  }
  if (numbers == names.size()) {
    throw FileError(cat(place(path, 1), " holds numbers; it must be a header row of column names"));
  }
  return names;
}

void read_row(std::string_view line, int64_t number, Table& table) {
  const size_t wanted = table.columns.size();
  const size_t count = for_each_field(line, [&](size_t column, std::string_view field) {
    if (column >= wanted) return;
    const std::optional<double> value = parse_number(field);
    // NaN fails this comparison too.
    if (value && std::fabs(*value) <= static_cast<double>(std::numeric_limits<float>::max())) {
      table.values.push_back(*value);
      return;
    }
    throw FileError(cat(place(table.path, number, column, table.columns[column]), " is ",
                        quote(field), "; it must be a finite number within float32"));
  });
  if (count < wanted) {
    throw FileError(cat(place(table.path, number, count, table.columns[count]),
                        " is missing; the header has ", wanted, " columns"));
  }
  if (count > wanted) {
    throw FileError(cat(place(table.path, number), ", column ", wanted + 1,
                        " is one too many; the header has ", wanted, " columns"));
  }
  if (table.values.size() > kMostValues) {
    throw FileError(cat(place(table.path, number), ": more than ", kMostValues,
                        " values; files of that size are not supported"));
  }
  table.line_of_row.push_back(number);
}

}  // namespace

std::string Table::where(int64_t row, int64_t column) const {
  const auto c = static_cast<size_t>(column);
  return place(path, line_of_row[static_cast<size_t>(row)], c, columns[c]);
}

Table read_table(const std::string& path) {
  LineReader lines(path);
  Table table{.path = path, .columns = read_header(lines, path), .values = {}, .line_of_row = {}};
  for (std::string_view line; lines.next(line);) {
    if (!trim(line).empty()) read_row(line, lines.number(), table);
  }
  if (table.row_count() == 0) {
    throw FileError(cat(path, " has a header and no rows; at least one must follow"));
  }
  return table;
}

bool holds_classes(const Table& table, int64_t column) {
  for (int64_t row = 0; row < table.row_count(); ++row) {
    const double value = table.at(row, column);
    if (!(value >= 0.0 && value < static_cast<double>(kMostClasses)) ||
        value != std::floor(value)) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> class_labels(const Table& table, int64_t column) {
  std::vector<int64_t> labels;
  for (int64_t row = 0; row < table.row_count(); ++row) {
    labels.push_back(static_cast<int64_t>(table.at(row, column)));
  }
  return labels;
}

void check_varies(const Table& table, int64_t column) {
  const double first = table.at(0, column);
  for (int64_t row = 1; row < table.row_count(); ++row) {
    if (table.at(row, column) != first) return;
  }
  const std::string& name = table.columns[static_cast<size_t>(column)];
  throw FileError(cat(table.path, ", column ", column + 1, " (", quote(name), ") is ", first,
                      " in every row; there is nothing to learn"));
}

}  // namespace halfstep::demo
