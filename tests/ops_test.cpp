// The differentiable functions: values, shapes and dtypes of every op, gradients where they depend
// on shapes or dtypes (gradcheck_test.cpp has the rest), and the errors, which must name op,
// dtypes, shapes and devices.
#include "halfstep/autograd/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "halfstep/halfstep.h"
#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep::test {
namespace {

using Values = std::vector<float>;
constexpr DType kAllDTypes[] = {DType::F32, DType::F16, DType::BF16, DType::F64};

Values values(const Tensor& x) { return x.to_vector<float>(); }

TEST(Ops, elementwise_functions_of_one_tensor_have_their_values) {
  struct Case {
    Tensor (*function)(const Tensor&);
    double (*expected)(double);
  };
  const Case cases[] = {
      {gelu, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
      {gelu_tanh,
       [](double x) {
         return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
       }},
      {relu, [](double x) { return x > 0.0 ? x : 0.0; }},
      {tanh, [](double x) { return std::tanh(x); }},
      {sigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
      {exp, [](double x) { return std::exp(x); }},
      {log, [](double x) { return std::log(x); }},
  };
  const Values inputs = {0.25f, 1.0f, 3.0f, -0.5f, -2.0f};
  for (const Case& c : cases) {
    for (const DType dtype : kAllDTypes) {
      const bool is_log = c.function == static_cast<Tensor (*)(const Tensor&)>(log);
      const int64_t n = is_log ? 3 : 5;
      const Tensor x = rows(Tensor::from(inputs, {5}, dtype), 0, n);
      const Tensor y = c.function(reshape(x, {n, 1}));
      EXPECT_EQ(y.shape(), (Shape{n, 1}));
      EXPECT_EQ(y.dtype(), dtype);
      for (int64_t i = 0; i < n; ++i) {
        const double expected = c.expected(static_cast<double>(inputs[static_cast<size_t>(i)]));
        // std's functions are themselves off by an ulp of double or two, and 1 + tanh cancels: for
        // these inputs it loses less than 7 bits.
        const double slack = dtype == DType::F64 ? 128 * 0x1p-52 * std::fabs(expected)
                                                 : kFunctionUlps * float_ulp(expected);
        visit_dtype(dtype, [&](auto element) {
          using T = decltype(element);
          EXPECT_TRUE(is_close(y.data<T>()[i], expected, slack))
              << name_of(dtype) << " at " << inputs[static_cast<size_t>(i)] << ": "
              << convert<double>(y.data<T>()[i]) << ", expected " << expected;
        });
      }
    }
  }
}

TEST(Ops, binary_functions_spread_scalars_and_rows_on_either_side) {
  for (const DType dtype : kAllDTypes) {
    const Tensor m = Tensor::from({1, 2, 3, 4}, {2, 2}, dtype);
    const Tensor row = Tensor::from({10, 20}, {2}, dtype), scalar = Tensor::scalar(5.0, dtype);
    EXPECT_EQ(values(m + m), (Values{2, 4, 6, 8}));
    EXPECT_EQ(values(m - row), (Values{-9, -18, -7, -16}));
    EXPECT_EQ(values(row - m), (Values{9, 18, 7, 16}));
    EXPECT_EQ(values(m * scalar), (Values{5, 10, 15, 20}));
    EXPECT_EQ(values(scalar - m), (Values{4, 3, 2, 1}));
    EXPECT_EQ((row - m).shape(), m.shape());
    EXPECT_EQ((m * m).dtype(), dtype);
  }
}

TEST(Ops, gradients_have_the_shapes_of_the_operands) {
  Tensor m = Tensor::ones({3, 4}).set_requires_grad(), row = Tensor::ones({4}).set_requires_grad();
  Tensor scalar = Tensor::scalar(2.0).set_requires_grad();
  Tensor one = Tensor::ones({1}).set_requires_grad();
  sum(m + row).backward();
  EXPECT_EQ(values(row.grad()), (Values{3, 3, 3, 3}));
  sum(scalar * m).backward();
  EXPECT_EQ(scalar.grad().shape(), Shape{});
  EXPECT_EQ(scalar.grad().item(), 12.0);
  sum(m - one).backward();
  EXPECT_EQ(one.grad().shape(), Shape{1});
  EXPECT_EQ(one.grad().item(), -12.0);
  Tensor v = Tensor::from({1, 2, 3, 4, 5}, {5}).set_requires_grad();
  const Tensor average = mean(v, 0);  // the only dimension of a vector
  EXPECT_EQ(average.item(), 3.0);
  average.backward();
  EXPECT_EQ(values(v.grad()), Values(5, 0.2f));
}

TEST(Ops, shapes_that_do_not_fit_are_errors_at_forward) {
  const auto t = [](std::initializer_list<int64_t> dims) { return Tensor::zeros(Shape(dims)); };
  const auto refuse = [](const char* says, const std::function<void()>& call) {
    expect_says(message_of<ShapeError>(call), {says});
  };
  const Tensor scalar = t({}), v3 = t({3}), v5 = t({5}), m23 = t({2, 3}), m32 = t({3, 2});
  const Tensor m34 = t({3, 4}), m14 = t({1, 4}), m21 = t({2, 1}), m13 = t({1, 3}), m43 = t({4, 3});
  const Tensor m42 = t({4, 2}), m51 = t({5, 1}), v1 = t({1}), m03 = t({0, 3});
  const Tensor wide = t({2, 1, 4, 64}), narrow = t({2, 1, 4, 1});
  refuse("[add] f32[3, 4] on cpu and f32[1, 4] on cpu", [&] { add(m34, m14); });
  refuse("[mul] f32[2, 1, 4, 64]", [&] { mul(wide, narrow); });
  refuse("[sub] f32[2, 1] on cpu and f32[1, 3] on cpu", [&] { sub(m21, m13); });
  refuse("[mse_loss] f32[5, 1] on cpu, f32[5] on cpu", [&] { mse_loss(m51, v5); });
  refuse("[mse_loss]", [&] { mse_loss(v5, v1); });
  refuse("[matmul] f32[2, 3] on cpu, f32[2, 3] on cpu", [&] { matmul(m23, m23); });
  refuse("transpose_b = true", [&] { matmul(m23, m32, {.transpose_b = true}); });
  refuse("[matmul]", [&] { matmul(v3, m32); });
  refuse("[linear] f32[2, 3] on cpu, f32[4, 2] on cpu", [&] { linear(m23, m42); });
  refuse("[linear]", [&] { linear(m23, m43, v3); });
  refuse("[linear]", [&] { linear(m23, m43, m14); });
  refuse("[linear]", [&] { linear(scalar, m43); });
  refuse("[linear]", [&] { linear(v3, v3); });
  refuse("[sum] dimension 2 of shape [2, 3]", [&] { sum(m23, 2); });
  refuse("[mean] dimension -1 of shape []", [&] { mean(scalar, -1); });
  refuse("[reshape] f32[2, 3] on cpu to [4]", [&] { reshape(m23, {4}); });
  refuse("[reshape]", [&] { reshape(m23, {-1, 4}); });
  refuse("[reshape] two", [&] { reshape(m23, {-1, -1}); });
  refuse("[reshape]", [&] { reshape(m03, {0, -1}); });
  refuse("[reshape]", [&] { reshape(m23, {-1, -6}); });
  refuse("[reshape]", [&] { reshape(m23, {-1, int64_t{1} << 40, int64_t{1} << 40}); });
  refuse("[rows] rows [1, 3) of f32[2, 3] on cpu", [&] { rows(m23, 1, 3); });
  refuse("[rows]", [&] { rows(m23, -1, 1); });
  refuse("[rows]", [&] { rows(m23, 2, 1); });
  refuse("[rows]", [&] { rows(scalar, 0, 1); });
}

TEST(Ops, mixed_dtypes_are_errors_that_ask_about_autocast) {
  const Tensor half = Tensor::zeros({8, 16}, DType::F16), weight = Tensor::zeros({32, 16});
  const Tensor bias = Tensor::zeros({32}), row = Tensor::zeros({16}, DType::BF16);
  expect_says(message_of<DTypeError>([&] { linear(half, weight, bias); }),
              {"[linear]", "f16[8, 16] on cpu, f32[32, 16] on cpu, f32[32] on cpu",
               "is one input outside autocast?"});
  expect_says(message_of<DTypeError>([&] { matmul(half, weight, {.transpose_b = true}); }),
              {"[matmul]", "f16[8, 16] on cpu, f32[32, 16] on cpu", "outside autocast?"});
  expect_says(message_of<DTypeError>([&] { half + row; }),
              {"[add]", "f16[8, 16] on cpu, bf16[16] on cpu", "outside autocast?"});
  EXPECT_THROW(Tensor::zeros({2}) * Tensor::zeros({2}, DType::F64), DTypeError);
}

TEST(Ops, an_undefined_input_is_an_error_that_names_the_op) {
  const Tensor x = Tensor::zeros({2, 2}), none;
  expect_says(message_of<ArgumentError>([&] { linear(x, none); }), {"[linear] input 1"});
  expect_says(message_of<ArgumentError>([&] { gelu(none); }), {"[gelu] input 0"});
  expect_says(message_of<ArgumentError>([&] { none + x; }), {"[add] input 0"});
  EXPECT_THROW(mse_loss(none, x), ArgumentError);
  EXPECT_THROW(mse_loss(x, none), ArgumentError);
  EXPECT_THROW(to(none, DType::F16), ArgumentError);
  EXPECT_THROW(reshape(none, {1}), ArgumentError);
  EXPECT_THROW(rows(none, 0, 0), ArgumentError);
  EXPECT_THROW(none * 2.0, ArgumentError);
}

TEST(Ops, autocast_for_another_device_only_is_an_error) {
  const amp::Autocast elsewhere(Device::cuda(), DType::F16);
  const Tensor x = Tensor::ones({2, 2});
  expect_says(message_of<DeviceError>([&] { matmul(x, x); }),
              {"[matmul]", "f32[2, 2] on cpu", "cuda"});
  EXPECT_THROW(linear(x, x), DeviceError);
  EXPECT_NO_THROW(gelu(x));
}

TEST(Ops, sums_and_means_along_every_dimension) {
  for (const DType dtype : kAllDTypes) {
    std::vector<float> data(24);
    for (size_t i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
    const Tensor x = Tensor::from(data, {2, 3, 4}, dtype);
    EXPECT_EQ(sum(x).item(), 276.0);
    EXPECT_EQ(mean(x).item(), 11.5);
    EXPECT_EQ(values(sum(x, 0)), (Values{12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34}));
    EXPECT_EQ(values(sum(x, 1)), (Values{12, 15, 18, 21, 48, 51, 54, 57}));
    EXPECT_EQ(values(sum(x, -1)), (Values{6, 22, 38, 54, 70, 86}));
    EXPECT_EQ(values(mean(x, -3)), (Values{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
    EXPECT_EQ(sum(x, 1).shape(), (Shape{2, 4}));
    EXPECT_EQ(sum(x, 1).dtype(), dtype);
  }
}

TEST(Ops, reductions_of_nothing) {
  for (const DType dtype : kAllDTypes) {
    Tensor x = Tensor::zeros({0, 3}, dtype).set_requires_grad();
    EXPECT_EQ(sum(x).item(), 0.0);
    EXPECT_EQ(values(sum(x, 0)), (Values{0, 0, 0}));
    EXPECT_EQ(sum(x, 1).shape(), Shape{0});
    EXPECT_TRUE(std::isnan(mean(x).item())) << "as PyTorch";
    EXPECT_TRUE(std::isnan(mean(x, 0).to_vector<double>()[2]));
    EXPECT_EQ(norm(x).item(), 0.0);
    EXPECT_TRUE(std::isnan(mse_loss(x, x).item()));
    EXPECT_EQ(mse_loss(x, x, Reduction::kSum).item(), 0.0);
    sum(gelu(x) + Tensor::ones({3}, dtype)).backward();
    EXPECT_EQ(x.grad().shape(), (Shape{0, 3}));
  }
  Tensor row = Tensor::ones({3}).set_requires_grad();
  sum(Tensor::zeros({0, 3}) * row).backward();
  EXPECT_EQ(values(row.grad()), (Values{0, 0, 0}));
}

TEST(Ops, sums_of_halves_do_not_overflow_or_stick_on_the_way) {
  EXPECT_EQ(mean(Tensor::ones({100000}, DType::F16)).item(), 1.0);
  EXPECT_EQ(mean(Tensor::ones({65520}, DType::F16)).item(), 1.0);
  EXPECT_EQ(values(mean(Tensor::ones({100000, 2}, DType::F16), 0)), (Values{1, 1}));
  Tensor x = Tensor::full({8}, 32000, DType::F16);
  Tensor lower = rows(x, 4, 8);
  lower.fill_(-32000);
  EXPECT_EQ(sum(x).item(), 0.0);
  EXPECT_EQ(values(sum(reshape(x, {8, 1}), 0)), Values{0});
  EXPECT_EQ(sum(Tensor::ones({1600}, DType::BF16)).item(), 1600.0);
  const float hundredth = f16_bits_to_f32(f32_to_f16_bits(0.01f));  // 12500 of these, rounded once
  EXPECT_EQ(sum(Tensor::full({12500}, 0.01, DType::F16)).item(),
            static_cast<double>(f16_bits_to_f32(f32_to_f16_bits(12500 * hundredth))));
  EXPECT_EQ(norm(Tensor::full({4096}, 100, DType::F16)).item(), 6400.0);
  EXPECT_EQ(norm(Tensor::full({100}, 1e20)).item(),
            static_cast<double>(static_cast<float>(10.0 * double{1e20f})));
}

TEST(Ops, the_gradient_of_the_norm_at_zero_is_zero) {
  Tensor x = Tensor::zeros({3}).set_requires_grad();
  norm(x).backward();
  EXPECT_EQ(values(x.grad()), (Values{0, 0, 0}));
}

TEST(Ops, matmul_with_all_transpose_flags) {
  const Values product = {58, 64, 139, 154};  // [[1 2 3] [4 5 6]] [[7 8] [9 10] [11 12]]
  for (const DType dtype : kAllDTypes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const Tensor a = ta ? Tensor::from({1, 4, 2, 5, 3, 6}, {3, 2}, dtype)
                            : Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}, dtype);
        const Tensor b = tb ? Tensor::from({7, 9, 11, 8, 10, 12}, {2, 3}, dtype)
                            : Tensor::from({7, 8, 9, 10, 11, 12}, {3, 2}, dtype);
        const Tensor c = matmul(a, b, {ta, tb});
        EXPECT_EQ(values(c), product) << name_of(dtype) << ta << tb;
        EXPECT_EQ(c.dtype(), dtype);
      }
    }
  }
}

TEST(Ops, mse_loss_computes_wide_and_gives_each_input_a_gradient_of_its_dtype) {
  for (const DType x_dtype : kAllDTypes) {
    for (const DType target_dtype : kAllDTypes) {
      Tensor x = Tensor::from({1.5f, 2.0f}, {2}, x_dtype).set_requires_grad();
      Tensor target = Tensor::from({1.0f, 4.0f}, {2}, target_dtype).set_requires_grad();
      const Tensor loss = mse_loss(x, target);
      EXPECT_EQ(loss.dtype(), promote(promote(x_dtype, target_dtype), DType::F32));
      EXPECT_EQ(loss.item(), 2.125);
      EXPECT_EQ(mse_loss(x, target, Reduction::kSum).item(), 4.25);
      loss.backward();
      EXPECT_EQ(x.grad().str(), x.str());
      EXPECT_EQ(target.grad().str(), target.str());
      EXPECT_EQ(values(x.grad()), (Values{0.5f, -2.0f}));
      EXPECT_EQ(values(target.grad()), (Values{-0.5f, 2.0f}));
    }
  }
  // The difference of halves is not rounded to a half: 300^2 is beyond f16.
  const Tensor far = Tensor::full({2}, 300, DType::F16), zero = Tensor::zeros({2}, DType::F16);
  EXPECT_EQ(mse_loss(far, zero).item(), 90000.0);
}

TEST(Ops, a_number_is_not_rounded_to_the_half_that_it_meets) {
  const Tensor x = Tensor::from({3.0f, 2048.0f}, {2}, DType::F16).set_requires_grad();
  EXPECT_EQ(values(x / 3.0), (Values{1.0f, f16_bits_to_f32(f32_to_f16_bits(2048.0f / 3.0f))}));
  EXPECT_EQ(values(x + 1.5), (Values{4.5f, 2050.0f}));
  EXPECT_EQ(values(x * 100000.0 * 1e-5), (Values{INFINITY, INFINITY})) << "each op ends in a half";
  EXPECT_EQ((x - 1.0).dtype(), DType::F16);
  EXPECT_EQ(values(-x), (Values{-3.0f, -2048.0f}));
  EXPECT_EQ((Tensor::scalar(0.1, DType::F64) + 0.2).item(), 0.1 + 0.2);
}

TEST(Ops, casts_carry_gradients_back_in_the_inputs_dtype) {
  const Tensor x = Tensor::from({1.0f, 1.0f + 0x1p-9f}, {2}).set_requires_grad();
  EXPECT_EQ(to(x, DType::F32).impl(), x.impl());
  const Tensor y = to(x, DType::BF16);
  EXPECT_EQ(values(y), (Values{1, 1}));
  y.backward(Tensor::full({2}, 1.0 + 0x1p-7, DType::BF16));
  EXPECT_EQ(x.grad().dtype(), DType::F32);
  EXPECT_EQ(values(x.grad()), Values(2, 1.0f + 0x1p-7f));
}

}  // namespace
}  // namespace halfstep::test
