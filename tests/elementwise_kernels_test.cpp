// The elementwise kernels on every SIMD target, for all dtypes, ops, layouts and lengths: their
// results against the float64 reference kernels on the same rounded inputs, and their manners (stay
// within n elements, same bits in body and tail, in place and for any number of threads). A new row
// of core/elementwise.def is tested without touching this file.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/core/ops.h"
#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep::test {
namespace {

struct OpCase {
  std::string_view name;
  BackwardNeeds needs;
  double low, high;  // test range
};

constexpr OpCase kUnaryCases[] = {
#define HS_UNARY(name, policy, needs, low, high) {#name, BackwardNeeds::needs, low, high},
#include "halfstep/core/elementwise.def"
};
constexpr OpCase kBinaryCases[] = {
#define HS_BINARY(name, policy, needs, low, high) {#name, BackwardNeeds::needs, low, high},
#include "halfstep/core/elementwise.def"
};

/// Random numbers of the op's test range.
template <class T>
std::vector<T> random_values(const OpCase& op, int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(op.low, op.high);
  std::vector<T> result;
  for (int64_t i = 0; i < n; ++i) result.push_back(convert<T>(uniform(random)));
  return result;
}

template <class T>
std::string where(const Target& target, const OpCase& op, int64_t n) {
  return target.name + " " + std::string(op.name) + " " + std::string(name_of(kDTypeOf<T>)) +
         ", n = " + std::to_string(n);
}

template <class T>
void expect_close(const Buffer<T>& got, const Buffer<double>& expected, double least_scale,
                  const std::string& message) {
  for (size_t i = 0; i < static_cast<size_t>(got.size()); ++i) {
    const double scale = std::max(std::fabs(expected[i]), least_scale);
    ASSERT_TRUE(is_close(got[i], expected[i], kFunctionUlps * float_ulp(scale)))
        << message << ", element " << i << ": " << convert<double>(got[i]) << " for "
        << expected[i];
  }
}

/// Calls fn(target, element of the dtype) for every target and dtype.
template <class Fn>
void for_each_target_and_dtype(Fn fn) {
  for (const Target& target : every_target()) {
    for_each_dtype([&](auto element) { fn(target, element); });
  }
}

TEST(ElementwiseKernels, unary_ops_and_gradients_match_the_reference) {
  for_each_target_and_dtype([]<class T>(const Target& target, T) {
    for (size_t op = 0; op < kUnaryOpCount; ++op) {
      const OpCase& c = kUnaryCases[op];
      for (const int64_t n : {1, 7, 64, 1027}) {
        const Buffer<T> x(random_values<T>(c, n, 1)), dy(random_values<T>({"", {}, -2, 2}, n, 2));
        Buffer<T> y(n), dx(n);
        target.kernels.unary[op][index_of(kDTypeOf<T>)](x.data(), y.data(), n);
        const Buffer<T>& saved = c.needs == BackwardNeeds::kInput ? x : y;
        target.kernels.unary_backward[op][index_of(kDTypeOf<T>)](dy.data(), saved.data(), dx.data(),
                                                                 n);
        const Buffer<double> x64(x.as_doubles()), dy64(dy.as_doubles());
        const Buffer<double> saved64(saved.as_doubles());
        Buffer<double> y64(n), dx64(n);
        reference_kernels().unary[op][index_of(DType::F64)](x64.data(), y64.data(), n);
        reference_kernels().unary_backward[op][index_of(DType::F64)](dy64.data(), saved64.data(),
                                                                     dx64.data(), n);
        expect_close(y, y64, 0.0, where<T>(target, c, n));
        // GELU's derivative is zero near -0.75, as a difference of terms of about 0.25; |dy| <= 2.
        const bool cancels = c.name.starts_with("gelu");
        expect_close(dx, dx64, cancels ? 0.5 : 0.0, where<T>(target, c, n) + ", backward");
      }
    }
  });
}

TEST(ElementwiseKernels, binary_ops_and_gradients_are_exact_for_every_layout) {
  const Spread spreads[] = {Spread::kFull, Spread::kRow, Spread::kScalar};
  const int64_t shapes[][2] = {{1, 1}, {1, 37}, {5, 1}, {3, 35}, {7, 16}};
  for_each_target_and_dtype([&]<class T>(const Target& target, T) {
    for (size_t op = 0; op < kBinaryOpCount; ++op) {
      const OpCase& c = kBinaryCases[op];
      for (const auto& [rows, cols] : shapes) {
        for (const Spread lhs : spreads) {
          for (const Spread rhs : spreads) {
            const int64_t n = rows * cols;
            const auto size = [n, columns = cols](Spread spread) {
              return spread == Spread::kFull ? n : spread == Spread::kRow ? columns : 1;
            };
            const Buffer<T> a(random_values<T>(c, size(lhs), 3));
            const Buffer<T> b(random_values<T>(c, size(rhs), 4));
            const Buffer<T> dy(random_values<T>(c, n, 5));
            const Buffer<double> a64(a.as_doubles()), b64(b.as_doubles()), dy64(dy.as_doubles());
            const BinaryLayout layout{lhs, rhs, rows, cols};
            const bool saves = c.needs != BackwardNeeds::kNothing;
            const auto compare = [&](const auto& table, bool backward, const char* which) {
              Buffer<T> y(n);
              Buffer<double> y64(n);
              const auto kernel = table(target.kernels)[op][index_of(kDTypeOf<T>)];
              const auto reference = table(reference_kernels())[op][index_of(DType::F64)];
              if constexpr (std::is_same_v<decltype(kernel), const BinaryFn>) {
                kernel(a.data(), b.data(), y.data(), layout);
                reference(a64.data(), b64.data(), y64.data(), layout);
              } else {
                kernel(dy.data(), saves ? a.data() : nullptr, saves ? b.data() : nullptr, y.data(),
                       layout);
                reference(dy64.data(), saves ? a64.data() : nullptr, saves ? b64.data() : nullptr,
                          y64.data(), layout);
              }
              for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
                ASSERT_TRUE(is_close(y[i], y64[i], kExact))
                    << where<T>(target, c, n) << which << backward << ", element " << i;
              }
              ASSERT_TRUE(y.intact());
            };
            compare(
                [](const KernelTable& t) -> auto& { return t.binary; }, false, " forward ");
            compare(
                [](const KernelTable& t) -> auto& { return t.binary_backward_lhs; }, true, " lhs ");
            compare(
                [](const KernelTable& t) -> auto& { return t.binary_backward_rhs; }, true, " rhs ");
          }
        }
      }
    }
  });
}

TEST(ElementwiseKernels, body_and_tail_give_the_same_bits_and_stay_within_n) {
  for_each_target_and_dtype([]<class T>(const Target& target, T) {
    const size_t dtype = index_of(kDTypeOf<T>);
    for (int64_t n = 0; n <= 35; ++n) {  // two vectors of sixteen lanes, and odd ones
      for (size_t op = 0; op < kUnaryOpCount; ++op) {
        const Buffer<T> x(random_values<T>(kUnaryCases[op], n, 6));
        Buffer<T> y(n), single(n), dx(n), dx_single(n);
        const UnaryFn forward = target.kernels.unary[op][dtype];
        const UnaryBackwardFn backward = target.kernels.unary_backward[op][dtype];
        forward(x.data(), y.data(), n);
        backward(x.data(), x.data(), dx.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          forward(x.data() + i, single.data() + i, 1);
          backward(x.data() + i, x.data() + i, dx_single.data() + i, 1);
        }
        ASSERT_TRUE(y.same_bits(single)) << where<T>(target, kUnaryCases[op], n);
        ASSERT_TRUE(dx.same_bits(dx_single)) << where<T>(target, kUnaryCases[op], n);
        ASSERT_TRUE(x.intact() && y.intact() && dx.intact());
      }
    }
  });
}

TEST(ElementwiseKernels, output_may_be_an_input) {
  const int64_t n = 45;
  const BinaryLayout layout{Spread::kFull, Spread::kFull, 1, n};
  for_each_target_and_dtype([&]<class T>(const Target& target, T) {
    const size_t dtype = index_of(kDTypeOf<T>);
    for (size_t op = 0; op < kUnaryOpCount; ++op) {
      Buffer<T> x(random_values<T>(kUnaryCases[op], n, 7));
      Buffer<T> y(n);
      target.kernels.unary[op][dtype](x.data(), y.data(), n);
      target.kernels.unary[op][dtype](x.data(), x.data(), n);
      EXPECT_TRUE(x.same_bits(y)) << where<T>(target, kUnaryCases[op], n);
    }
    for (size_t op = 0; op < kBinaryOpCount; ++op) {
      Buffer<T> a(random_values<T>(kBinaryCases[op], n, 8));
      const Buffer<T> b(random_values<T>(kBinaryCases[op], n, 9));
      Buffer<T> y(n);
      target.kernels.binary[op][dtype](a.data(), b.data(), y.data(), layout);
      target.kernels.binary[op][dtype](a.data(), b.data(), a.data(), layout);
      EXPECT_TRUE(a.same_bits(y)) << where<T>(target, kBinaryCases[op], n);
    }
  });
}

TEST(ElementwiseKernels, any_number_of_threads_gives_the_same_bits) {
  const int64_t rows = 1001, cols = 103;  // several pieces, none of a whole number of vectors
  const KernelTable& kernels = every_target().front().kernels;
  const int threads_before = num_threads();
  for_each_dtype([&]<class T>(T) {
    const size_t dtype = index_of(kDTypeOf<T>);
    const Buffer<T> x(random_values<T>({"", {}, -3, 3}, rows * cols, 10));
    const Buffer<T> row(random_values<T>({"", {}, -3, 3}, cols, 11));
    Buffer<T> gelu[] = {Buffer<T>(x.size()), Buffer<T>(x.size())};
    Buffer<T> product[] = {Buffer<T>(x.size()), Buffer<T>(x.size())};
    Buffer<T> sum[] = {Buffer<T>(x.size()), Buffer<T>(x.size())};
    for (const int i : {0, 1}) {
      set_num_threads(i == 0 ? 1 : 3);
      kernels.unary[static_cast<size_t>(UnaryOp::gelu)][dtype](x.data(), gelu[i].data(), x.size());
      kernels.binary[static_cast<size_t>(BinaryOp::mul)][dtype](
          x.data(), row.data(), product[i].data(), {Spread::kFull, Spread::kRow, rows, cols});
      kernels.binary[static_cast<size_t>(BinaryOp::add)][dtype](
          x.data(), row.data(), sum[i].data(), {Spread::kFull, Spread::kScalar, rows, cols});
    }
    EXPECT_TRUE(gelu[0].same_bits(gelu[1]));
    EXPECT_TRUE(product[0].same_bits(product[1]));
    EXPECT_TRUE(sum[0].same_bits(sum[1]));
  });
  set_num_threads(threads_before);
}

}  // namespace
}  // namespace halfstep::test
