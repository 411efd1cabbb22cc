// What amp_demo trains on: regression to a random teacher, with fresh samples for every step, or
// the classes of a CSV file. All randomness comes from the generator that is passed in.
#pragma once

#include <vector>

#include "halfstep/core/rng.h"
#include "halfstep/demo/table.h"
#include "halfstep/nn/module.h"

namespace halfstep::demo {

struct Batch {
  Tensor inputs;   // [batch, features], float32
  Tensor targets;  // [batch, outputs], float32
};

/// Targets are a fixed random linear map of standard normal inputs, about 1 in size, plus noise of
/// standard deviation 0.1.
class SyntheticTask {
 public:
  static constexpr int64_t kFeatures = 16;
  static constexpr int64_t kHidden = 32;
  static constexpr int64_t kOutputs = 4;

  explicit SyntheticTask(Generator& generator);
  Batch draw(Generator& generator, int64_t batch) const;

 private:
  Tensor teacher_;  // [outputs, features]
};

/// The last column of a table as a class, the others as features: standardised on the training
/// split, a random 80 % of the rows. Targets are one-hot.
class ClassTask {
 public:
  /// FileError if the table has fewer than 2 rows or its last column does not hold classes.
  ClassTask(const Table& table, Generator& generator);

  int64_t features() const { return features_; }
  int64_t classes() const { return classes_; }
  int64_t train_count() const { return static_cast<int64_t>(train_.size()); }
  int64_t test_count() const { return static_cast<int64_t>(test_.size()); }

  /// A new order of the training rows, for the next epoch.
  void shuffle(Generator& generator);
  /// Training rows [begin, end) of the present order.
  Batch batch(int64_t begin, int64_t end) const;
  /// Share of the test rows whose class has the largest output; under autocast unless dtype is F32.
  double test_accuracy(nn::Module& model, DType dtype) const;

 private:
  Tensor gather(const std::vector<int64_t>& rows, int64_t begin, int64_t end) const;

  int64_t features_;
  int64_t classes_;
  std::vector<float> inputs_;    // [rows, features]
  std::vector<int64_t> labels_;  // of all rows
  std::vector<int64_t> train_;   // row numbers
  std::vector<int64_t> test_;
};

}  // namespace halfstep::demo
