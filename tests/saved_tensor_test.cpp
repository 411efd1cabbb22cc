// A backward refuses only what it reads: a tensor that was changed after forward is an error for
// the ops whose formula needs its old value, and for no others; the same inside autocast as
// outside.
#include <gtest/gtest.h>

#include "halfstep/halfstep.h"

namespace halfstep {
namespace {

Tensor leaf(const Shape& shape, double value) {
  Tensor x = Tensor::full(shape, value);
  x.set_requires_grad();
  return x;
}

TEST(SavedTensor, a_product_with_a_constant_does_not_read_the_variable) {
  Tensor w = leaf({3}, 2.0);
  const Tensor loss = sum(w * 5.0) + sum(Tensor::full({3}, 7.0) * w);
  w.fill_(100.0);
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{12.0, 12.0, 12.0}));
}

TEST(SavedTensor, a_product_of_two_variables_reads_both) {
  for (const int changed : {0, 1}) {
    Tensor factors[] = {leaf({3}, 2.0), leaf({3}, 3.0)};
    const Tensor loss = sum(factors[0] * factors[1]);
    factors[changed].fill_(100.0);
    EXPECT_THROW(loss.backward(), GraphError) << changed;
  }
}

TEST(SavedTensor, a_product_reads_the_constant_that_the_variable_was_multiplied_with) {
  const Tensor w = leaf({3}, 2.0);
  Tensor constant = Tensor::full({3}, 7.0);
  const Tensor loss = sum(w * constant);
  constant.fill_(8.0);
  EXPECT_THROW(loss.backward(), GraphError);
}

TEST(SavedTensor, a_bias_may_change_and_a_weight_may_not_with_and_without_autocast) {
  for (const bool autocast_on : {false, true}) {
    for (const bool change_weight : {false, true}) {
      Tensor weight = leaf({2, 3}, 0.5), bias = leaf({2}, 0.25);
      Tensor x = leaf({4, 3}, 1.0);
      Tensor loss;
      {
        const amp::Autocast autocast(Device::cpu(), DType::BF16, autocast_on);
        loss = sum(linear(x, weight, bias));
      }
      (change_weight ? weight : bias).fill_(9.0);
      if (change_weight) {
        EXPECT_THROW(loss.backward(), GraphError) << autocast_on;
        EXPECT_FALSE(bias.grad().defined()) << "nothing is committed";
      } else {
        loss.backward();
        EXPECT_EQ(bias.grad().to_vector<double>(), (std::vector<double>{4.0, 4.0})) << autocast_on;
      }
    }
  }
}

}  // namespace
}  // namespace halfstep
