// AdamW in float64 against PyTorch's, step by step: parameters and both moments, over options that
// include decay, amsgrad and maximize; and in float32 against the same values.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/golden.h"

namespace halfstep {
namespace {

using test::json;

optim::AdamWOptions options_of(const json& o) {
  return {.lr = o.at("lr"),
          .beta1 = o.at("beta1"),
          .beta2 = o.at("beta2"),
          .eps = o.at("eps"),
          .weight_decay = o.at("weight_decay"),
          .amsgrad = o.at("amsgrad"),
          .maximize = o.at("maximize")};
}

Tensor vector_of(const json& values, DType dtype) {
  const std::vector<double> data = test::numbers(values);
  return Tensor::from(data, {static_cast<int64_t>(data.size())}, dtype);
}

/// |got - want| of any element, relative to the largest |want| of the array.
double error_of(const Tensor& got, const json& want) {
  const auto x = got.to_vector<double>();
  const std::vector<double> y = test::numbers(want);
  EXPECT_EQ(x.size(), y.size());
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    worst = std::max(worst, std::fabs(x[i] - y[i]));
    largest = std::max(largest, std::fabs(y[i]));
  }
  return worst / largest;
}

void expect_as_pytorch(DType dtype, double bound) {
  const json cases = test::load_golden("adamw.json").at("cases");
  ASSERT_FALSE(cases.empty());
  for (const json& example : cases) {
    SCOPED_TRACE(example.at("options").dump());
    const Parameter w = test::make_parameter("w", vector_of(example.at("param"), dtype));
    optim::AdamW optimizer({w}, options_of(example.at("options")));
    int64_t t = 0;
    for (const json& step : example.at("steps")) {
      SCOPED_TRACE(++t);
      Tensor(w.value).set_grad(vector_of(step.at("grad"), dtype));
      optimizer.step();
      EXPECT_LE(error_of(w.value, step.at("param")), bound);
      EXPECT_LE(error_of(optimizer.state(0).exp_avg, step.at("exp_avg")), bound);
      EXPECT_LE(error_of(optimizer.state(0).exp_avg_sq, step.at("exp_avg_sq")), bound);
      EXPECT_EQ(optimizer.state(0).step, t);
    }
  }
}

// Twelve steps of some ten roundings each, half an ulp at most: 60 ulps if all went one way, about
// 6 as they fall. (Measured: 1 in float64, 4 in float32.)
TEST(golden_adamw, float64_steps_as_pytorch) { expect_as_pytorch(DType::F64, 16 * 0x1p-52); }
TEST(golden_adamw, float32_steps_as_pytorch) { expect_as_pytorch(DType::F32, 16 * 0x1p-23); }

}  // namespace
}  // namespace halfstep
