// Both forms of GELU and their derivatives against PyTorch's float64 values (golden/gelu.json): the
// reference kernels, and float32 on every SIMD target.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "halfstep/core/ops.h"
#include "halfstep/tests/golden.h"
#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep::test {
namespace {

struct Form {
  UnaryOp op;
  std::vector<double> x, y, dydx;
};

Form load(UnaryOp op) {
  const json all = load_golden("gelu.json");
  const json& form = all[op == UnaryOp::gelu ? "none" : "tanh"];
  return {op, numbers(all["x"]), numbers(form["y"]), numbers(form["dydx"])};
}

template <class T>
std::vector<double> forward(const KernelTable& kernels, UnaryOp op, const std::vector<double>& x) {
  const Buffer<T> in(x);
  Buffer<T> out(in.size());
  kernels.unary[static_cast<size_t>(op)][index_of(kDTypeOf<T>)](in.data(), out.data(), in.size());
  return out.as_doubles();
}

template <class T>
std::vector<double> derivative(const KernelTable& kernels, UnaryOp op,
                               const std::vector<double>& x) {
  const Buffer<T> in(x);
  const Buffer<T> ones(std::vector<double>(x.size(), 1.0));
  Buffer<T> out(in.size());
  kernels.unary_backward[static_cast<size_t>(op)][index_of(kDTypeOf<T>)](ones.data(), in.data(),
                                                                         out.data(), in.size());
  return out.as_doubles();
}

/// PyTorch adds 1 to erf or tanh, so its own error in y is about |x| 2^-53, and that of dydx has
/// the factors x and x^2 of its terms; 4 roundings.
double golden_error(double x) { return 4 * 0x1p-53 * (1 + std::fabs(x) + x * x); }

void expect_reference_matches(const Form& form) {
  ASSERT_GT(form.x.size(), 100u);
  const std::vector<double> y = forward<double>(reference_kernels(), form.op, form.x);
  const std::vector<double> dydx = derivative<double>(reference_kernels(), form.op, form.x);
  for (size_t i = 0; i < form.x.size(); ++i) {
    EXPECT_NEAR(y[i], form.y[i], golden_error(form.x[i])) << "y at x = " << form.x[i];
    EXPECT_NEAR(dydx[i], form.dydx[i], golden_error(form.x[i])) << "dydx at x = " << form.x[i];
  }
}

void expect_float_matches(const Form& form) {
  for (const Target& target : every_target()) {
    const std::vector<double> y = forward<float>(target.kernels, form.op, form.x);
    const std::vector<double> dydx = derivative<float>(target.kernels, form.op, form.x);
    for (size_t i = 0; i < form.x.size(); ++i) {
      // x is rounded to float32 first; |y'| < 1.2 and |y''| < 1 carry that to the results.
      const double x_error = std::fabs(form.x[i] - static_cast<float>(form.x[i]));
      const double slack = golden_error(form.x[i]) + 1.2 * x_error;
      EXPECT_NEAR(y[i], form.y[i], slack + kFunctionUlps * float_ulp(form.y[i]))
          << target.name << ": y at x = " << form.x[i];
      EXPECT_NEAR(dydx[i], form.dydx[i], slack + kFunctionUlps * float_ulp(1.0))
          << target.name << ": dydx at x = " << form.x[i];
    }
  }
}

TEST(golden_gelu, reference_erf_form_is_pytorchs) { expect_reference_matches(load(UnaryOp::gelu)); }
TEST(golden_gelu, reference_tanh_form_is_pytorchs) {
  expect_reference_matches(load(UnaryOp::gelu_tanh));
}
TEST(golden_gelu, float32_erf_form_is_pytorchs_on_every_target) {
  expect_float_matches(load(UnaryOp::gelu));
}
TEST(golden_gelu, float32_tanh_form_is_pytorchs_on_every_target) {
  expect_float_matches(load(UnaryOp::gelu_tanh));
}

}  // namespace
}  // namespace halfstep::test
