// The learning rate of every step against PyTorch's schedulers: constant, linear and cosine, with
// and without warm-up.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/golden.h"

namespace halfstep {
namespace {

using optim::LrDecay;
using optim::LrSchedule;
using test::json;

TEST(golden_lr_schedule, the_rate_of_every_step_is_pytorchs) {
  const json cases = test::load_golden("lr_schedule.json").at("cases");
  std::set<std::string> kinds;
  for (const json& example : cases) {
    const std::string kind = example.at("kind").get<std::string>();
    SCOPED_TRACE(cat(kind, ", warm-up ", example.at("warmup_steps").get<int64_t>()));
    kinds.insert(kind);
    optim::SGD optimizer({test::make_parameter("w", {1.0f})});
    LrSchedule schedule(optimizer,
                        {.lr = example.at("lr"),
                         .decay = kind == "linear"   ? LrDecay::kLinear
                                  : kind == "cosine" ? LrDecay::kCosine
                                                     : LrDecay::kConstant,
                         .warmup_steps = example.at("warmup_steps"),
                         .total_steps = example.at("total_steps"),
                         .min_lr = kind == "constant" ? 0.0 : example.at("min_lr").get<double>()});
    EXPECT_EQ(name_of(schedule.options().decay), kind);
    const std::vector<double> want = test::numbers(example.at("lr_at"));
    ASSERT_EQ(static_cast<int64_t>(want.size()), example.at("total_steps").get<int64_t>());
    for (size_t s = 0; s < want.size(); ++s) {
      EXPECT_NEAR(schedule.lr_at(static_cast<int64_t>(s)), want[s], 1e-14 * want[s])
          << "step " << s;
      EXPECT_NEAR(optimizer.lr(), want[s], 1e-14 * want[s]) << "step " << s;
      schedule.step();
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"constant", "linear", "cosine"}));
}

}  // namespace
}  // namespace halfstep
