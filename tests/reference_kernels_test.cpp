// The reference kernels against numbers worked out by hand: they are the oracle of all other kernel
// tests, so they need a check that is not a kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "halfstep/backends/reference/reference.h"
#include "halfstep/core/kernels.h"
#include "halfstep/core/ops.h"

namespace halfstep::test {
namespace {

using Values = std::vector<double>;
constexpr size_t kF64 = static_cast<size_t>(DType::F64);
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const KernelTable& table() {
  static const KernelTable filled = [] {
    KernelTable result{};
    register_reference_kernels(result);
    return result;
  }();
  return filled;
}

Values gemm(bool transpose_a, bool transpose_b, const Values& a, const Values& b,
            const Values& bias = {}) {
  Values c(4, -1.0);  // [2, 2], k = 3
  table().gemm[kF64]({transpose_a, transpose_b, 2, 2, 3, a.data(), b.data(),
                      bias.empty() ? nullptr : bias.data(), c.data()});
  return c;
}

TEST(ReferenceKernels, gemm_multiplies_with_all_transposes_and_bias) {
  const Values a = {1, 2, 3, 4, 5, 6}, a_transposed = {1, 4, 2, 5, 3, 6};
  const Values b = {7, 8, 9, 10, 11, 12}, b_transposed = {7, 9, 11, 8, 10, 12};
  const Values product = {58, 64, 139, 154};
  EXPECT_EQ(gemm(false, false, a, b), product);
  EXPECT_EQ(gemm(true, false, a_transposed, b), product);
  EXPECT_EQ(gemm(false, true, a, b_transposed), product);
  EXPECT_EQ(gemm(true, true, a_transposed, b_transposed), product);
  EXPECT_EQ(gemm(false, false, a, b, {100, 200}), (Values{158, 264, 239, 354}));
}

TEST(ReferenceKernels, unary_functions_have_known_values) {
  struct Case {
    UnaryOp op;
    double x, y;  // y: 40-digit arithmetic
  };
  for (const Case& c :
       {Case{UnaryOp::gelu, 1, 0.841344746068542949},
        Case{UnaryOp::gelu, -1, -0.158655253931457051}, Case{UnaryOp::gelu, 3, 2.99595030590510972},
        Case{UnaryOp::gelu_tanh, 1, 0.841191990608276705},
        Case{UnaryOp::gelu_tanh, -1, -0.158808009391723295}, Case{UnaryOp::relu, 2, 2},
        Case{UnaryOp::relu, -2, 0}, Case{UnaryOp::tanh, 0.5, 0.462117157260009759},
        Case{UnaryOp::sigmoid, 1, 0.731058578630004879},
        Case{UnaryOp::sigmoid, -2, 0.119202922022117556},
        Case{UnaryOp::exp, 1, 2.71828182845904524}, Case{UnaryOp::log, 3, 1.09861228866810969}}) {
    double y = 0;
    table().unary[static_cast<size_t>(c.op)][kF64](&c.x, &y, 1);
    EXPECT_NEAR(y, c.y, 2e-15 * std::fabs(c.y)) << kOpInfo[static_cast<size_t>(c.op)].name;
  }
}

TEST(ReferenceKernels, unary_gradients_are_the_slopes_of_their_functions) {
  struct OpCase {
    BackwardNeeds needs;
    double low, high;
  };
  constexpr OpCase kCases[] = {
#define HS_UNARY(name, policy, needs, low, high) {BackwardNeeds::needs, low, high},
#include "halfstep/core/elementwise.def"
  };
  for (size_t op = 0; op < kUnaryOpCount; ++op) {
    const auto f = [op](double x) {
      double y = 0;
      table().unary[op][kF64](&x, &y, 1);
      return y;
    };
    for (int i = 0; i <= 50; ++i) {
      const double x = kCases[op].low + (kCases[op].high - kCases[op].low) * i / 50;
      const double h = 1e-5, dy = 3;
      const double saved = kCases[op].needs == BackwardNeeds::kInput ? x : f(x);
      double dx = 0;
      table().unary_backward[op][kF64](&dy, &saved, &dx, 1);
      // Central difference: h^2 / 6 times a third derivative below 20, and 1e-16 / h of rounding.
      EXPECT_NEAR(dx, dy * (f(x + h) - f(x - h)) / (2 * h), 3e-9)
          << kOpInfo[op].name << " at " << x;
    }
  }
}

TEST(ReferenceKernels, binary_ops_spread_rows_and_scalars) {
  const Values full = {1, 2, 3, 4, 5, 6}, row = {10, 20, 30}, scalar = {2}, dy = {1, 1, 1, 2, 2, 2};
  Values y(6);
  const auto op = [](BinaryOp o) { return static_cast<size_t>(o); };
  table().binary[op(BinaryOp::add)][kF64](full.data(), row.data(), y.data(),
                                          {Spread::kFull, Spread::kRow, 2, 3});
  EXPECT_EQ(y, (Values{11, 22, 33, 14, 25, 36}));
  table().binary[op(BinaryOp::sub)][kF64](scalar.data(), full.data(), y.data(),
                                          {Spread::kScalar, Spread::kFull, 2, 3});
  EXPECT_EQ(y, (Values{1, 0, -1, -2, -3, -4}));
  const BinaryLayout layout{Spread::kFull, Spread::kRow, 2, 3};
  table().binary_backward_lhs[op(BinaryOp::mul)][kF64](dy.data(), full.data(), row.data(), y.data(),
                                                       layout);
  EXPECT_EQ(y, (Values{10, 20, 30, 20, 40, 60}));
  table().binary_backward_rhs[op(BinaryOp::mul)][kF64](dy.data(), full.data(), row.data(), y.data(),
                                                       layout);
  EXPECT_EQ(y, (Values{1, 2, 3, 8, 10, 12}));
  table().binary_backward_rhs[op(BinaryOp::sub)][kF64](dy.data(), nullptr, nullptr, y.data(),
                                                       layout);
  EXPECT_EQ(y, (Values{-1, -1, -1, -2, -2, -2}));
}

TEST(ReferenceKernels, sums_run_over_the_middle_dimension) {
  const Values x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // [2, 3, 2]
  Values y(4), dx(12);
  table().reduce_sum[kF64](x.data(), y.data(), {2, 3, 2}, 2.0);
  EXPECT_EQ(y, (Values{4.5, 6, 13.5, 15}));
  table().expand[kF64](y.data(), dx.data(), {2, 3, 2}, 2.0);
  EXPECT_EQ(dx, (Values{2.25, 3, 2.25, 3, 2.25, 3, 6.75, 7.5, 6.75, 7.5, 6.75, 7.5}));
}

TEST(ReferenceKernels, norm_has_a_zero_gradient_at_zero) {
  const Values x = {3, 4}, zeros = {0, 0}, dy = {10};
  Values y(1), dx(2);
  table().norm[kF64](x.data(), y.data(), 2);
  EXPECT_EQ(y[0], 5);
  table().norm_backward[kF64](dy.data(), x.data(), y.data(), dx.data(), 2);
  EXPECT_EQ(dx, (Values{6, 8}));
  table().norm[kF64](zeros.data(), y.data(), 2);
  EXPECT_EQ(y[0], 0);
  table().norm_backward[kF64](dy.data(), zeros.data(), y.data(), dx.data(), 2);
  EXPECT_EQ(dx, (Values{0, 0}));
}

TEST(ReferenceKernels, mse_gradient_has_the_sign_of_its_divisor) {
  const Values x = {1, 2, 5}, target = {0, 4, 5}, dy = {3};
  Values loss(1), dx(3);
  table().mse[kF64](x.data(), target.data(), loss.data(), 3, 2.0);
  EXPECT_EQ(loss[0], 2.5);
  table().mse_backward[kF64](dy.data(), x.data(), target.data(), dx.data(), 3, 2.0);
  EXPECT_EQ(dx, (Values{3, -6, 0}));
  table().mse_backward[kF64](dy.data(), x.data(), target.data(), dx.data(), 3, -2.0);
  EXPECT_EQ(dx, (Values{-3, 6, 0}));
}

TEST(ReferenceKernels, adamw_takes_the_known_first_step) {
  double p = 1, g = 0.5, m = 0, v = 0, largest = 1;
  BFloat16 low{};
  AdamWStep step{1e-3, 0.9, 0.999, 1e-8, 0.01, 1 - 0.9, 1 - 0.999, false};
  table().adamw[kF64]({&p, &g, &m, &v, nullptr, &low, DType::BF16, 1}, step);
  EXPECT_NEAR(p, 0.99899000002, 1e-14);
  EXPECT_NEAR(m, 0.05, 1e-16);
  EXPECT_NEAR(v, 0.00025, 1e-18);
  EXPECT_EQ(low.bits, convert<BFloat16>(p).bits);
  // amsgrad: the larger of v and its maximum so far is what counts. maximize: the other direction.
  p = 1, m = v = 0;
  step.maximize = true;
  step.weight_decay = 0;
  table().adamw[kF64]({&p, &g, &m, &v, &largest, nullptr, DType::F32, 1}, step);
  EXPECT_EQ(largest, 1);
  EXPECT_NEAR(p, 1 + 1e-3 * 0.5 / (1 / std::sqrt(1 - 0.999)), 1e-9);
}

TEST(ReferenceKernels, sgd_follows_pytorchs_order) {
  double p = 1, buffer = 77;
  const double g = 0.5;
  Half low{};
  const StepArrays arrays{&p, &g, &buffer, nullptr, nullptr, &low, DType::F16, 1};
  SGDStep step{.lr = 0.1,
               .momentum = 0.9,
               .dampening = 0.5,
               .weight_decay = 0.2,
               .nesterov = false,
               .maximize = false,
               .first = true};
  table().sgd[kF64](arrays, step);
  EXPECT_DOUBLE_EQ(buffer, 0.7);  // 0.5 + 0.2 * 1, undamped in the first step
  EXPECT_DOUBLE_EQ(p, 0.93);
  EXPECT_EQ(low.bits, convert<Half>(p).bits);
  step.first = false;
  table().sgd[kF64](arrays, step);
  EXPECT_DOUBLE_EQ(buffer, 0.9 * 0.7 + 0.5 * (0.5 + 0.2 * 0.93));
  step = {0.1, 0.9, 0, 0, true, true, true};
  p = 1;
  table().sgd[kF64](arrays, step);
  EXPECT_DOUBLE_EQ(p, 1.095);  // nesterov: 1 + 0.1 (0.5 + 0.9 * 0.5)
  step = {0.1, 0, 0, 0, false, false, true};
  p = 1;
  table().sgd[kF64]({&p, &g, nullptr, nullptr, nullptr, nullptr, DType::F32, 1}, step);
  EXPECT_DOUBLE_EQ(p, 0.95);
}

TEST(ReferenceKernels, sweep_unscales_sums_squares_and_finds_the_first_non_finite) {
  Values g = {8, -4, 0};
  SweepRecord record = reference_sweep(g.data(), 3, 0.25);
  EXPECT_EQ(g, (Values{2, -1, 0}));
  EXPECT_EQ(record.sum_squares, 5);
  EXPECT_EQ(record.first_non_finite, -1);
  EXPECT_EQ(record.non_finite_value, 0);
  g = {1, -kInfinity, std::nan("")};
  record = reference_sweep(g.data(), 3, 1.0);
  EXPECT_EQ(record.first_non_finite, 1);
  EXPECT_EQ(record.non_finite_value, -std::numeric_limits<float>::infinity());
}

TEST(ReferenceKernels, fill_scale_and_clamp_work_in_place) {
  Values x = {-3, 3, kInfinity, std::nan(""), 0.5};
  table().clamp[kF64](x.data(), 2.5, 5);
  EXPECT_TRUE(std::isnan(x[3]));
  x[3] = 0;
  EXPECT_EQ(x, (Values{-2.5, 2.5, 2.5, 0, 0.5}));
  table().scale[kF64](x.data(), 2.0, 5);
  EXPECT_EQ(x, (Values{-5, 5, 5, 0, 1}));
  table().fill[kF64](x.data(), 7.0, 5);
  EXPECT_EQ(x, Values(5, 7.0));
}

TEST(ReferenceKernels, every_f64_entry_is_filled) {
  const KernelTable& t = table();
  for (const auto& op : t.unary) EXPECT_NE(op[kF64], nullptr);
  for (const auto& op : t.unary_backward) EXPECT_NE(op[kF64], nullptr);
  for (const auto& op : t.binary) EXPECT_NE(op[kF64], nullptr);
  for (const auto& op : t.binary_backward_lhs) EXPECT_NE(op[kF64], nullptr);
  for (const auto& op : t.binary_backward_rhs) EXPECT_NE(op[kF64], nullptr);
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    EXPECT_NE(t.cast[kF64][static_cast<size_t>(dtype)], nullptr);
    EXPECT_NE(t.cast[static_cast<size_t>(dtype)][kF64], nullptr);
  }
}

}  // namespace
}  // namespace halfstep::test
