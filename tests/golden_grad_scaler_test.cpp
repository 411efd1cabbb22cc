// The scale's course over sequences of clean and overflowing iterations against PyTorch's: a real
// parameter, real backward passes, and whether each step was taken.
#include <gtest/gtest.h>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/golden.h"

namespace halfstep {
namespace {

using test::json;

/// PyTorch has no floor: the lowest one allowed stands in for that. SGD with lr 0 keeps the
/// parameter.
void replay(const json& example, bool unscale_by_hand) {
  SCOPED_TRACE(example.at("label").get<std::string>());
  const json& options = example.at("options");
  amp::GradScaler scaler(Device::cpu(), {.init_scale = options.at("init_scale"),
                                         .growth_factor = options.at("growth_factor"),
                                         .backoff_factor = options.at("backoff_factor"),
                                         .growth_interval = options.at("growth_interval"),
                                         .min_scale = 0x1p-126});
  const Parameter w = test::make_parameter("w", {1.0f});
  optim::SGD optimizer({w}, {.lr = 0.25});
  int64_t row_number = 0;
  for (const json& row : example.at("rows")) {
    SCOPED_TRACE(row_number++);
    optimizer.zero_grad();
    // A gradient that stays finite when the largest scale multiplies it, or an Inf.
    const float slope = row.at("non_finite").get<bool>() ? test::kInfinity : 0x1p-10f;
    const Tensor before = w.value.clone();
    scaler.scale(test::loss_with_gradient(w, {slope})).backward();
    if (unscale_by_hand) scaler.unscale_(optimizer);
    const amp::StepResult result = scaler.step(optimizer);
    EXPECT_EQ(result.stepped(), row.at("stepped").get<bool>());
    EXPECT_EQ(test::bits(before) != test::bits(w.value), row.at("stepped").get<bool>());
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), row.at("scale").get<double>());
    EXPECT_EQ(scaler.growth_tracker(), row.at("growth_tracker").get<int64_t>());
  }
}

TEST(golden_grad_scaler, scale_and_tracker_follow_pytorchs) {
  const json cases = test::load_golden("grad_scaler.json").at("cases");
  ASSERT_FALSE(cases.empty());
  for (const json& example : cases) {
    replay(example, false);
    replay(example, true);
  }
}

}  // namespace
}  // namespace halfstep
