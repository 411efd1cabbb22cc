// The sweep over gradients on every SIMD target: what it multiplies, what its records say, and the
// same bits for any target and number of threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/with_threads.h"

namespace halfstep::test {
namespace {

std::vector<double> random_values(int64_t n, double low = -1.0, double high = 1.0) {
  std::mt19937_64 random(static_cast<uint64_t>(n) + std::bit_cast<uint64_t>(low));
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = uniform(random);
  return values;
}

bool same_record(const SweepRecord& a, const SweepRecord& b) {
  return std::bit_cast<uint64_t>(a.sum_squares) == std::bit_cast<uint64_t>(b.sum_squares) &&
         a.first_non_finite == b.first_non_finite &&
         std::bit_cast<uint32_t>(a.non_finite_value) == std::bit_cast<uint32_t>(b.non_finite_value);
}

const SweepRecord kGarbage{-1.0, 77, 7.0f};

template <class T>
SweepRecord unscale(const Target& target, Buffer<T>& x, float factor) {
  SweepRecord record = kGarbage;
  const SweepItem item{x.data(), x.size(), kDTypeOf<T>, &record};
  target.kernels.unscale(&item, 1, factor);
  return record;
}

template <class T>
SweepRecord measure(const Target& target, Buffer<T>& x) {
  SweepRecord record = kGarbage;
  const SweepItem item{x.data(), x.size(), kDTypeOf<T>, &record};
  target.kernels.measure(&item, 1);
  return record;
}

std::vector<int64_t> many_sizes() {
  std::vector<int64_t> sizes = {100, 65536, 65537, 200003};
  for (int64_t n = 0; n <= 35; ++n) sizes.push_back(n);
  return sizes;
}

TEST(Sweep, unscale_multiplies_in_float32_and_rounds_once) {
  const float factor = 1.0f / 3.0f;
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t n : many_sizes()) {
        const std::vector<double> values = random_values(n, -1e4, 1e4);
        Buffer<T> x(values);
        const Buffer<T> before(values);
        const SweepRecord record = unscale(target, x, factor);
        double sum = 0.0;
        for (size_t i = 0; i < values.size(); ++i) {
          const T expected = convert<T>(convert<float>(before[i]) * factor);
          ASSERT_EQ(convert<double>(x[i]), convert<double>(expected)) << target.name << " at " << i;
          sum += convert<double>(x[i]) * convert<double>(x[i]);
        }
        // n additions of positive numbers in float64 on both sides.
        EXPECT_NEAR(record.sum_squares, sum, sum * static_cast<double>(n) * 0x1p-52);
        EXPECT_EQ(record.first_non_finite, -1);
        EXPECT_EQ(record.non_finite_value, 0.0f);
        EXPECT_TRUE(x.intact());
      }
    });
  }
}

// Products whose float32 value is a tie between two halves though the exact product is not: the
// body and the tail of a vector loop must both round to float32 first.
TEST(Sweep, body_and_tail_round_alike) {
  for (const Target& target : every_target()) {
    Buffer<Half> half(std::vector<double>(35, 0x1.938p+0));
    unscale(target, half, 0x1.323364p+0f);
    for (const double x : half.as_doubles()) EXPECT_EQ(x, 0x1.e28p+0) << target.name;
    Buffer<BFloat16> brain(std::vector<double>(35, 0x1.18p+0));
    unscale(target, brain, 0x1.257c58p+0f);
    for (const double x : brain.as_doubles()) EXPECT_EQ(x, 0x1.4p+0) << target.name;
  }
}

TEST(Sweep, float64_is_swept_in_float64) {
  for (const Target& target : every_target()) {
    Buffer<double> x(random_values(35));
    const std::vector<double> before = x.as_doubles();
    const SweepRecord record = unscale(target, x, 0.3f);
    double sum = 0.0;
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(x[i], before[i] * static_cast<double>(0.3f));
      sum += x[i] * x[i];
    }
    EXPECT_NEAR(record.sum_squares, sum, sum * 35 * 0x1p-52);
    x[7] = std::nan("");
    EXPECT_EQ(measure(target, x).first_non_finite, 7);
  }
}

TEST(Sweep, measure_after_unscale_gives_the_same_record) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t n : many_sizes()) {
        Buffer<T> x(random_values(n));
        const SweepRecord unscaled = unscale(target, x, 0.3f);
        EXPECT_TRUE(same_record(measure(target, x), unscaled)) << n;
        const SweepRecord by_one = unscale(target, x, 1.0f);
        EXPECT_TRUE(same_record(by_one, unscaled)) << n;
      }
    });
  }
}

TEST(Sweep, a_factor_of_one_leaves_every_bit) {
  const uint32_t bits[] = {0x7F800001u, 0xFFA00000u, 0x00000001u, 0x80000000u, 0x3F800001u};
  for (const Target& target : every_target()) {
    Buffer<float> x(int64_t{35}), before(int64_t{35});
    for (size_t i = 0; i < 35; ++i) std::memcpy(x.data() + i, &bits[i % 5], 4);
    std::memcpy(before.data(), x.data(), 35 * 4);
    EXPECT_EQ(unscale(target, x, 1.0f).first_non_finite, 0);
    measure(target, x);
    EXPECT_TRUE(x.same_bits(before)) << target.name;
  }
}

TEST(Sweep, first_non_finite_is_the_lowest_index) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t at : {0, 1, 15, 16, 39, 65535, 65536, 140000}) {
        for (const double value : {inf, -inf, std::nan("")}) {
          std::vector<double> values(at < 40 ? 40 : 150000, 0.5);
          values[static_cast<size_t>(at)] = value;
          values.back() = inf;  // later ones don't matter
          Buffer<T> x(values);
          for (const SweepRecord& record : {measure(target, x), unscale(target, x, 0.5f)}) {
            EXPECT_EQ(record.first_non_finite, at) << target.name;
            const bool same = std::isnan(value) ? std::isnan(record.non_finite_value)
                                                : record.non_finite_value == value;
            EXPECT_TRUE(same || at == 39) << value;
            EXPECT_FALSE(std::isfinite(record.sum_squares));
          }
        }
      }
    });
  }
}

TEST(Sweep, what_counts_is_the_value_after_unscaling) {
  for (const Target& target : every_target()) {
    Buffer<Half> grows(std::vector<double>{1.0, 60000.0, 3.0});
    const SweepRecord record = unscale(target, grows, 2.0f);
    EXPECT_EQ(record.first_non_finite, 1);
    EXPECT_EQ(record.non_finite_value, std::numeric_limits<float>::infinity());
    Buffer<float> largest(std::vector<double>{std::numeric_limits<float>::max()});
    EXPECT_EQ(unscale(target, largest, 1.5f).first_non_finite, 0);
  }
}

TEST(Sweep, squares_neither_overflow_nor_vanish) {
  const double largest = std::numeric_limits<float>::max();
  for (const Target& target : every_target()) {
    const auto norm = [&]<class T>(T, size_t n, double value) {
      Buffer<T> x(std::vector<double>(n, value));
      const SweepRecord record = measure(target, x);
      EXPECT_EQ(record.first_non_finite, -1);
      return std::sqrt(record.sum_squares);
    };
    const double rounding = 0x1p-24;  // of the value to float32
    EXPECT_NEAR(norm(float{}, 100, 1e20), 1e21, 1e21 * rounding);
    EXPECT_NEAR(norm(float{}, 128, 1e19), 1.1313708498984761e20, 1.14e20 * rounding);
    EXPECT_EQ(norm(float{}, 1, largest), largest);
    const double many = std::sqrt(70000.0) * largest;
    EXPECT_NEAR(norm(float{}, 70000, largest), many, many * 70000 * 0x1p-53);  // n additions
    EXPECT_NEAR(norm(float{}, 4, 1e-25), 2e-25, 2e-25 * rounding);
    EXPECT_EQ(norm(Half{}, 1, 300.0), 300.0);
    EXPECT_EQ(norm(Half{}, 4096, 100.0), 6400.0);
  }
}

/// A sweep over gradients of many sizes and dtypes; the values are the same each time.
struct ManyGradients {
  ManyGradients() {
    for (const int64_t n : {5, 0, 70001, 300, 65536, 1, 200003, 64, 40000, 40000}) add(n);
    records.assign(items.size(), kGarbage);
    for (size_t i = 0; i < items.size(); ++i) items[i].record = &records[i];
  }

  void add(int64_t n) {
    const std::vector<double> values = random_values(n);
    floats.push_back(std::make_unique<Buffer<float>>(values));
    halves.push_back(std::make_unique<Buffer<BFloat16>>(values));
    doubles.push_back(std::make_unique<Buffer<double>>(values));
    items.push_back({floats.back()->data(), n, DType::F32, nullptr});
    items.push_back({halves.back()->data(), n, DType::BF16, nullptr});
    items.push_back({doubles.back()->data(), n, DType::F64, nullptr});
  }

  std::vector<std::unique_ptr<Buffer<float>>> floats;
  std::vector<std::unique_ptr<Buffer<BFloat16>>> halves;
  std::vector<std::unique_ptr<Buffer<double>>> doubles;
  std::vector<SweepItem> items;
  std::vector<SweepRecord> records;
};

TEST(Sweep, has_the_same_bits_on_every_target_and_for_any_number_of_threads) {
  ManyGradients first;
  const auto count = static_cast<int64_t>(first.items.size());
  every_target().front().kernels.unscale(first.items.data(), count, 0.3f);
  for (const Target& target : every_target()) {
    for (const int threads : kThreadCounts) {
      const WithThreads with(threads);
      ManyGradients again;
      target.kernels.unscale(again.items.data(), count, 0.3f);
      for (size_t i = 0; i < again.records.size(); ++i) {
        EXPECT_TRUE(same_record(again.records[i], first.records[i])) << target.name << ' ' << i;
      }
      for (size_t i = 0; i < again.floats.size(); ++i) {
        EXPECT_TRUE(again.floats[i]->same_bits(*first.floats[i]) && again.floats[i]->intact());
        EXPECT_TRUE(again.halves[i]->same_bits(*first.halves[i]) && again.halves[i]->intact());
        EXPECT_TRUE(again.doubles[i]->same_bits(*first.doubles[i]));
      }
      target.kernels.measure(again.items.data(), count);
      for (size_t i = 0; i < again.records.size(); ++i) {
        EXPECT_TRUE(same_record(again.records[i], first.records[i])) << target.name << ' ' << i;
      }
    }
  }
}

TEST(Sweep, each_record_is_that_of_its_gradient_alone) {
  ManyGradients all;
  const Target& target = every_target().front();
  target.kernels.measure(all.items.data(), static_cast<int64_t>(all.items.size()));
  for (size_t i = 0; i < all.items.size(); ++i) {
    SweepRecord alone = kGarbage;
    SweepItem item = all.items[i];
    item.record = &alone;
    target.kernels.measure(&item, 1);
    EXPECT_TRUE(same_record(alone, all.records[i])) << i;
  }
}

}  // namespace
}  // namespace halfstep::test
