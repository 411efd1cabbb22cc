// Global-norm clipping against PyTorch's values: norms before and after, and every clipped element.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/golden.h"

namespace halfstep {
namespace {

using test::json;

/// Equal up to `relative`, or to the distance of float32's subnormals, or both the same Inf or NaN.
void expect_near(double got, double want, double relative) {
  if (!std::isfinite(want)) {
    EXPECT_EQ(std::isnan(got), std::isnan(want));
    EXPECT_TRUE(std::isnan(want) || got == want) << got << " " << want;
    return;
  }
  // Subnormal float32 results are multiples of 2^-149, about 1.4e-45.
  const double absolute = std::fabs(want) < 0x1p-126 ? 1e-44 : 0.0;
  EXPECT_LE(std::fabs(got - want), relative * std::fabs(want) + absolute) << got << " " << want;
}

TEST(golden_clip, norms_and_elements_are_pytorchs) {
  const json cases = test::load_golden("clip.json").at("cases");
  ASSERT_FALSE(cases.empty());
  for (const json& example : cases) {
    SCOPED_TRACE(example.at("label").get<std::string>());
    std::vector<Parameter> parameters;
    for (const json& grad : example.at("grads")) {
      const Tensor g = test::golden_tensor(grad);
      parameters.push_back(test::make_parameter("w", Tensor::zeros(g.shape())));
      parameters.back().value.set_grad(g);
    }
    expect_near(optim::compute_global_l2_norm(parameters), test::number(example.at("pre")),
                3000 * 0x1p-53);
    const auto [pre, post] = optim::clip_global_l2_norm(parameters, example.at("max_norm"));
    // float64 sums of exact squares, up to 3,000 terms: 3,000 half ulps at the very most.
    expect_near(pre, test::number(example.at("pre")), 3000 * 0x1p-53);
    expect_near(post, test::number(example.at("post")), 6000 * 0x1p-53);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto got = parameters[i].value.grad().to_vector<double>();
      const auto want = test::golden_tensor(example.at("clipped").at(i)).to_vector<double>();
      ASSERT_EQ(got.size(), want.size());
      // One rounding to float32 on each side of the same product.
      for (size_t j = 0; j < got.size(); ++j) expect_near(got[j], want[j], 0x1p-23);
    }
  }
}

}  // namespace
}  // namespace halfstep
