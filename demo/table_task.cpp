// TableTask: splitting, scaling and batching the rows of a table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "halfstep/amp/autocast.h"
#include "halfstep/autograd/grad_mode.h"
#include "halfstep/core/error.h"
#include "halfstep/demo/checksum.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/tasks.h"

namespace halfstep::demo {
namespace {

/// Mean and standard deviation of a column over the given rows; a constant column has deviation 1.
struct Spread {
  double mean = 0.0;
  double deviation = 1.0;

  float apply(double value) const { return static_cast<float>((value - mean) / deviation); }
};

Spread spread_of(const Table& table, int64_t column, const std::vector<int64_t>& rows) {
  double sum = 0.0;
  double low = table.at(rows.front(), column);
  double high = low;
  for (const int64_t row : rows) {
    const double value = table.at(row, column);
    sum += value;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const auto n = static_cast<double>(rows.size());
  if (low == high) return {low, 1.0};
  const double mean = sum / n;
  const double width = high - low;  // squares of shares of it neither overflow nor vanish
  double squares = 0.0;
  for (const int64_t row : rows) {
    const double share = (table.at(row, column) - mean) / width;
    squares += share * share;
  }
  return {mean, width * std::sqrt(squares / n)};
}

int64_t target_index(const Table& table, std::string_view target) {
  if (target.empty()) return table.column_count() - 1;
  const auto found = std::ranges::find(table.columns, target);
  if (found == table.columns.end()) {
    throw UsageError(cat("--target ", quote(target), " given; ", table.path,
                         " has no column of that name in its header"));
  }
  if (std::ranges::count(table.columns, target) > 1) {
    throw UsageError(cat("--target ", quote(target), " given; ", table.path,
                         " has more than one column of that name"));
  }
  return found - table.columns.begin();
}

}  // namespace

TableTask::TableTask(const Table& table, std::string_view target, int64_t batch,
                     Generator& generator)
    : generator_(generator), features_(table.column_count() - 1), outputs_(1) {
  const int64_t n = table.row_count();
  if (n < 2) {
    throw FileError(cat(table.path, " has 1 row; there must be at least 2, to train and to test"));
  }
  const int64_t target_column = target_index(table, target);
  check_varies(table, target_column);
  if (holds_classes(table, target_column)) {
    labels_ = class_labels(table, target_column);
    outputs_ = *std::ranges::max_element(labels_) + 1;
  }

  const std::vector<int64_t> rows = generator.permutation(n);
  const auto middle = rows.begin() + std::max<int64_t>(1, n * 4 / 5);
  train_.assign(rows.begin(), middle);
  test_.assign(middle, rows.end());
  batch_ = std::min(batch, train_count());

  inputs_.resize(static_cast<size_t>(n * features_));
  for (int64_t column = 0; column < table.column_count(); ++column) {
    const Spread spread = spread_of(table, column, train_);
    const int64_t feature = column - (column > target_column ? 1 : 0);
    for (int64_t row = 0; row < n; ++row) {
      const float value = spread.apply(table.at(row, column));
      if (column != target_column) {
        inputs_[static_cast<size_t>(row * features_ + feature)] = value;
      } else if (!has_classes()) {
        numbers_.push_back(value);
      }
    }
  }
}

int64_t TableTask::steps_per_epoch() const { return (train_count() + batch_ - 1) / batch_; }

std::string TableTask::describe() const {
  return cat(train_count(), " rows to train on, ", test_count(), " to test, ", steps_per_epoch(),
             " steps per epoch");
}

std::vector<int64_t> TableTask::shuffled_rows(Generator& generator) const {
  std::vector<int64_t> rows;
  for (const int64_t i : generator.permutation(train_count())) {
    rows.push_back(train_[static_cast<size_t>(i)]);
  }
  return rows;
}

Batch TableTask::next_batch() {
  if (position_ == 0) {
    epoch_start_ = generator_.state();
    order_ = shuffled_rows(generator_);
  }
  const int64_t begin = position_;
  const int64_t end = std::min(begin + batch_, train_count());
  position_ = end == train_count() ? 0 : end;
  return {inputs_of(order_, begin, end), targets_of(order_, begin, end)};
}

Tensor TableTask::inputs_of(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const {
  Tensor x = Tensor::empty({end - begin, features_});
  float* out = x.mutable_data<float>();
  for (int64_t i = begin; i < end; ++i) {
    const float* row = inputs_.data() + rows[static_cast<size_t>(i)] * features_;
    out = std::copy(row, row + features_, out);
  }
  return x;
}

Tensor TableTask::targets_of(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const {
  Tensor targets = Tensor::zeros({end - begin, outputs_});
  float* out = targets.mutable_data<float>();
  for (int64_t i = begin; i < end; ++i) {
    const auto row = static_cast<size_t>(rows[static_cast<size_t>(i)]);
    if (has_classes()) {
      out[(i - begin) * outputs_ + labels_[row]] = 1.0f;
    } else {
      out[i - begin] = numbers_[row];
    }
  }
  return targets;
}

double TableTask::test(nn::Module& model, DType dtype) const {
  constexpr int64_t kChunk = 256;
  const NoGrad no_grad;
  const amp::Autocast autocast(Device::cpu(), dtype, dtype != DType::F32);
  int64_t right = 0;
  double mean = 0.0;
  for (const int64_t row : test_) {
    if (!has_classes()) {
      mean += static_cast<double>(numbers_[static_cast<size_t>(row)]) /
              static_cast<double>(test_count());
    }
  }
  double error = 0.0;  // squared, of the model and of the mean
  double spread = 0.0;
  for (int64_t begin = 0; begin < test_count(); begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, test_count());
    const std::vector<float> outputs = model(inputs_of(test_, begin, end)).to_vector<float>();
    for (int64_t i = begin; i < end; ++i) {
      const auto first = outputs.begin() + (i - begin) * outputs_;
      const auto row = static_cast<size_t>(test_[static_cast<size_t>(i)]);
      if (has_classes()) {
        right += std::max_element(first, first + outputs_) - first == labels_[row] ? 1 : 0;
      } else {
        const auto target = static_cast<double>(numbers_[row]);
        error += (target - static_cast<double>(*first)) * (target - static_cast<double>(*first));
        spread += (target - mean) * (target - mean);
      }
    }
  }
  if (has_classes()) return static_cast<double>(right) / static_cast<double>(test_count());
  if (spread == 0.0) return std::numeric_limits<double>::quiet_NaN();  // nothing to explain
  return 1.0 - error / spread;
}

double TableTask::data_checksum() const {
  Checksum checksum;
  checksum.add(inputs_);
  checksum.add(numbers_);
  checksum.add(labels_);
  return static_cast<double>(checksum.value() >> 12);  // what a double holds
}

// In the middle of an epoch the generator is saved as it was at its start: its order is drawn
// again.
StateDict TableTask::state_dict() const {
  Generator generator = generator_;
  if (position_ > 0) generator.set_state(epoch_start_);
  StateDict out;
  out.add("generator", generator.state_dict());
  out.numbers["position"] = static_cast<double>(position_);
  out.numbers["data"] = data_checksum();
  return out;
}

TakeOver TableTask::prepare_load(const StateDict& state) {
  StateReader reader("amp_demo.resume", state);
  const int64_t position = reader.whole_number("position", 0.0);
  HS_CHECK(position < train_count() && position % batch_ == 0, ArgumentError, reader.op(),
           "position = ", position, " given; it must be a multiple of ", batch_, " below ",
           train_count(), "; is the data file another one?");
  HS_CHECK(reader.number("data") == data_checksum(), ArgumentError, reader.op(),
           "the run began with other data than --data holds now; it must go on with the same");
  Generator generator;
  generator.prepare_load(reader.part("generator"))();
  reader.finish();
  const Generator::State epoch_start = generator.state();
  std::vector<int64_t> order;
  if (position > 0) order = shuffled_rows(generator);
  return [this, position, epoch_start, state_now = generator.state(),
          order = std::move(order)]() mutable {
    generator_.set_state(state_now);
    position_ = position;
    epoch_start_ = epoch_start;
    order_.swap(order);
  };
}

}  // namespace halfstep::demo
