// A run that was stopped after any step and started again from its checkpoint goes on bit for bit
// as if it had never stopped: the rows of its log and all it ends with, in every precision.
#include <gtest/gtest.h>

#include <algorithm>

#include "halfstep/tests/file_testing.h"
#include "halfstep/tests/run_testing.h"

namespace halfstep {
namespace {

using test::bits;
using test::RunOptions;
using test::TemporaryFolder;
using test::TrainingRun;

constexpr int kSteps = 20;

int64_t skips_in(const std::vector<std::string>& rows) {
  return std::ranges::count_if(
      rows, [](const std::string& row) { return row.find(",1,non_finite") != std::string::npos; });
}

/// Stops a run after each of its steps, and lets a run with other weights and another rate go on.
void expect_resumes(RunOptions options) {
  SCOPED_TRACE(cat(name_of(options.precision), options.sgd ? " SGD " : " AdamW ",
                   name_of(options.parameters)));
  const TemporaryFolder folder;
  TrainingRun whole(options), undisturbed(options);
  for (int k = 0; k <= kSteps; ++k) {
    save(whole.state, folder / cat("run", k));
    save(whole.monitor, folder / cat("monitor", k));
    if (k < kSteps) whole.step();
  }
  undisturbed.steps(kSteps);
  EXPECT_EQ(whole.rows, undisturbed.rows) << "saving has changed the run";
  EXPECT_EQ(whole.all_bits(), undisturbed.all_bits());
  const bool scaled = options.precision == DType::F16;
  EXPECT_GE(skips_in(whole.rows), scaled ? 4 : 2);
  EXPECT_LE(skips_in(whole.rows), kSteps / 2);

  options.seed = 2;
  options.lr = 0.5;
  for (int k = 0; k <= kSteps; ++k) {
    SCOPED_TRACE(cat("stopped after ", k));
    TrainingRun resumed(options);
    if (k % 3 == 1) resumed.steps(4);  // a load must leave nothing of what was there
    resumed.rows.clear();
    load(resumed.state, folder / cat("run", k));
    load(resumed.monitor, folder / cat("monitor", k));
    EXPECT_EQ(resumed.state.next_step(), k);
    resumed.steps(kSteps - k);
    EXPECT_EQ(resumed.rows, std::vector(whole.rows.begin() + k, whole.rows.end()));
    EXPECT_EQ(bits(resumed.state.state_dict()), bits(whole.state.state_dict()));
    EXPECT_EQ(bits(resumed.monitor.state_dict()), bits(whole.monitor.state_dict()));
    EXPECT_EQ(resumed.monitor.describe(), whole.monitor.describe());
    EXPECT_EQ(resumed.optimizer->lr(), whole.optimizer->lr());
  }
}

TEST(Resume, f32_with_adamw) { expect_resumes({.precision = DType::F32}); }
TEST(Resume, bf16_with_adamw) { expect_resumes({.precision = DType::BF16}); }
TEST(Resume, f16_with_adamw) { expect_resumes({.precision = DType::F16}); }
TEST(Resume, f32_with_sgd) { expect_resumes({.precision = DType::F32, .sgd = true}); }
TEST(Resume, bf16_with_sgd) { expect_resumes({.precision = DType::BF16, .sgd = true}); }
TEST(Resume, f16_with_sgd) { expect_resumes({.precision = DType::F16, .sgd = true}); }

TEST(Resume, bf16_parameters_with_float32_masters) {
  for (const bool sgd : {false, true}) {
    expect_resumes({.precision = DType::BF16, .sgd = sgd, .parameters = DType::BF16});
  }
}

TEST(Resume, bf16_parameters_under_a_loss_scale) {
  for (const bool sgd : {false, true}) {
    expect_resumes({.precision = DType::F16, .sgd = sgd, .parameters = DType::BF16});
  }
}

TEST(Resume, f16_parameters_with_float32_masters) {  // a scaler refuses their gradients
  for (const bool sgd : {false, true}) {
    expect_resumes({.precision = DType::BF16, .sgd = sgd, .parameters = DType::F16});
  }
}

TEST(Resume, a_chain_of_stops_is_as_good_as_one) {
  const TemporaryFolder folder;
  const RunOptions options{.precision = DType::F16, .parameters = DType::BF16};
  TrainingRun whole(options);
  whole.steps(kSteps);
  std::vector<std::string> rows;
  for (int k = 0; k < kSteps; ++k) {
    TrainingRun part(options);
    if (k > 0) load(part.state, folder / "run");
    part.step();
    rows.push_back(part.rows.front());
    save(part.state, folder / "run");
    if (k == kSteps - 1) {
      EXPECT_EQ(bits(part.state.state_dict()), bits(whole.state.state_dict()));
    }
  }
  EXPECT_EQ(rows, whole.rows);
}

}  // namespace
}  // namespace halfstep
