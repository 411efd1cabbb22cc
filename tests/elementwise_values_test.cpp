// What the elementwise functions return: over all exponents of float32, at the edges (Inf, NaN,
// zeros, overflow, subnormals) and in the tails; and the kernels that work in place. On every SIMD
// target, the reference included where it has the same edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "halfstep/core/ops.h"
#include "halfstep/tests/kernel_testing.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = std::numeric_limits<float>::max();

template <class T>
std::vector<double> apply(const KernelTable& kernels, UnaryOp op, const std::vector<double>& x) {
  const Buffer<T> in(x);
  Buffer<T> out(in.size());
  kernels.unary[static_cast<size_t>(op)][index_of(kDTypeOf<T>)](in.data(), out.data(), in.size());
  return out.as_doubles();
}

template <class T>
std::vector<double> derivative(const KernelTable& kernels, UnaryOp op,
                               const std::vector<double>& saved) {
  const Buffer<T> in(saved);
  const Buffer<T> ones(std::vector<double>(saved.size(), 1.0));
  Buffer<T> out(in.size());
  kernels.unary_backward[static_cast<size_t>(op)][index_of(kDTypeOf<T>)](ones.data(), in.data(),
                                                                         out.data(), in.size());
  return out.as_doubles();
}

/// About 200,000 float32 numbers of all exponents, both signs, Inf and NaN among them.
std::vector<double> floats_of_all_exponents() {
  std::vector<double> result = {0.0, -0.0, kInfinity, -kInfinity, kNan, kMax, -kMax};
  for (uint64_t bits = 0; bits <= 0xFFFFFFFF; bits += 20011) {
    result.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return result;
}

constexpr UnaryOp kAllUnary[] = {
#define HS_UNARY(name, ...) UnaryOp::name,
#include "halfstep/core/elementwise.def"
};

TEST(ElementwiseValues, float32_functions_are_accurate_for_all_exponents_on_every_target) {
  const std::vector<double> x = floats_of_all_exponents();
  for (const UnaryOp op : kAllUnary) {
    const std::vector<double> expected = apply<double>(reference_kernels(), op, x);
    for (const Target& target : every_target()) {
      const std::vector<double> y = apply<float>(target.kernels, op, x);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(
            is_close(static_cast<float>(y[i]), expected[i], kFunctionUlps * float_ulp(expected[i])))
            << target.name << " " << kOpInfo[static_cast<size_t>(op)].name << "(" << x[i]
            << ") = " << y[i] << ", not " << expected[i];
      }
    }
  }
}

TEST(ElementwiseValues, targets_with_fused_products_give_the_same_bits) {
  const Target* fused[2] = {};
  for (const Target& target : every_target()) {
    if (target.name == "AVX3") fused[0] = &target;
    if (target.name == "AVX2") fused[1] = &target;
  }
  if (fused[0] == nullptr || fused[1] == nullptr) GTEST_SKIP() << "needs AVX-512 and AVX2";
  std::vector<double> x = floats_of_all_exponents();
  std::erase_if(x, [](double v) { return std::isnan(v); });  // which NaN of two wins is open
  for (const UnaryOp op : kAllUnary) {
    for_each_dtype([&]<class T>(T) {
      const size_t o = static_cast<size_t>(op), dtype = index_of(kDTypeOf<T>);
      const Buffer<T> in(x);
      Buffer<T> y[] = {Buffer<T>(in.size()), Buffer<T>(in.size())};
      Buffer<T> dx[] = {Buffer<T>(in.size()), Buffer<T>(in.size())};
      for (const int i : {0, 1}) {
        fused[i]->kernels.unary[o][dtype](in.data(), y[i].data(), in.size());
        fused[i]->kernels.unary_backward[o][dtype](in.data(), in.data(), dx[i].data(), in.size());
      }
      EXPECT_TRUE(y[0].same_bits(y[1])) << kOpInfo[o].name;
      EXPECT_TRUE(dx[0].same_bits(dx[1])) << kOpInfo[o].name << " backward";
    });
  }
}

TEST(ElementwiseValues, gelu_is_finite_for_every_finite_input) {
  std::vector<double> x = {kMax, -kMax, 1e38, -1e38, 2e19, -2e19, 3e19, 0x1p-149, 0.0};
  for (int i = -5000; i <= 5000; ++i) x.push_back(i / 100.0);
  for (int e = -149; e < 128; ++e) x.insert(x.end(), {std::ldexp(1.5, e), -std::ldexp(1.5, e)});
  for (const UnaryOp op : {UnaryOp::gelu, UnaryOp::gelu_tanh}) {
    const auto expect_finite = [&](const std::vector<double>& y, const std::string& where) {
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(std::isfinite(y[i])) << where << " at " << x[i] << ": " << y[i];
      }
    };
    expect_finite(apply<double>(reference_kernels(), op, x), "reference");
    expect_finite(derivative<double>(reference_kernels(), op, x), "reference backward");
    for (const Target& target : every_target()) {
      expect_finite(apply<float>(target.kernels, op, x), target.name);
      expect_finite(derivative<float>(target.kernels, op, x), target.name + " backward");
      std::vector<double> half_range = x;
      for (double& v : half_range) v = std::clamp(v, -1e38, 1e38);
      expect_finite(apply<BFloat16>(target.kernels, op, half_range), target.name + " bf16");
      expect_finite(derivative<BFloat16>(target.kernels, op, half_range), target.name + " bf16");
    }
  }
}

TEST(ElementwiseValues, gelu_keeps_its_digits_in_the_negative_tail) {
  struct Case {
    UnaryOp op;
    double x, y;  // y: 40-digit arithmetic
  };
  for (const Case& c :
       {Case{UnaryOp::gelu, -4, -1.26684967332e-4}, Case{UnaryOp::gelu, -6, -5.91952587023e-9},
        Case{UnaryOp::gelu, -10, -7.61985302416e-23},
        Case{UnaryOp::gelu_tanh, -4, -7.02459481924e-5},
        Case{UnaryOp::gelu_tanh, -6, -8.43964670076e-11},
        Case{UnaryOp::gelu_tanh, -10, -1.20409234821e-37}}) {
    EXPECT_NEAR(apply<double>(reference_kernels(), c.op, {c.x})[0], c.y, 1e-11 * -c.y);
    for (const Target& target : every_target()) {
      const auto y = static_cast<float>(apply<float>(target.kernels, c.op, {c.x})[0]);
      EXPECT_TRUE(is_close(y, c.y, kFunctionUlps * float_ulp(c.y))) << target.name << ": " << y;
    }
  }
}

/// op(x) must be y exactly, the sign of zero and NaN included, on every target and in the
/// reference.
struct Edge {
  UnaryOp op;
  double x, y;
};

TEST(ElementwiseValues, edges_are_right_on_every_target) {
  const Edge edges[] = {{UnaryOp::exp, -kInfinity, 0.0},
                        {UnaryOp::exp, kInfinity, kInfinity},
                        {UnaryOp::exp, 800.0, kInfinity},
                        {UnaryOp::exp, -800.0, 0.0},
                        {UnaryOp::exp, 0.0, 1.0},
                        {UnaryOp::log, 0.0, -kInfinity},
                        {UnaryOp::log, -0.0, -kInfinity},
                        {UnaryOp::log, kInfinity, kInfinity},
                        {UnaryOp::log, -1.0, kNan},
                        {UnaryOp::log, -0x1p-149, kNan},
                        {UnaryOp::log, -kInfinity, kNan},
                        {UnaryOp::log, 1.0, 0.0},
                        {UnaryOp::tanh, kInfinity, 1.0},
                        {UnaryOp::tanh, -kInfinity, -1.0},
                        {UnaryOp::tanh, -0.0, -0.0},
                        {UnaryOp::tanh, 0x1p-149, 0x1p-149},
                        {UnaryOp::sigmoid, kInfinity, 1.0},
                        {UnaryOp::sigmoid, -kInfinity, 0.0},
                        {UnaryOp::sigmoid, 0.0, 0.5},
                        {UnaryOp::relu, -kInfinity, 0.0},
                        {UnaryOp::relu, kInfinity, kInfinity},
                        {UnaryOp::relu, -0.0, 0.0},
                        {UnaryOp::gelu, kInfinity, kInfinity},
                        {UnaryOp::gelu, -kInfinity, -0.0},
                        {UnaryOp::gelu, 256.0, 256.0},
                        {UnaryOp::gelu, -100.0, -0.0},
                        {UnaryOp::gelu, 0.0, 0.0},
                        {UnaryOp::gelu, -0.0, -0.0},
                        {UnaryOp::gelu, kMax, kMax},
                        {UnaryOp::gelu, -kMax, -0.0},
                        {UnaryOp::gelu_tanh, kInfinity, kInfinity},
                        {UnaryOp::gelu_tanh, -kInfinity, -0.0},
                        {UnaryOp::gelu_tanh, 256.0, 256.0},
                        {UnaryOp::gelu_tanh, -100.0, -0.0},
                        {UnaryOp::gelu_tanh, 0.0, 0.0},
                        {UnaryOp::gelu_tanh, kMax, kMax}};
  const auto expect_edge = [](const Edge& c, double y, const std::string& where) {
    const std::string_view name = kOpInfo[static_cast<size_t>(c.op)].name;
    if (std::isnan(c.y)) {
      EXPECT_TRUE(std::isnan(y)) << where << " " << name << "(" << c.x << ") = " << y;
    } else {
      EXPECT_EQ(y, c.y) << where << " " << name << "(" << c.x << ")";
      EXPECT_EQ(std::signbit(y), std::signbit(c.y)) << where << " " << name << "(" << c.x << ")";
    }
  };
  for (const Edge& c : edges) {
    expect_edge(c, apply<double>(reference_kernels(), c.op, {c.x})[0], "reference");
    for (const Target& target : every_target()) {
      expect_edge(c, apply<float>(target.kernels, c.op, {c.x})[0], target.name);
    }
  }
}

TEST(ElementwiseValues, nan_comes_out_of_every_function_and_gradient) {
  for (const UnaryOp op : kAllUnary) {
    for (const Target& target : every_target()) {
      EXPECT_TRUE(std::isnan(apply<float>(target.kernels, op, {kNan})[0])) << target.name;
      EXPECT_TRUE(std::isnan(apply<Half>(target.kernels, op, {kNan})[0])) << target.name;
      if (op == UnaryOp::relu) continue;  // passes dy where y is not <= 0, as PyTorch
      EXPECT_TRUE(std::isnan(derivative<float>(target.kernels, op, {kNan})[0])) << target.name;
    }
  }
}

TEST(ElementwiseValues, scale_rounds_the_float64_product_once_on_every_target) {
  // Factors that leave bits far below the half's last one, and that reach subnormals and overflow.
  for (const double factor : {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-8 + 0x1p-40, 0.1, 1e-7, 3e-39, 1e5,
                              0x1.8p-14 * (1 + 0x1p-35), 0x1p-126, 1e38, -1e-300, 0.0}) {
    for (const Target& target : every_target()) {
      for_each_dtype([&]<class T>(T) {
        std::vector<double> values;
        for (int64_t bits = 0; bits < 65536; bits += 7) {
          const auto half = static_cast<uint16_t>(bits);
          const float x = std::is_same_v<T, Half> ? f16_bits_to_f32(half) : bf16_bits_to_f32(half);
          values.push_back(std::is_same_v<T, float> ? x * 1.1f : x);
        }
        Buffer<T> x(values);
        const std::vector<double> before = x.as_doubles();
        target.kernels.scale[index_of(kDTypeOf<T>)](x.data(), factor, x.size());
        for (size_t i = 0; i < before.size(); ++i) {
          ASSERT_TRUE(is_close(x[i], before[i] * factor, kExact))
              << target.name << " " << name_of(kDTypeOf<T>) << ": " << before[i] << " * " << factor;
        }
        ASSERT_TRUE(x.intact());
      });
    }
  }
}

TEST(ElementwiseValues, fill_and_clamp_round_once_and_keep_nan) {
  for (const Target& target : every_target()) {
    for_each_dtype([&]<class T>(T) {
      const size_t dtype = index_of(kDTypeOf<T>);
      for (const int64_t n : {0, 1, 5, 33, 70}) {
        Buffer<T> x(n);
        target.kernels.fill[dtype](x.data(), 1025.49995, n);
        for (const double v : x.as_doubles()) {
          ASSERT_EQ(v, convert<double>(convert<T>(1025.49995)));
        }
        target.kernels.scale[dtype](x.data(), 0.5, n);
        ASSERT_TRUE(x.intact());
      }
      Buffer<T> x(std::vector<double>{-3, 3, -kInfinity, kInfinity, kNan, 0.5, -0.0});
      target.kernels.clamp[dtype](x.data(), 2.5, x.size());
      const std::vector<double> y = x.as_doubles();
      EXPECT_EQ((std::vector<double>{y[0], y[1], y[2], y[3], y[5], y[6]}),
                (std::vector<double>{-2.5, 2.5, -2.5, 2.5, 0.5, 0.0}));
      EXPECT_TRUE(std::isnan(y[4])) << target.name;
    });
  }
}

}  // namespace
}  // namespace halfstep::test
