// Conversions between float32 and the halves on every SIMD target, against references that share no
// code with ours: a search in the table of all halves, the F16C instruction, and vectors worked out
// by hand.
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "halfstep/core/dtype.h"
#include "halfstep/tests/kernel_testing.h"

namespace halfstep::test {
namespace {

/// float32 numbers from a half's bits by arithmetic on sign, exponent and fraction.
double decode(uint16_t bits, int fraction_bits, int bias) {
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}
double decode(Half h) { return decode(h.bits, 10, 15); }
double decode(BFloat16 h) { return decode(h.bits, 7, 127); }

template <class T>
constexpr uint16_t kInfBits = std::is_same_v<T, Half> ? 0x7C00 : 0x7F80;

template <class T>
bool is_nan(T half) {
  return (half.bits & 0x7FFF) > kInfBits<T>;
}

/// Nearest half of a number by search among all of them; a tie goes to the even one. decode() gives
/// Inf's bits the value 2^16 (2^128) that the format would have next, so overflow is a case of
/// this.
template <class T>
uint16_t nearest(float x) {
  const double magnitude = std::fabs(static_cast<double>(x));
  uint16_t low = 0, high = kInfBits<T>;
  if (magnitude >= decode(T{high})) {
    low = high;
  } else {
    while (high - low > 1) {
      const auto middle = static_cast<uint16_t>((low + high) / 2);
      (decode(T{middle}) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - decode(T{low}), above = decode(T{high}) - magnitude;
    if (above < below || (above == below && low % 2 == 1)) low = high;
  }
  return static_cast<uint16_t>(low | (std::signbit(x) ? 0x8000 : 0));
}

/// Every exponent and sign with fractions around all rounding points of both formats, and random
/// ones; NaN left out.
std::vector<float> sweep_of_exponents() {
  std::vector<float> result;
  std::mt19937 random(1);
  for (uint32_t sign_exponent = 0; sign_exponent < 512; ++sign_exponent) {
    std::vector<uint32_t> fractions = {0, 1, 0x7FFFFF, 0x7FFFFE};
    for (int bit = 0; bit < 23; ++bit) {
      for (const uint32_t offset : {0u, 1u, 0xFFFFFFFFu}) {
        fractions.push_back((1u << bit) + offset);
        fractions.push_back((3u << bit) + offset);
      }
    }
    for (int i = 0; i < 64; ++i) fractions.push_back(static_cast<uint32_t>(random()));
    for (const uint32_t fraction : fractions) {
      const float x = std::bit_cast<float>(sign_exponent << 23 | (fraction & 0x7FFFFF));
      if (!std::isnan(x)) result.push_back(x);
    }
  }
  return result;
}

template <class From, class To>
UnaryFn cast_of(const Target& target) {
  return target.kernels.cast[index_of(kDTypeOf<From>)][index_of(kDTypeOf<To>)];
}

template <class To, class From>
std::vector<To> cast(const Target& target, const std::vector<From>& x) {
  std::vector<To> y(x.size());
  cast_of<From, To>(target)(x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}

template <class T>
std::vector<T> all_halves() {
  std::vector<T> result(65536);
  for (size_t i = 0; i < result.size(); ++i) result[i].bits = static_cast<uint16_t>(i);
  return result;
}

template <class T>
class Conversions : public ::testing::Test {};
using Halves = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Conversions, Halves);

TYPED_TEST(Conversions, narrowing_finds_the_nearest_half_on_every_target) {
  const std::vector<float> x = sweep_of_exponents();
  for (const Target& target : every_target()) {
    const std::vector<TypeParam> y = cast<TypeParam>(target, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, nearest<TypeParam>(x[i])) << target.name << " at " << x[i];
    }
  }
}

TYPED_TEST(Conversions, widening_is_exact_on_every_target) {
  const std::vector<TypeParam> halves = all_halves<TypeParam>();
  for (const Target& target : every_target()) {
    const std::vector<float> wide = cast<float>(target, halves);
    for (size_t i = 0; i < halves.size(); ++i) {
      if (is_nan(halves[i])) {
        ASSERT_TRUE(std::isnan(wide[i]));
        ASSERT_EQ(std::signbit(wide[i]), halves[i].bits >= 0x8000);
      } else if ((halves[i].bits & 0x7FFF) == kInfBits<TypeParam>) {
        ASSERT_TRUE(std::isinf(wide[i]));
      } else {
        ASSERT_EQ(wide[i], decode(halves[i])) << target.name;
        ASSERT_EQ(std::signbit(wide[i]), halves[i].bits >= 0x8000);
      }
    }
  }
}

// The scalar functions by themselves, on which the reference kernels and the other tests stand.

template <class T>
uint16_t narrow(float x) {
  return std::is_same_v<T, Half> ? f32_to_f16_bits(x) : f32_to_bf16_bits(x);
}

TYPED_TEST(Conversions, the_scalar_functions_are_right_for_every_half) {
  constexpr bool kIsHalf = std::is_same_v<TypeParam, Half>;
  for (const TypeParam half : all_halves<TypeParam>()) {
    const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16;
    const uint32_t payload = half.bits & (kIsHalf ? 0x3FFu : 0x7Fu);
    const float wide = kIsHalf ? f16_bits_to_f32(half.bits) : bf16_bits_to_f32(half.bits);
    const uint32_t right =
        is_nan(half) ? sign | (kIsHalf ? 0x7FC00000u | payload << 13 : 0x7F800000u | payload << 16)
        : (half.bits & 0x7FFF) == kInfBits<TypeParam>
            ? sign | 0x7F800000u
            : std::bit_cast<uint32_t>(static_cast<float>(decode(half)));
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), right) << half.bits;
    ASSERT_EQ(std::bit_cast<uint32_t>(convert<float>(half)), right);
    ASSERT_EQ(convert<double>(half) == decode(half), !is_nan(half) && std::isfinite(wide));
    const uint16_t quiet = is_nan(half) ? (kIsHalf ? 0x200 : 0x40) : 0;
    ASSERT_EQ(narrow<TypeParam>(wide), half.bits | quiet);
    ASSERT_EQ(convert<TypeParam>(static_cast<double>(wide)).bits, half.bits | quiet);
  }
}

TYPED_TEST(Conversions, the_scalar_functions_find_the_nearest_half) {
  for (const float x : sweep_of_exponents()) {
    ASSERT_EQ(narrow<TypeParam>(x), nearest<TypeParam>(x)) << x;
    ASSERT_EQ(convert<TypeParam>(x).bits, nearest<TypeParam>(x)) << x;
  }
}

TYPED_TEST(Conversions, the_scalar_functions_round_a_double_once) {
  for (const TypeParam half : all_halves<TypeParam>()) {
    const TypeParam next{static_cast<uint16_t>(half.bits + 1)};
    if ((next.bits & 0x7FFF) >= kInfBits<TypeParam>) continue;
    if (half.bits == 0x7FFF || half.bits == 0xFFFF) continue;
    // The tie between two neighbours, and the doubles beside it, which no float tells from it.
    const double tie = (decode(half) + decode(next)) / 2;
    const TypeParam even = half.bits % 2 == 0 ? half : next;
    const double far = std::fabs(decode(next)) > std::fabs(decode(half)) ? HUGE_VAL : 0.0;
    ASSERT_EQ(convert<TypeParam>(tie).bits, even.bits) << tie;
    ASSERT_EQ(convert<TypeParam>(std::nextafter(tie, std::copysign(far, tie))).bits, next.bits);
    ASSERT_EQ(convert<TypeParam>(std::nextafter(tie, 0.0)).bits, half.bits) << tie;
  }
}

TYPED_TEST(Conversions, all_65536_halves_round_trip_on_every_target) {
  const std::vector<TypeParam> halves = all_halves<TypeParam>();
  for (const Target& target : every_target()) {
    const auto back = cast<TypeParam>(target, cast<float>(target, halves));
    for (size_t i = 0; i < halves.size(); ++i) {
      const uint16_t quiet = is_nan(halves[i]) ? (kInfBits<TypeParam> == 0x7C00 ? 0x200 : 0x40) : 0;
      ASSERT_EQ(back[i].bits, halves[i].bits | quiet) << target.name;
    }
  }
}

TYPED_TEST(Conversions, nan_stays_nan_with_sign_and_payload_on_every_target) {
  std::vector<float> nans;
  for (const uint32_t payload : {1u, 0x1FFFu, 0x2000u, 0x8C22u, 0x2AAAAAu, 0x400000u, 0x7FFFFFu}) {
    nans.push_back(std::bit_cast<float>(0x7F800000u | payload));
    nans.push_back(std::bit_cast<float>(0xFF800000u | payload));
  }
  for (const Target& target : every_target()) {
    for (size_t n = 1; n <= nans.size(); ++n) {  // body and tail
      const std::vector<float> x(nans.begin(), nans.begin() + static_cast<std::ptrdiff_t>(n));
      const auto y = cast<TypeParam>(target, x);
      for (size_t i = 0; i < n; ++i) {
        const uint32_t u = std::bit_cast<uint32_t>(x[i]);
        const uint32_t right = std::is_same_v<TypeParam, Half>
                                   ? (u >> 16 & 0x8000u) | 0x7E00u | (u >> 13 & 0x3FFu)
                                   : u >> 16 | 0x0040u;
        ASSERT_EQ(y[i].bits, right) << target.name;
      }
    }
  }
}

TYPED_TEST(Conversions, body_and_tail_give_the_same_bits_for_all_lengths) {
  const std::vector<float> sweep = sweep_of_exponents();
  for (const Target& target : every_target()) {
    for (int64_t n = 1; n <= 67; ++n) {
      const std::vector<float> values(sweep.end() - 5000 - n, sweep.end() - 5000);
      const Buffer<float> x(values);
      Buffer<TypeParam> y(n), single(n);
      const UnaryFn narrow = cast_of<float, TypeParam>(target);
      narrow(x.data(), y.data(), n);
      for (int64_t i = 0; i < n; ++i) narrow(x.data() + i, single.data() + i, 1);
      ASSERT_TRUE(y.same_bits(single)) << target.name << ", n = " << n;
      ASSERT_TRUE(y.intact() && single.intact());
    }
  }
}

TYPED_TEST(Conversions, halves_of_different_kinds_convert_through_float32) {
  using Other = std::conditional_t<std::is_same_v<TypeParam, Half>, BFloat16, Half>;
  const std::vector<Other> halves = all_halves<Other>();
  for (const Target& target : every_target()) {
    const auto direct = cast<TypeParam>(target, halves);
    const auto by_float = cast<TypeParam>(target, cast<float>(target, halves));
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(direct[i].bits, by_float[i].bits);
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) uint16_t hardware_half(float x) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
}

TEST(ConversionsF16, software_and_hardware_agree) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no F16C";  // comes with every AVX2
  std::vector<float> x = sweep_of_exponents();
  for (const uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFF8C22u, 0x7FFFFFFFu}) {
    x.push_back(std::bit_cast<float>(nan));
  }
  for (const Target& target : every_target()) {
    const auto y = cast<Half>(target, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, hardware_half(x[i])) << target.name << " at " << x[i];
      ASSERT_EQ(f32_to_f16_bits(x[i]), hardware_half(x[i])) << "scalar at " << x[i];
    }
  }
}
#endif

struct BitCase {
  uint32_t f32;
  uint16_t half;
};

template <class T, size_t N>
void expect_bits(const BitCase (&cases)[N]) {
  for (const Target& target : every_target()) {
    for (const BitCase& c : cases) {
      const T y = cast<T, float>(target, {std::bit_cast<float>(c.f32)})[0];
      EXPECT_EQ(y.bits, c.half) << target.name << ": " << std::hex << c.f32;
    }
  }
}

TEST(ConversionsBF16, vectors_worked_out_by_hand_hold_on_every_target) {
  expect_bits<BFloat16>({{0x3E89CCD5, 0x3E8A},
                         {0x3F808000, 0x3F80},
                         {0x3F818000, 0x3F82},
                         {0x7F7F7FFF, 0x7F7F},
                         {0x7F7F8000, 0x7F80},
                         {0x7F7FFFFF, 0x7F80},
                         {0x7F800001, 0x7FC0},
                         {0xFF800001, 0xFFC0},
                         {0x7FFF8C22, 0x7FFF},
                         {0x7FFFFFFF, 0x7FFF},
                         {0x00400000, 0x0040},
                         {0x007FFFFF, 0x0080},
                         {0x00018000, 0x0002},
                         {0x00008000, 0x0000}});
}

uint32_t f32(double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); }

TEST(ConversionsF16, vectors_worked_out_by_hand_hold_on_every_target) {
  expect_bits<Half>({{f32(65504), 0x7BFF},
                     {f32(65519.996), 0x7BFF},
                     {f32(65520), 0x7C00},
                     {f32(1e6), 0x7C00},
                     {f32(-1e6), 0xFC00},
                     {0x7F7FFFFF, 0x7C00},
                     {f32(2049), 0x6800},
                     {f32(2051), 0x6802},
                     {f32(1 + 0x1p-11), 0x3C00},
                     {f32(1 + 0x1p-11 + 0x1p-22), 0x3C01},
                     {f32(0x1p-24), 0x0001},
                     {f32(0x1p-25), 0x0000},
                     {f32(0x1p-25 * (1 + 0x1p-23)), 0x0001},
                     {f32(3 * 0x1p-25), 0x0002},
                     {0x34200000, 0x0002},
                     {0x34600000, 0x0004},
                     {f32(0x1p-15), 0x0200},
                     {0x387FE000, 0x0400},
                     {f32(6.1005354e-5), 0x0400},
                     {f32(3.0669412e-8), 0x0001},
                     {f32(1e-8), 0x0000}});
}

TEST(ConversionsF16, doubles_are_rounded_once) {
  struct Case {
    double value;
    uint16_t half;
  };
  for (const Case& c : {Case{1 + 0x1p-11 + 0x1p-40, 0x3C01},
                        {1025.49995, 0x6401},
                        {2.980232238769532e-8, 0x0001},
                        {65519.999999, 0x7BFF},
                        {65520, 0x7C00},
                        {1e300, 0x7C00},
                        {-1e300, 0xFC00},
                        {1e-300, 0x0000}}) {
    Half y;
    reference_kernels().cast[index_of(DType::F64)][index_of(DType::F16)](&c.value, &y, 1);
    EXPECT_EQ(y.bits, c.half) << c.value;
  }
}

}  // namespace
}  // namespace halfstep::test
