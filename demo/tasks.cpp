// Drawing synthetic batches; splitting, scaling and batching the rows of a table.
#include "halfstep/demo/tasks.h"

#include <algorithm>
#include <cmath>

#include "halfstep/amp/autocast.h"
#include "halfstep/autograd/grad_mode.h"
#include "halfstep/autograd/ops.h"
#include "halfstep/core/error.h"

namespace halfstep::demo {

SyntheticTask::SyntheticTask(Generator& generator)
    : teacher_(generator.normal({kOutputs, kFeatures}, 0.0,
                                1.0 / std::sqrt(static_cast<double>(kFeatures)))) {}

Batch SyntheticTask::draw(Generator& generator, int64_t batch) const {
  Tensor inputs = generator.normal({batch, kFeatures});
  Tensor targets = linear(inputs, teacher_);
  targets.add_(generator.normal({batch, kOutputs}, 0.0, 0.1));
  return {std::move(inputs), std::move(targets)};
}

namespace {

/// Mean and standard deviation of a column over the given rows; a constant column has deviation 1.
struct Spread {
  double mean = 0.0;
  double deviation = 1.0;
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

}  // namespace

ClassTask::ClassTask(const Table& table, Generator& generator)
    : features_(table.column_count() - 1), labels_(class_labels(table, features_)) {
  const int64_t n = table.row_count();
  if (n < 2) {
    throw FileError(cat(table.path, " has 1 row; there must be at least 2, to train and to test"));
  }
  classes_ = *std::ranges::max_element(labels_) + 1;

  const std::vector<int64_t> order = generator.permutation(n);
  const auto middle = order.begin() + std::max<int64_t>(1, n * 4 / 5);
  train_.assign(order.begin(), middle);
  test_.assign(middle, order.end());

  inputs_.resize(static_cast<size_t>(n * features_));
  for (int64_t column = 0; column < features_; ++column) {
    const Spread spread = spread_of(table, column, train_);
    for (int64_t row = 0; row < n; ++row) {
      const double value = (table.at(row, column) - spread.mean) / spread.deviation;
      inputs_[static_cast<size_t>(row * features_ + column)] = static_cast<float>(value);
    }
  }
}

void ClassTask::shuffle(Generator& generator) {
  std::vector<int64_t> next;
  next.reserve(train_.size());
  for (const int64_t i : generator.permutation(train_count())) {
    next.push_back(train_[static_cast<size_t>(i)]);
  }
  train_ = std::move(next);
}

Tensor ClassTask::gather(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const {
  Tensor x = Tensor::empty({end - begin, features_});
  float* out = x.mutable_data<float>();
  for (int64_t i = begin; i < end; ++i) {
    const float* row = inputs_.data() + rows[static_cast<size_t>(i)] * features_;
    out = std::copy(row, row + features_, out);
  }
  return x;
}

Batch ClassTask::batch(int64_t begin, int64_t end) const {
  Tensor targets = Tensor::zeros({end - begin, classes_});
  float* out = targets.mutable_data<float>();
  for (int64_t i = begin; i < end; ++i) {
    const auto row = static_cast<size_t>(train_[static_cast<size_t>(i)]);
    out[(i - begin) * classes_ + labels_[row]] = 1.0f;
  }
  return {gather(train_, begin, end), std::move(targets)};
}

double ClassTask::test_accuracy(nn::Module& model, DType dtype) const {
  constexpr int64_t kChunk = 256;
  const NoGrad no_grad;
  const amp::Autocast autocast(Device::cpu(), dtype, dtype != DType::F32);
  int64_t right = 0;
  for (int64_t begin = 0; begin < test_count(); begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, test_count());
    const std::vector<float> scores = model(gather(test_, begin, end)).to_vector<float>();
    for (int64_t i = begin; i < end; ++i) {
      const auto first = scores.begin() + (i - begin) * classes_;
      const auto row = static_cast<size_t>(test_[static_cast<size_t>(i)]);
      right += std::max_element(first, first + classes_) - first == labels_[row] ? 1 : 0;
    }
  }
  return static_cast<double>(right) / static_cast<double>(test_count());
}

}  // namespace halfstep::demo
