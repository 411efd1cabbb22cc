// Matrix products on every SIMD target against the reference loop on the same rounded inputs; the
// same bits for any target and number of threads; and what a BLAS is known to get wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "halfstep/backends/cpu/blas.h"
#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"
#include "halfstep/tests/with_threads.h"

namespace halfstep::test {
namespace {

std::vector<double> random_values(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = uniform(random);
  return values;
}

std::vector<double> absolute(std::vector<double> values) {
  for (double& v : values) v = std::fabs(v);
  return values;
}

/// Operands of one product, as T and as the doubles that those are.
template <class T>
struct Product {
  Product(int64_t m_, int64_t n_, int64_t k_, bool transpose_a_, bool transpose_b_, bool has_bias_)
      : m(m_),
        n(n_),
        k(k_),
        transpose_a(transpose_a_),
        transpose_b(transpose_b_),
        has_bias(has_bias_),
        a(random_values(m * k, 1)),
        b(random_values(k * n, 2)),
        bias(random_values(n, 3)) {}

  GemmArgs args(const void* a_data, const void* b_data, const void* bias_data, void* c) const {
    return {transpose_a, transpose_b, m, n, k, a_data, b_data, has_bias ? bias_data : nullptr, c};
  }
  void run(const Target& target, T* c) const {
    target.kernels.gemm[index_of(kDTypeOf<T>)](args(a.data(), b.data(), bias.data(), c));
  }
  static std::vector<double> reference(const Product& p, const std::vector<double>& a,
                                       const std::vector<double>& b,
                                       const std::vector<double>& bias) {
    std::vector<double> c(static_cast<size_t>(p.m * p.n));
    reference_kernels().gemm[index_of(DType::F64)](
        p.args(a.data(), b.data(), bias.data(), c.data()));
    return c;
  }
  std::vector<double> expected() const {
    return reference(*this, a.as_doubles(), b.as_doubles(), bias.as_doubles());
  }
  /// sum of |a| |b| (+ |bias|): what rounding errors are relative to.
  std::vector<double> magnitudes() const {
    return reference(*this, absolute(a.as_doubles()), absolute(b.as_doubles()),
                     absolute(bias.as_doubles()));
  }

  int64_t m, n, k;
  bool transpose_a, transpose_b, has_bias;
  Buffer<T> a, b, bias;
};

template <class T>
void expect_as_reference(const Target& target, const Product<T>& product) {
  Buffer<T> c(product.m * product.n);
  product.run(target, c.data());
  const std::vector<double> expected = product.expected(), magnitudes = product.magnitudes();
  // A float32 sum of k products in any order, and the bias: k + 1 roundings of 2^-24 (Higham,
  // Accuracy and Stability of Numerical Algorithms, 3.5).
  const double relative = static_cast<double>(product.k + 1) * 0x1p-24;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(is_close(c[i], expected[i], relative * magnitudes[i]))
        << target.name << " [" << product.m << ", " << product.k << "] x [" << product.k << ", "
        << product.n << "] transposed " << product.transpose_a << product.transpose_b << " at " << i
        << ": " << convert<double>(c[i]) << ", not " << expected[i];
  }
  EXPECT_TRUE(c.intact());
}

template <class T>
void expect_all_forms_as_reference(const Target& target, int64_t m, int64_t n, int64_t k) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool has_bias : {false, true}) {
        expect_as_reference(target, Product<T>(m, n, k, transpose_a, transpose_b, has_bias));
      }
    }
  }
}

TEST(Gemm, agrees_with_the_reference_on_every_target) {
  const int64_t sizes[] = {1, 2, 3, 7, 8, 16, 17, 33};
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t m : sizes) {
        for (const int64_t n : sizes) expect_all_forms_as_reference<T>(target, m, n, (m + n) % 34);
      }
      expect_all_forms_as_reference<T>(target, 1, 1, 1000);
      expect_all_forms_as_reference<T>(target, 5, 130, 1);
    });
  }
}

TEST(Gemm, big_products_agree_with_the_reference) {
  const Target& target = every_target().front();
  for_each_dtype([&]<class T>(T) {
    for (const bool transpose :
         {false, true}) {  // several tiles down and across; several parts of k
      expect_as_reference(target, Product<T>(515, 261, 20, transpose, false, true));
      expect_as_reference(target, Product<T>(515, 261, 20, false, transpose, false));
      expect_as_reference(target, Product<T>(3, 700, 1100, transpose, true, true));
      expect_as_reference(target, Product<T>(3, 700, 1100, true, transpose, false));
    }
  });
  expect_as_reference(target, Product<Half>(513, 257, 520, true, false, true));  // both
}

TEST(Gemm, has_the_same_bits_on_every_target_and_for_any_number_of_threads) {
  for_each_dtype([&]<class T>(T) {
    for (const bool transpose : {false, true}) {
      const Product<T> product(520, 520, 600, transpose, !transpose, true);
      Buffer<T> first(product.m * product.n);
      product.run(every_target().front(), first.data());
      for (const Target& target : every_target()) {
        for (const int threads : kThreadCounts) {
          const WithThreads with(threads);
          Buffer<T> c(product.m * product.n);
          product.run(target, c.data());
          EXPECT_TRUE(c.same_bits(first)) << target.name << ' ' << threads << " threads";
        }
      }
    }
  });
}

TEST(Gemm, an_empty_sum_is_the_bias_or_zero) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const bool has_bias : {false, true}) {
        const Product<T> product(3, 5, 0, false, true, has_bias);
        Buffer<T> c(int64_t{15});
        product.run(target, c.data());
        for (size_t i = 0; i < 15; ++i) {
          const double bias = has_bias ? convert<double>(product.bias[i % 5]) : 0.0;
          EXPECT_EQ(convert<double>(c[i]), bias);
        }
      }
    });
  }
}

TEST(Gemm, no_rows_or_no_columns_write_nothing) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      Buffer<T> c(int64_t{4}), before(int64_t{4});
      Product<T>(0, 4, 3, false, false, true).run(target, c.data());
      Product<T>(4, 0, 3, false, false, false).run(target, c.data());
      EXPECT_TRUE(c.same_bits(before));
    });
  }
}

TEST(Gemm, nan_and_inf_of_the_operands_are_never_hidden) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t size : {1, 5, 16, 150}) {  // one tile, and several
        for (const double value : {nan, inf}) {
          Product<T> product(size, size, size, false, true, false);
          for (size_t i = 0; i < static_cast<size_t>(size * size); ++i) product.b[i] = T{};
          product.a[0] = convert<T>(value);  // its row meets zeros only
          Buffer<T> c(size * size);
          product.run(target, c.data());
          for (size_t i = 0; i < static_cast<size_t>(size * size); ++i) {
            const bool poisoned = i < static_cast<size_t>(size);
            ASSERT_EQ(std::isnan(convert<double>(c[i])), poisoned) << size << " at " << i;
          }
        }
      }
    });
  }
}

TEST(Gemm, old_contents_of_the_output_are_not_read) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      for (const int64_t size : {1, 7, 40, 200}) {
        const Product<T> product(size, size, size, false, false, true);
        Buffer<T> c(std::vector<double>(static_cast<size_t>(size * size), std::nan("")));
        product.run(target, c.data());
        for (const double v : c.as_doubles()) ASSERT_TRUE(std::isfinite(v));
      }
    });
  }
}

TEST(Gemm, halves_are_rounded_once_after_the_bias) {
  for (const Target& target : every_target()) {
    const Buffer<Half> a(std::vector<double>{2048, 1}), b(std::vector<double>{1, 1}),
        bias(std::vector<double>{1});
    Buffer<Half> c(int64_t{1});
    target.kernels.gemm[1]({false, false, 1, 1, 2, a.data(), b.data(), bias.data(), c.data()});
    EXPECT_EQ(convert<double>(c[0]), 2050.0);  // 2049 would have become 2048
    const Buffer<Half> large(std::vector<double>{300});
    target.kernels.gemm[1]({false, false, 1, 1, 1, large.data(), large.data(), nullptr, c.data()});
    EXPECT_TRUE(std::isinf(convert<double>(c[0])));
  }
}

TEST(Gemm, many_threads_at_once_get_the_same_bits) {
  const Product<float> product(128, 512, 1152, false, false, false);
  Buffer<float> alone(product.m * product.n);
  product.run(every_target().front(), alone.data());
  std::vector<int> wrong(16, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      Buffer<float> c(product.m * product.n);
      for (int i = 0; i < 30; ++i) {
        product.run(every_target().front(), c.data());
        count += c.same_bits(alone) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(16, 0));
}

TEST(Gemm, works_in_a_child_of_fork_and_in_its_parent) {
#ifdef HALFSTEP_TSAN
  GTEST_SKIP() << "ThreadSanitizer ends a child of fork that starts threads";
#endif
  const WithThreads with(2);
  const Target& target = every_target().front();
  const Product<float> product(256, 256, 256, false, false, true);
  const Product<Half> halves(600, 520, 30, false, false, true);
  Buffer<float> before(int64_t{256} * 256), after(int64_t{256} * 256);
  Buffer<Half> before_halves(int64_t{600} * 520), after_halves(int64_t{600} * 520);
  product.run(target, before.data());
  halves.run(target, before_halves.data());
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a hang ends as a failure
    product.run(target, after.data());
    halves.run(target, after_halves.data());
    _exit(after.same_bits(before) && after_halves.same_bits(before_halves) ? 0 : 1);
  }
  product.run(target, after.data());
  halves.run(target, after_halves.data());
  EXPECT_TRUE(after.same_bits(before) && after_halves.same_bits(before_halves));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Gemm, a_dimension_beyond_the_blas_is_an_error_before_anything_is_read) {
  const int64_t too_many = int64_t{1} << 31;
  for (const Target& target : every_target()) {
    for (const size_t dtype : {size_t{0}, size_t{1}, size_t{2}}) {
      EXPECT_THROW(target.kernels.gemm[dtype](
                       {false, false, 1, 1, too_many, nullptr, nullptr, nullptr, nullptr}),
                   ArgumentError);
    }
  }
}

TEST(Blas, names_its_core) { EXPECT_FALSE(blas_core_name().empty()); }

TEST(Blas, advice_is_given_for_cores_without_avx_on_machines_with_avx2_only) {
  for (const char* slow : {"Prescott", "prescott", "Core2", "Nehalem", "Atom", "Opteron_SSE3"}) {
    EXPECT_NE(slow_blas_advice(slow, true).find("OPENBLAS_CORETYPE"), std::string::npos) << slow;
    EXPECT_EQ(slow_blas_advice(slow, false), "");
  }
  for (const char* fast : {"Haswell", "SkylakeX", "Cooperlake", "Zen", "Sandybridge", ""}) {
    EXPECT_EQ(slow_blas_advice(fast, true), "") << fast;
  }
}

}  // namespace
}  // namespace halfstep::test
