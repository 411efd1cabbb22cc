// Any bytes as a data file: they are refused by a FileError, or make a table, which is the same
// after it was written in another way and read again, and from which batches can be drawn.
#include <algorithm>
#include <cmath>

#include "halfstep/demo/tasks.h"
#include "halfstep/tests/fuzz/fuzz.h"

namespace halfstep::fuzz {
namespace {

/// Every name in quotes, every number in its shortest form.
std::string csv_of(const demo::Table& table) {
  std::string out;
  for (const std::string& name : table.columns) out += cat(out.empty() ? "\"" : ",\"", name, "\"");
  for (int64_t row = 0; row < table.row_count(); ++row) {
    for (int64_t column = 0; column < table.column_count(); ++column) {
      out += cat(column == 0 ? "\n" : ",", table.at(row, column));
    }
  }
  return out;
}

void check_task(const demo::Table& table) {
  Generator generator(1);
  try {
    demo::TableTask task(table, "", 4, generator);
    for (int step = 0; step < 3; ++step) {
      const demo::Batch batch = task.next_batch();
      for (const Tensor& x : {batch.inputs, batch.targets}) {
        for (const float value : x.to_vector<float>()) FUZZ_CHECK(std::isfinite(value), value);
      }
    }
    const StateDict state = task.state_dict();
    task.prepare_load(state)();
    FUZZ_CHECK(state.numbers == task.state_dict().numbers, "another state after loading");
  } catch (const FileError&) {  // one row, or nothing to learn
  }
}

void check(std::string_view text) {
  demo::Table table;
  const MemoryFile file(text);
  try {
    table = demo::read_table(file.path());
  } catch (const FileError&) {
    return;
  }
  const size_t rows = table.line_of_row.size();
  FUZZ_CHECK(table.columns.size() >= 2 && rows >= 1, "too small");
  FUZZ_CHECK(table.values.size() == rows * table.columns.size(), "not a rectangle");
  FUZZ_CHECK(std::ranges::is_sorted(table.line_of_row, std::less_equal<>()) &&
                 table.line_of_row.front() >= 2 &&
                 table.line_of_row.back() <= 1 + std::ranges::count(text, '\n'),
             "rows in lines that are not there");
  for (const double value : table.values) {
    FUZZ_CHECK(std::isfinite(value) && std::isfinite(static_cast<float>(value)), value);
  }

  const MemoryFile other_file(csv_of(table));
  const demo::Table other = demo::read_table(other_file.path());
  FUZZ_CHECK(other.columns == table.columns, "other names");
  FUZZ_CHECK(std::ranges::equal(other.values, table.values, same_bits), "other values");
  check_task(table);
}

}  // namespace
}  // namespace halfstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  halfstep::fuzz::check(halfstep::fuzz::text_of(data, size));
  return 0;
}
