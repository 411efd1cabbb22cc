// linear followed by mse_loss against PyTorch's float64 values (golden/linear_mse.json): the loss
// and all four gradients, in float64 and in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halfstep/halfstep.h"
#include "halfstep/tests/golden.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep::test {
namespace {

// Every value is a sum of at most `terms` products, each of which carries a few roundings (of the
// inputs too, in float32) relative to its own size; and no product is much larger than the largest
// result of its tensor, which is what the error is measured by.
void expect_near(const Tensor& got, const std::vector<double>& expected, double terms,
                 const std::string& what) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  const double slack = terms * epsilon_of(got.dtype()) * largest;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], slack) << what << ", element " << i;
  }
}

void check_all(DType dtype) {
  const json golden = load_golden("linear_mse.json");
  ASSERT_FALSE(golden.at("cases").empty());
  for (const json& c : golden.at("cases")) {
    const auto leaf = [&](const char* name) {
      return golden_tensor(c.at(name), dtype).set_requires_grad();
    };
    const Tensor x = leaf("x"), weight = leaf("weight"), bias = leaf("bias");
    const Tensor target = leaf("target");
    const bool is_mean = c.at("reduction") == "mean";
    const Tensor loss =
        mse_loss(linear(x, weight, bias), target, is_mean ? Reduction::kMean : Reduction::kSum);
    EXPECT_EQ(loss.dtype(), dtype);
    loss.backward();

    const double terms = static_cast<double>(x.dim(0) + x.dim(1) + weight.dim(0) + 2);
    const auto what = [&](const char* name) {
      return cat(name, " of ", x.shape(), " x ", weight.shape(), is_mean ? " mean" : " sum");
    };
    expect_near(loss, {number(c.at("loss"))}, terms, what("loss"));
    const std::pair<const char*, const Tensor*> inputs[] = {
        {"dx", &x}, {"dweight", &weight}, {"dbias", &bias}, {"dtarget", &target}};
    for (const auto& [name, input] : inputs) {
      EXPECT_EQ(input->grad().str(), input->str());
      expect_near(input->grad(), numbers(c.at(name).at("data")), terms, what(name));
    }
  }
}

TEST(golden_linear_mse, float64_agrees_with_pytorch) { check_all(DType::F64); }
TEST(golden_linear_mse, float32_agrees_with_pytorch) { check_all(DType::F32); }

}  // namespace
}  // namespace halfstep::test
