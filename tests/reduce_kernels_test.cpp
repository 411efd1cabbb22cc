// The reductions on every SIMD target against the reference loops on the same rounded inputs, and
// against each other bit for bit, for several numbers of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"
#include "halfstep/tests/with_threads.h"

namespace halfstep::test {
namespace {

std::vector<double> random_values(int64_t n, double low = -2.0, double high = 2.0) {
  std::mt19937_64 random(static_cast<uint64_t>(n) + 17);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = uniform(random);
  return values;
}

std::vector<ReduceDims> many_dims() {
  std::vector<ReduceDims> dims;
  for (int64_t n = 0; n <= 35; ++n) dims.push_back({1, n, 1});
  for (int64_t inner = 2; inner <= 35; ++inner) dims.push_back({1, 3, inner});
  for (const int64_t n : {0, 1, 5, 256, 257, 600}) {
    dims.push_back({3, n, 1});
    dims.push_back({1, n, 10});
    dims.push_back({3, n, 7});
  }
  dims.push_back({0, 5, 1});
  dims.push_back({2, 5, 0});
  dims.push_back({2, 70001, 1});    // more than one block of a row
  dims.push_back({1, 1030, 2051});  // more than one block and strip of columns
  return dims;
}

template <class T>
void expect_sums_as_reference(const Target& target, const ReduceDims& dims, double divisor) {
  const Buffer<T> x(random_values(dims.outer * dims.n * dims.inner));
  const std::vector<double> exact = x.as_doubles();
  std::vector<double> expected(static_cast<size_t>(dims.outer * dims.inner));
  reference_kernels().reduce_sum[index_of(DType::F64)](exact.data(), expected.data(), dims,
                                                       divisor);
  Buffer<T> y(dims.outer * dims.inner);
  target.kernels.reduce_sum[index_of(kDTypeOf<T>)](x.data(), y.data(), dims, divisor);
  // Both sides add n terms of at most 2 in float64, in different orders.
  const auto n = static_cast<double>(dims.n);
  const double slack = n * 2.0 * n * 0x1p-53 / std::fabs(divisor);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(is_close(y[i], expected[i], slack))
        << target.name << " [" << dims.outer << ", " << dims.n << ", " << dims.inner << "] at " << i
        << ": " << convert<double>(y[i]) << ", not " << expected[i];
  }
  EXPECT_TRUE(y.intact());
}

TEST(ReduceSum, agrees_with_the_reference_on_every_target) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const ReduceDims& dims : many_dims()) {
        expect_sums_as_reference<T>(target, dims, 1.0);
        expect_sums_as_reference<T>(target, dims, -3.0);
      }
    });
  }
}

TEST(ReduceSum, has_the_same_bits_on_every_target_and_for_any_number_of_threads) {
  const ReduceDims all_dims[] = {{1, 200003, 1},  {3, 66001, 1}, {50000, 7, 1},
                                 {1, 1030, 2051}, {1, 70001, 3}, {40, 300, 33}};
  for_each_dtype([&]<class T>(T) {
    for (const ReduceDims& dims : all_dims) {
      const Buffer<T> x(random_values(dims.outer * dims.n * dims.inner));
      Buffer<T> first(dims.outer * dims.inner);
      every_target().front().kernels.reduce_sum[index_of(kDTypeOf<T>)](x.data(), first.data(), dims,
                                                                       1.0);
      for (const Target& target : every_target()) {
        for (const int threads : kThreadCounts) {
          const WithThreads with(threads);
          Buffer<T> y(dims.outer * dims.inner);
          target.kernels.reduce_sum[index_of(kDTypeOf<T>)](x.data(), y.data(), dims, 1.0);
          EXPECT_TRUE(y.same_bits(first)) << target.name << ' ' << threads << " threads";
        }
      }
    }
  });
}

/// Sum of `values` stored as T, divided by `divisor`, on every target, as [1, n, 1] and [1, n, 2].
template <class T>
std::vector<double> sums_of(const std::vector<double>& values, double divisor) {
  std::vector<double> twice;
  for (const double v : values) twice.insert(twice.end(), 2, v);
  const Buffer<T> row(values), columns(twice);
  const auto n = static_cast<int64_t>(values.size());
  std::vector<double> results;
  for (const Target& target : every_target()) {
    Buffer<T> one(int64_t{1}), two(int64_t{2});
    const auto sum = target.kernels.reduce_sum[index_of(kDTypeOf<T>)];
    sum(row.data(), one.data(), {1, n, 1}, divisor);
    sum(columns.data(), two.data(), {1, n, 2}, divisor);
    for (const T y : {one[0], two[0], two[1]}) results.push_back(convert<double>(y));
  }
  return results;
}

TEST(ReduceSum, the_mean_of_many_halves_does_not_overflow) {
  for (const size_t n : {size_t{100000}, size_t{65520}}) {
    for (const double mean : sums_of<Half>(std::vector<double>(n, 1.0), static_cast<double>(n))) {
      EXPECT_EQ(mean, 1.0) << n;
    }
  }
  const double large = 32000.0;
  for (const double sum :
       sums_of<Half>({large, large, large, large, -large, -large, -large, -large}, 1.0)) {
    EXPECT_EQ(sum, 0.0);
  }
}

TEST(ReduceSum, sums_of_halves_do_not_stick) {  // they would at 256 in BF16, 32 in F16
  for (const double sum : sums_of<BFloat16>(std::vector<double>(1600, 1.0), 1.0)) {
    EXPECT_EQ(sum, 1600.0);
  }
  const double hundredth = convert<double>(convert<Half>(0.01));
  for (const double sum : sums_of<Half>(std::vector<double>(12500, 0.01), 1.0)) {
    EXPECT_EQ(sum, convert<double>(convert<Half>(12500 * hundredth)));
    EXPECT_NEAR(sum, 125.0, 0.1);
  }
}

TEST(ReduceSum, non_finite_values_come_through) {
  const double inf = std::numeric_limits<double>::infinity();
  for (size_t at = 0; at < 40; ++at) {
    std::vector<double> values(40, 1.0);
    values[at] = inf;
    for (const double sum : sums_of<float>(values, 1.0)) EXPECT_EQ(sum, inf);
    values[at] = std::nan("");
    for (const double sum : sums_of<BFloat16>(values, 1.0)) EXPECT_TRUE(std::isnan(sum));
  }
}

TEST(ReduceSum, a_sum_over_nothing_is_zero) {
  for (const double sum : sums_of<float>({}, 2.0)) EXPECT_EQ(sum, 0.0);
  for (const Target& target : every_target()) {
    const Buffer<float> none(int64_t{0});
    Buffer<float> norm(int64_t{1}), loss(int64_t{1});
    target.kernels.norm[0](none.data(), norm.data(), 0);
    target.kernels.mse[0](none.data(), none.data(), loss.data(), 0, 1.0);
    EXPECT_EQ(norm[0], 0.0f);
    EXPECT_EQ(loss[0], 0.0f);
  }
}

TEST(Expand, spreads_the_quotient_rounded_once) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      std::vector<ReduceDims> all_dims = many_dims();
      all_dims.push_back({2, 40000, 3});
      for (const ReduceDims& dims : all_dims) {
        const WithThreads with(3);
        const Buffer<T> dy(random_values(dims.outer * dims.inner));
        Buffer<T> dx(dims.outer * dims.n * dims.inner);
        target.kernels.expand[index_of(kDTypeOf<T>)](dy.data(), dx.data(), dims, 3.0);
        for (int64_t i = 0; i < dx.size(); ++i) {
          const int64_t from = i / dims.inner / dims.n * dims.inner + i % dims.inner;
          const T expected = convert<T>(convert<double>(dy[static_cast<size_t>(from)]) / 3.0);
          ASSERT_EQ(convert<double>(dx[static_cast<size_t>(i)]), convert<double>(expected)) << i;
        }
        EXPECT_TRUE(dx.intact());
      }
    });
  }
}

template <class T>
double norm_of(const Target& target, const std::vector<double>& values) {
  const Buffer<T> x(values);
  Buffer<T> y(int64_t{1});
  target.kernels.norm[index_of(kDTypeOf<T>)](x.data(), y.data(), x.size());
  EXPECT_TRUE(y.intact());
  return convert<double>(y[0]);
}

TEST(Norm, squares_do_not_overflow) {
  const double largest = std::numeric_limits<float>::max();
  for (const Target& target : every_target()) {
    const auto norm = [&](size_t n, double x) { return norm_of<float>(target, std::vector(n, x)); };
    EXPECT_TRUE(is_close(convert<float>(norm(100, 1e20)), 1e21, 1e21 * 0x1p-24));
    EXPECT_TRUE(is_close(convert<float>(norm(128, 1e19)), std::sqrt(128.0) * 1e19, 1e13));
    EXPECT_EQ(norm(1, largest), largest);
    EXPECT_TRUE(is_close(convert<float>(norm(4, 1e-25)), 2e-25, 2e-25 * 0x1p-24));
  }
}

TEST(Norm, of_halves_does_not_overflow_inside) {
  for (const Target& target : every_target()) {
    EXPECT_EQ(norm_of<Half>(target, {300.0}), 300.0);
    EXPECT_EQ(norm_of<Half>(target, std::vector<double>(4096, 100.0)), 6400.0);
    EXPECT_EQ(norm_of<BFloat16>(target, std::vector<double>(4096, 128.0)), 8192.0);
  }
}

TEST(Norm, and_its_gradient_agree_with_the_reference) {
  const size_t f64 = index_of(DType::F64);
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      std::vector<int64_t> sizes = {100, 70001};
      for (int64_t n = 1; n <= 35; ++n) sizes.push_back(n);
      for (const int64_t n : sizes) {
        const Buffer<T> x(random_values(n)), dy(std::vector<double>{0.75});
        Buffer<T> y(int64_t{1}), dx(n);
        const auto at = index_of(kDTypeOf<T>);
        target.kernels.norm[at](x.data(), y.data(), n);
        target.kernels.norm_backward[at](dy.data(), x.data(), y.data(), dx.data(), n);
        const std::vector<double> exact_x = x.as_doubles(), exact_dy = dy.as_doubles(),
                                  rounded_y = y.as_doubles();
        std::vector<double> exact_y(1), exact_dx(static_cast<size_t>(n));
        reference_kernels().norm[f64](exact_x.data(), exact_y.data(), n);
        reference_kernels().norm_backward[f64](exact_dy.data(), exact_x.data(), rounded_y.data(),
                                               exact_dx.data(), n);
        const double float64 = static_cast<double>(n) * 0x1p-52;  // n additions in float64
        EXPECT_TRUE(is_close(y[0], exact_y[0], exact_y[0] * float64));
        for (size_t i = 0; i < exact_dx.size(); ++i) {  // three roundings in float64
          ASSERT_TRUE(is_close(dx[i], exact_dx[i], std::fabs(exact_dx[i]) * 3 * 0x1p-53));
        }
        EXPECT_TRUE(dx.intact());
      }
    });
  }
}

TEST(Norm, the_gradient_at_zero_is_zero) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      const Buffer<T> x(std::vector<double>(19, 0.0)), dy(std::vector<double>{1.0}),
          y(std::vector<double>{0.0});
      Buffer<T> dx(int64_t{19});
      target.kernels.norm_backward[index_of(kDTypeOf<T>)](dy.data(), x.data(), y.data(), dx.data(),
                                                          19);
      for (const double v : dx.as_doubles()) EXPECT_EQ(v, 0.0);
    });
  }
}

TEST(Mse, and_its_gradient_agree_with_the_reference) {
  const size_t f32 = index_of(DType::F32), f64 = index_of(DType::F64);
  for (const Target& target : every_target()) {
    std::vector<int64_t> sizes = {100, 70001};
    for (int64_t n = 1; n <= 35; ++n) sizes.push_back(n);
    for (const int64_t n : sizes) {
      const Buffer<float> x(random_values(n)), t(random_values(n, 0.0, 1.0)),
          dy(std::vector<double>{65536.0});
      Buffer<float> loss(int64_t{1}), dx(n);
      const auto divisor = static_cast<double>(n);
      target.kernels.mse[f32](x.data(), t.data(), loss.data(), n, divisor);
      target.kernels.mse_backward[f32](dy.data(), x.data(), t.data(), dx.data(), n, -divisor);
      const std::vector<double> exact_x = x.as_doubles(), exact_t = t.as_doubles(),
                                exact_dy = dy.as_doubles();
      std::vector<double> exact_loss(1), exact_dx(static_cast<size_t>(n));
      reference_kernels().mse[f64](exact_x.data(), exact_t.data(), exact_loss.data(), n, divisor);
      reference_kernels().mse_backward[f64](exact_dy.data(), exact_x.data(), exact_t.data(),
                                            exact_dx.data(), n, -divisor);
      // The difference is rounded to float32 (2^-24 of it), which squaring doubles.
      EXPECT_TRUE(is_close(loss[0], exact_loss[0], exact_loss[0] * 1.001 * 0x1p-23));
      for (size_t i = 0; i < exact_dx.size(); ++i) {
        ASSERT_TRUE(is_close(dx[i], exact_dx[i], std::fabs(exact_dx[i]) * 1.001 * 0x1p-24)) << i;
      }
      EXPECT_TRUE(loss.intact() && dx.intact());
    }
  }
}

TEST(Mse, has_the_same_bits_on_every_target_and_for_any_number_of_threads) {
  const int64_t n = 200003;
  const Buffer<float> x(random_values(n)), t(random_values(n, 0.0, 1.0));
  Buffer<float> first(int64_t{1});
  every_target().front().kernels.mse[0](x.data(), t.data(), first.data(), n, 7.0);
  for (const Target& target : every_target()) {
    for (const int threads : kThreadCounts) {
      const WithThreads with(threads);
      Buffer<float> loss(int64_t{1});
      target.kernels.mse[0](x.data(), t.data(), loss.data(), n, 7.0);
      EXPECT_TRUE(loss.same_bits(first)) << target.name << ' ' << threads << " threads";
    }
  }
}

TEST(Mse, the_gradient_does_not_overflow_before_the_result_does) {
  const Buffer<float> x(std::vector<double>{1e-3}), t(std::vector<double>{0.0}),
      dy(std::vector<double>{3e38});
  for (const Target& target : every_target()) {
    Buffer<float> dx(int64_t{1});
    target.kernels.mse_backward[0](dy.data(), x.data(), t.data(), dx.data(), 1, 1.0);
    EXPECT_TRUE(is_close(dx[0], 6e35, 6e35 * 0x1p-22));  // the inputs are rounded too
  }
}

}  // namespace
}  // namespace halfstep::test
