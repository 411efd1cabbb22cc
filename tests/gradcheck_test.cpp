// Gradient checks: every differentiable op in float64 against central differences. Elementwise
// cases come from the rows of core/elementwise.def, so a new row is checked without a line here.
// And the check itself: it finds a wrong gradient, names it, and lets no NaN pass.
#include "halfstep/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include "halfstep/halfstep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

struct Draws {
  Generator generator{20};
  Tensor operator()(const Shape& shape, double low = -2.0, double high = 2.0) {
    return generator.uniform(shape, low, high, DType::F64);
  }
};

void expect_right(const char* name, const Function& function, const std::vector<Tensor>& inputs) {
  const GradcheckResult result = gradcheck(function, inputs);
  EXPECT_TRUE(result.ok) << name << ": " << result.message;
  EXPECT_LT(result.worst, 1e-7) << name;
  for (const Tensor& x : inputs) EXPECT_TRUE(x.grad().defined()) << name;
}

struct Unary {
  const char* name;
  Tensor (*function)(const Tensor&);
  double low, high;
};
constexpr Unary kUnary[] = {
#define HS_UNARY(name, policy, needs, low, high) {#name, name, low, high},
#include "halfstep/core/elementwise.def"
};

struct Binary {
  const char* name;
  Tensor (*function)(const Tensor&, const Tensor&);
  double low, high;
};
constexpr Binary kBinary[] = {
#define HS_BINARY(name, policy, needs, low, high) {#name, name, low, high},
#include "halfstep/core/elementwise.def"
};

TEST(Gradcheck, every_elementwise_function_of_one_tensor) {
  Draws draw;
  for (const Unary& op : kUnary) {
    expect_right(op.name, [&](const auto& in) { return op.function(in[0]); },
                 {draw({7, 11}, op.low, op.high)});
  }
}

TEST(Gradcheck, every_elementwise_function_of_two_tensors_however_they_spread) {
  Draws draw;
  const Shape full{4, 3, 5}, shapes[] = {full, {5}, {}, {1}};
  for (const Binary& op : kBinary) {
    for (const Shape& shape : shapes) {
      for (const bool swapped : {false, true}) {
        expect_right(op.name, [&](const auto& in) { return op.function(in[0], in[1]); },
                     {draw(swapped ? shape : full, op.low, op.high),
                      draw(swapped ? full : shape, op.low, op.high)});
      }
    }
    // Both operands the same tensor.
    expect_right(op.name, [&](const auto& in) { return op.function(in[0], in[0]) + in[0]; },
                 {draw({3, 4}, op.low, op.high)});
  }
}

TEST(Gradcheck, relu_on_both_sides_of_its_kink) {
  Draws draw;
  expect_right("relu", [](const auto& in) { return relu(in[0]); }, {draw({20}, -2.0, -0.1)});
  expect_right("relu", [](const auto& in) { return relu(in[0]); }, {draw({20}, 0.1, 2.0)});
}

TEST(Gradcheck, with_numbers) {
  Draws draw;
  const Function functions[] = {
      [](const auto& in) { return in[0] + 0.7; }, [](const auto& in) { return in[0] - 0.7; },
      [](const auto& in) { return in[0] * 0.7; }, [](const auto& in) { return 0.7 * in[0]; },
      [](const auto& in) { return in[0] / 0.7; }, [](const auto& in) { return -in[0]; },
  };
  for (const Function& function : functions) expect_right("number", function, {draw({3, 4})});
}

TEST(Gradcheck, matmul_with_all_transpose_flags) {
  Draws draw;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Tensor a = draw(ta ? Shape{5, 3} : Shape{3, 5}),
                   b = draw(tb ? Shape{4, 5} : Shape{5, 4});
      expect_right("matmul",
                   [=](const auto& in) {
                     return matmul(in[0], in[1], {ta, tb});
                   },
                   {a, b});
      // One input wants no gradient: the other's is still right.
      expect_right("matmul",
                   [=](const auto& in) {
                     return matmul(in[0], b.detach(), {ta, tb});
                   },
                   {a});
      expect_right("matmul",
                   [=](const auto& in) {
                     return matmul(a.detach(), in[0], {ta, tb});
                   },
                   {b});
    }
  }
}

TEST(Gradcheck, linear_with_and_without_bias) {
  Draws draw;
  const Function with = [](const auto& in) { return linear(in[0], in[1], in[2]); };
  const Function without = [](const auto& in) { return linear(in[0], in[1]); };
  for (const Shape& x : {Shape{5}, Shape{4, 5}, Shape{2, 3, 5}}) {
    expect_right("linear", with, {draw(x), draw({3, 5}), draw({3})});
    expect_right("linear", without, {draw(x), draw({3, 5})});
  }
}

TEST(Gradcheck, sum_and_mean_of_all_and_along_every_dimension) {
  Draws draw;
  const Tensor x = draw({3, 4, 5});
  expect_right("sum", [](const auto& in) { return sum(in[0]); }, {x});
  expect_right("mean", [](const auto& in) { return mean(in[0]); }, {x});
  for (int dim = -3; dim < 3; ++dim) {
    expect_right("sum", [=](const auto& in) { return sum(in[0], dim); }, {x});
    expect_right("mean", [=](const auto& in) { return mean(in[0], dim); }, {x});
  }
}

TEST(Gradcheck, norm) {
  Draws draw;
  expect_right("norm", [](const auto& in) { return norm(in[0]); }, {draw({6, 7})});
}

TEST(Gradcheck, mse_loss_in_both_inputs) {
  Draws draw;
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    const Tensor x = draw({6, 7}), target = draw({6, 7});
    const Function both = [=](const auto& in) { return mse_loss(in[0], in[1], reduction); };
    expect_right("mse_loss", both, {x, target});
    expect_right("mse_loss", [=](const auto& in) { return mse_loss(x.detach(), in[0], reduction); },
                 {target});
  }
}

TEST(Gradcheck, views_and_casts) {
  Draws draw;
  expect_right("reshape", [](const auto& in) { return reshape(in[0], {2, -1}); }, {draw({3, 4})});
  expect_right("rows", [](const auto& in) { return rows(in[0], 1, 4); }, {draw({5, 2, 3})});
  expect_right("rows", [](const auto& in) { return rows(in[0], 0, 2) * rows(in[0], 1, 3); },
               {draw({3, 4})});
  expect_right("to", [](const auto& in) { return to(in[0], DType::F64); }, {draw({3, 4})});
}

TEST(Gradcheck, a_whole_model_and_its_loss) {
  Draws draw;
  const Function model = [](const auto& in) {
    const Tensor hidden = gelu(linear(in[0], in[1], in[2]));
    return mse_loss(tanh(linear(hidden, in[3], in[4])), in[5]) * 3.0;
  };
  const std::vector<Tensor> inputs = {draw({4, 6}), draw({5, 6}), draw({5}),
                                      draw({3, 5}), draw({3}),    draw({4, 3})};
  expect_right("model", model, inputs);
  const amp::Autocast autocast(Device::cpu(), DType::BF16);  // leaves float64 alone
  expect_right("model under autocast", model, inputs);
}

TEST(Gradcheck, a_wrong_gradient_is_found_and_named) {
  const Tensor right = Tensor::from(std::vector<double>{1, 2, 3}, {3});
  const Tensor wrong = Tensor::from(std::vector<double>{4, 0, 6}, {3});
  // d/dx of x * (x's value) is taken for x, and is 2x.
  const GradcheckResult result =
      gradcheck([](const auto& in) { return in[0] + in[1] * in[1].detach(); }, {right, wrong});
  EXPECT_FALSE(result.ok);
  EXPECT_NEAR(result.worst, 0.5, 1e-6);
  expect_says(result.message, {"input 1", "f64[3] on cpu", "element 0", "backward gives",
                               "differences give", "relative error"});
}

TEST(Gradcheck, the_bar_is_one_ten_millionth_of_the_largest_gradient) {
  const auto off_by = [](double error) {
    return gradcheck([=](const auto& in) { return in[0] + in[0].detach() * error; },
                     {Tensor::ones({4}, DType::F64)});
  };
  EXPECT_FALSE(off_by(1e-6).ok);
  EXPECT_NEAR(off_by(1e-6).worst, 1e-6, 1e-8);
  EXPECT_TRUE(off_by(1e-8).ok);
}

TEST(Gradcheck, a_nan_is_a_wrong_gradient) {
  const GradcheckResult result =
      gradcheck([](const auto& in) { return log(in[0]); }, {Tensor::full({2}, -1.0, DType::F64)});
  EXPECT_FALSE(result.ok);
  EXPECT_FALSE(result.message.empty());
}

TEST(Gradcheck, it_restores_the_inputs_and_wants_float64) {
  Draws draw;
  const Tensor x = draw({3});
  const auto before = x.to_vector<double>();
  gradcheck([](const auto& in) { return exp(in[0]); }, {x});
  EXPECT_EQ(x.to_vector<double>(), before);
  expect_says(message_of<DTypeError>(
                  [] { gradcheck([](const auto& in) { return in[0]; }, {Tensor::ones({1})}); }),
              {"[gradcheck]", "f32[1] on cpu", "f64"});
}

}  // namespace
}  // namespace halfstep::test
