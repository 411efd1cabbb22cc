// Table: a CSV file of numbers under a header row, read strictly: whatever is wrong with the file
// is one FileError that names file, line and column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halfstep::demo {

/// Values are finite and fit float32. Lines count from 1, the header's included.
struct Table {
  std::string path;
  std::vector<std::string> columns;  // names from the header
  std::vector<double> values;        // [rows, columns]
  std::vector<int64_t> line_of_row;  // blank lines are left out

  int64_t row_count() const { return static_cast<int64_t>(line_of_row.size()); }
  int64_t column_count() const { return static_cast<int64_t>(columns.size()); }
  double at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * column_count() + column)];
  }
  /// "digits.csv, line 3, column 65 ('digit')", for messages.
  std::string where(int64_t row, int64_t column) const;
};

/// Reads a comma-separated file: a header, then at least one row, each with as many numbers as the
/// header has names (at least 2). Takes LF and CRLF, a missing newline at the end, blank lines,
/// blanks around fields and a byte order mark.
Table read_table(const std::string& path);

/// Whether all values of a column are whole numbers from 0 to 999.
bool holds_classes(const Table& table, int64_t column);
/// Such a column as integers.
std::vector<int64_t> class_labels(const Table& table, int64_t column);
/// FileError if a column has the same value in every row: there is nothing to learn.
void check_varies(const Table& table, int64_t column);

}  // namespace halfstep::demo
