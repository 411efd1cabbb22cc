// The optimizers' passes on every SIMD target: against the reference loops on the same rounded
// inputs, and against each other bit for bit, for several numbers of threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"
#include "halfstep/tests/with_threads.h"

namespace halfstep::test {
namespace {

constexpr size_t kF32 = index_of(DType::F32), kF64 = index_of(DType::F64);

std::vector<double> random_values(int64_t n, double low = -1.0, double high = 1.0) {
  std::mt19937_64 random(static_cast<uint64_t>(n) + std::bit_cast<uint64_t>(low));
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = uniform(random);
  return values;
}

/// The arrays of one parameter as T, with the values of `n` the same each time.
template <class T>
struct Arrays {
  explicit Arrays(int64_t n)
      : param(random_values(n, -3.0, 3.0)),
        grad(random_values(n, -0.5, 0.7)),
        exp_avg(random_values(n, -0.1, 0.1)),
        exp_avg_sq(random_values(n, 1e-6, 0.1)),
        max_exp_avg_sq(random_values(n, 1e-5, 0.1)),
        f16(n),
        bf16(n) {}

  /// The same numbers in double.
  explicit Arrays(const Arrays<float>& other)
      : param(other.param.as_doubles()),
        grad(other.grad.as_doubles()),
        exp_avg(other.exp_avg.as_doubles()),
        exp_avg_sq(other.exp_avg_sq.as_doubles()),
        max_exp_avg_sq(other.max_exp_avg_sq.as_doubles()),
        f16(other.param.size()),
        bf16(other.param.size()) {}

  StepArrays pointers(bool amsgrad, const DType* low) {
    void* copy = nullptr;
    if (low != nullptr && *low == DType::F16) copy = f16.data();
    if (low != nullptr && *low == DType::BF16) copy = bf16.data();
    return {param.data(),
            grad.data(),
            exp_avg.data(),
            exp_avg_sq.data(),
            amsgrad ? max_exp_avg_sq.data() : nullptr,
            copy,
            low != nullptr ? *low : DType::F16,
            param.size()};
  }
  bool intact() const {
    return param.intact() && grad.intact() && exp_avg.intact() && exp_avg_sq.intact() &&
           max_exp_avg_sq.intact() && f16.intact() && bf16.intact();
  }
  bool same_bits(const Arrays& other) const {
    return param.same_bits(other.param) && grad.same_bits(other.grad) &&
           exp_avg.same_bits(other.exp_avg) && exp_avg_sq.same_bits(other.exp_avg_sq) &&
           max_exp_avg_sq.same_bits(other.max_exp_avg_sq) && f16.same_bits(other.f16) &&
           bf16.same_bits(other.bf16);
  }

  Buffer<T> param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;
  Buffer<Half> f16;
  Buffer<BFloat16> bf16;
};

/// Whether the low-precision copies hold the new parameter where asked for, and poison elsewhere.
void expect_low_copies(const Arrays<float>& arrays, const DType* low) {
  const Arrays<float> untouched(arrays.param.size());
  for (size_t i = 0; i < static_cast<size_t>(arrays.param.size()); ++i) {
    const bool has_f16 = low != nullptr && *low == DType::F16;
    const bool has_bf16 = low != nullptr && *low == DType::BF16;
    const Half half = has_f16 ? convert<Half>(arrays.param[i]) : untouched.f16[i];
    const BFloat16 brain = has_bf16 ? convert<BFloat16>(arrays.param[i]) : untouched.bf16[i];
    ASSERT_EQ(arrays.f16[i].bits, half.bits) << i;
    ASSERT_EQ(arrays.bf16[i].bits, brain.bits) << i;
  }
}

const DType kF16 = DType::F16, kBF16 = DType::BF16;

AdamWStep adamw_step(int64_t t, double beta1, double decay, bool maximize) {
  const double beta2 = 0.99;
  return {0.01,    beta1, beta2, 1e-8, decay, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t),
          maximize};
}

void expect_adamw_as_reference(const Target& target, int64_t n, const AdamWStep& step, bool amsgrad,
                               const DType* low) {
  Arrays<float> got(n);
  Arrays<double> expected(got);
  const Arrays<double> before(got);
  target.kernels.adamw[kF32](got.pointers(amsgrad, low), step);
  reference_kernels().adamw[kF64](expected.pointers(amsgrad, nullptr), step);
  const double u = 0x1p-24;  // of one float32 rounding
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    // exp_avg: the weight, the difference, their product and the sum are rounded.
    const double move = std::fabs(expected.exp_avg[i] - before.exp_avg[i]) +
                        std::fabs(expected.exp_avg[i] - before.grad[i]);
    const double avg_slack = u * (std::fabs(expected.exp_avg[i]) + 4 * move);
    ASSERT_TRUE(is_close(got.exp_avg[i], expected.exp_avg[i], avg_slack)) << target.name << i;
    // exp_avg_sq: a sum of positive products, at most four roundings each.
    const double square = expected.exp_avg_sq[i];
    ASSERT_TRUE(is_close(got.exp_avg_sq[i], square, 4 * u * square)) << target.name << i;
    const double largest = expected.max_exp_avg_sq[i];
    ASSERT_TRUE(is_close(got.max_exp_avg_sq[i], largest, 4 * u * largest)) << target.name << i;
    // param: 2 u of the decayed value; of the step the error of exp_avg, half of exp_avg_sq's, the
    // root, its correction (2), eps, the rate (2), their product and the quotient: 10 u.
    const double denominator =
        std::sqrt((amsgrad ? largest : square) / step.bias_correction2) + step.eps;
    const double rate = step.lr / step.bias_correction1;
    const double change = rate / denominator * std::fabs(expected.exp_avg[i]);
    const double slack = 2 * u * std::fabs(before.param[i]) + 10 * u * change +
                         rate / denominator * avg_slack + u * std::fabs(expected.param[i]);
    ASSERT_TRUE(is_close(got.param[i], expected.param[i], slack)) << target.name << ' ' << i;
  }
  expect_low_copies(got, low);
  EXPECT_TRUE(got.intact());
}

TEST(AdamW, agrees_with_the_reference_on_every_target) {
  for (const Target& target : every_target()) {
    std::vector<int64_t> sizes = {100, 20001};
    for (int64_t n = 0; n <= 35; ++n) sizes.push_back(n);
    for (const int64_t n : sizes) {
      for (const DType* low : {static_cast<const DType*>(nullptr), &kF16, &kBF16}) {
        expect_adamw_as_reference(target, n, adamw_step(1, 0.9, 0.0, false), false, low);
        expect_adamw_as_reference(target, n, adamw_step(7, 0.9, 0.1, true), true, low);
        expect_adamw_as_reference(target, n, adamw_step(3, 0.3, 0.1, false), false, low);
      }
    }
  }
}

TEST(AdamW, without_memory_the_average_is_the_gradient) {  // beta1 = 0, as torch.lerp at weight 1
  for (const Target& target : every_target()) {
    Arrays<float> arrays(35);
    target.kernels.adamw[kF32](arrays.pointers(false, nullptr), adamw_step(2, 0.0, 0.0, false));
    EXPECT_TRUE(arrays.exp_avg.same_bits(arrays.grad)) << target.name;
  }
}

TEST(AdamW, a_nan_gradient_is_not_lost_in_the_maximum) {
  for (const Target& target : every_target()) {
    Arrays<float> arrays(35);
    arrays.grad[20] = std::nanf("");
    arrays.max_exp_avg_sq[3] = std::nanf("");
    target.kernels.adamw[kF32](arrays.pointers(true, nullptr), adamw_step(2, 0.9, 0.0, false));
    for (size_t i = 0; i < 35; ++i) {
      const bool poisoned = i == 20 || i == 3;
      EXPECT_EQ(std::isnan(arrays.max_exp_avg_sq[i]), poisoned) << target.name << ' ' << i;
      EXPECT_EQ(std::isnan(arrays.param[i]), poisoned) << target.name << ' ' << i;
    }
  }
}

SGDStep sgd_step(double momentum, double decay, bool nesterov, bool maximize, bool first) {
  return {0.1, momentum, nesterov ? 0.0 : 0.25, decay, nesterov, maximize, first};
}

void expect_sgd_as_reference(const Target& target, int64_t n, const SGDStep& step,
                             const DType* low) {
  Arrays<float> got(n);
  Arrays<double> expected(got);
  const Arrays<double> before(got);
  target.kernels.sgd[kF32](got.pointers(false, low), step);
  reference_kernels().sgd[kF64](expected.pointers(false, nullptr), step);
  const double u = 0x1p-24;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    // No term is larger than this sum of magnitudes, and there are at most ten roundings.
    const double buffer = std::fabs(before.grad[i]) + std::fabs(before.exp_avg[i]) +
                          step.weight_decay * std::fabs(before.param[i]);
    ASSERT_TRUE(is_close(got.exp_avg[i], expected.exp_avg[i], 6 * u * buffer)) << target.name;
    const double slack = u * std::fabs(expected.param[i]) + 10 * u * step.lr * 2 * buffer;
    ASSERT_TRUE(is_close(got.param[i], expected.param[i], slack)) << target.name << ' ' << i;
  }
  if (step.momentum == 0.0) {
    EXPECT_TRUE(got.exp_avg.same_bits(Arrays<float>(n).exp_avg));
  }
  expect_low_copies(got, low);
  EXPECT_TRUE(got.intact());
}

TEST(SGD, agrees_with_the_reference_on_every_target) {
  for (const Target& target : every_target()) {
    std::vector<int64_t> sizes = {100, 20001};
    for (int64_t n = 0; n <= 35; ++n) sizes.push_back(n);
    for (const int64_t n : sizes) {
      for (const DType* low : {static_cast<const DType*>(nullptr), &kF16, &kBF16}) {
        expect_sgd_as_reference(target, n, sgd_step(0.0, 0.0, false, false, true), low);
        expect_sgd_as_reference(target, n, sgd_step(0.0, 0.1, false, true, false), low);
        expect_sgd_as_reference(target, n, sgd_step(0.9, 0.1, false, true, true), low);
        expect_sgd_as_reference(target, n, sgd_step(0.9, 0.1, false, false, false), low);
        expect_sgd_as_reference(target, n, sgd_step(0.9, 0.0, true, false, false), low);
      }
    }
  }
}

TEST(SGD, without_momentum_needs_no_buffer) {
  for (const Target& target : every_target()) {
    Arrays<float> arrays(35), with_buffer(35);
    const SGDStep step = sgd_step(0.0, 0.1, false, false, false);
    target.kernels.sgd[kF32](with_buffer.pointers(false, nullptr), step);
    StepArrays pointers = arrays.pointers(false, nullptr);
    pointers.exp_avg = pointers.exp_avg_sq = nullptr;
    target.kernels.sgd[kF32](pointers, step);
    EXPECT_TRUE(arrays.same_bits(with_buffer)) << target.name;
  }
}

TEST(Step, has_the_same_bits_on_every_target_and_for_any_number_of_threads) {
  const int64_t n = 100003;
  const AdamWStep adamw = adamw_step(7, 0.9, 0.1, false);
  const SGDStep sgd = sgd_step(0.9, 0.1, true, false, false);
  Arrays<float> first_adamw(n), first_sgd(n);
  every_target().front().kernels.adamw[kF32](first_adamw.pointers(true, &kBF16), adamw);
  every_target().front().kernels.sgd[kF32](first_sgd.pointers(false, &kF16), sgd);
  for (const Target& target : every_target()) {
    for (const int threads : kThreadCounts) {
      const WithThreads with(threads);
      Arrays<float> by_adamw(n), by_sgd(n);
      target.kernels.adamw[kF32](by_adamw.pointers(true, &kBF16), adamw);
      target.kernels.sgd[kF32](by_sgd.pointers(false, &kF16), sgd);
      EXPECT_TRUE(by_adamw.same_bits(first_adamw)) << target.name << ' ' << threads << " threads";
      EXPECT_TRUE(by_sgd.same_bits(first_sgd)) << target.name << ' ' << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace halfstep::test
