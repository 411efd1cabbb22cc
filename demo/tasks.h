// What amp_demo trains on: regression to a random teacher, with fresh samples for every step, or a
// column of a CSV file, as classes or as a number.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "halfstep/core/rng.h"
#include "halfstep/core/state_dict.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/table.h"
#include "halfstep/nn/module.h"

namespace halfstep::demo {

struct Batch {
  Tensor inputs;   // [batch, features], float32
  Tensor targets;  // [batch, outputs], float32
};

/// How good a model is on rows that it has not been trained on: the share of the rows that it puts
/// into the right class; or R2, which is 1 - its squared error / the squared error of the mean.
enum class Score : uint8_t { kNone, kAccuracy, kR2 };

/// All randomness comes from the generator that a task is made with, which must outlive it.
class Task {
 public:
  virtual ~Task() = default;
  virtual int64_t features() const = 0;
  virtual int64_t outputs() const = 0;
  /// 0 if the task knows no epochs.
  virtual int64_t steps_per_epoch() const = 0;
  /// The batch of the next step.
  virtual Batch next_batch() = 0;
  /// What test() measures; kNone if there are no test rows.
  virtual Score score() const = 0;
  /// Under autocast unless dtype is F32.
  virtual double test(nn::Module& model, DType dtype) const = 0;
  /// One line about the data; empty if there is nothing to say.
  virtual std::string describe() const = 0;

  /// Where in the stream of batches the task is: generator and position.
  virtual StateDict state_dict() const = 0;
  virtual TakeOver prepare_load(const StateDict& state) = 0;
};

/// The task of a run. FileError or UsageError if the data file is not fit for it.
std::unique_ptr<Task> make_task(const DemoOptions& options, Generator& generator);

/// Targets are a fixed random linear map of standard normal inputs, about 1 in size, plus noise of
/// standard deviation 0.1.
class SyntheticTask final : public Task {
 public:
  SyntheticTask(Generator& generator, int64_t batch);

  int64_t features() const override { return 16; }
  int64_t outputs() const override { return 4; }
  int64_t steps_per_epoch() const override { return 0; }
  Batch next_batch() override;
  Score score() const override { return Score::kNone; }
  double test(nn::Module&, DType) const override { return 0.0; }
  std::string describe() const override { return {}; }
  StateDict state_dict() const override;
  TakeOver prepare_load(const StateDict& state) override;

 private:
  Generator& generator_;
  int64_t batch_;
  Tensor teacher_;  // [outputs, features]
};

/// One column of a table as the target, the others as features, standardised on the training split:
/// a random 80 % of the rows. A column of whole numbers from 0 to 999 holds classes, with one-hot
/// targets; any other is a number, standardised like the features.
class TableTask final : public Task {
 public:
  /// FileError if the table has fewer than 2 rows or only one value in the target column,
  /// UsageError if there is no such column. An empty name is the last column.
  TableTask(const Table& table, std::string_view target, int64_t batch, Generator& generator);

  int64_t features() const override { return features_; }
  int64_t outputs() const override { return outputs_; }
  int64_t steps_per_epoch() const override;
  Batch next_batch() override;
  Score score() const override { return has_classes() ? Score::kAccuracy : Score::kR2; }
  double test(nn::Module& model, DType dtype) const override;
  std::string describe() const override;
  StateDict state_dict() const override;
  TakeOver prepare_load(const StateDict& state) override;

  bool has_classes() const { return !labels_.empty(); }
  int64_t train_count() const { return static_cast<int64_t>(train_.size()); }
  int64_t test_count() const { return static_cast<int64_t>(test_.size()); }

 private:
  std::vector<int64_t> shuffled_rows(Generator& generator) const;
  /// A whole number that is another one for other data.
  double data_checksum() const;
  Tensor inputs_of(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const;
  Tensor targets_of(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const;

  Generator& generator_;
  int64_t batch_;
  int64_t features_;
  int64_t outputs_;
  std::vector<float> inputs_;    // [rows, features]
  std::vector<float> numbers_;   // of all rows, for regression
  std::vector<int64_t> labels_;  // of all rows, for classes
  std::vector<int64_t> train_;   // row numbers
  std::vector<int64_t> test_;
  std::vector<int64_t> order_;  // of this epoch: row numbers
  int64_t position_ = 0;        // in order_: rows that this epoch has used
  Generator::State epoch_start_;
};

}  // namespace halfstep::demo
