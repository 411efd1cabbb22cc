// The random generator: Philox against its authors' known answers, the layout of the stream,
// uniform and normal tensors, the normal quantile function, permutations and seeds.
#include "halfstep/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "halfstep/core/philox.h"

namespace halfstep::test {
namespace {

TEST(Philox, known_answers_of_random123) {  // kat_vectors, philox4x32 10
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (PhiloxBlock{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0xA4093822, 0x299F31D0),
            (PhiloxBlock{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Generator, word_i_is_word_i_mod_4_of_block_i_div_4) {
  Generator generator(0x0123456789ABCDEF);
  generator.set_state(
      {generator.state().seed, 0xFFFFFFFF});  // the counter carries into its 2nd word
  std::vector<uint32_t> words(7);
  generator.fill_bits(words);
  const PhiloxBlock first = philox4x32({0xFFFFFFFF, 0, 0, 0}, 0x89ABCDEF, 0x01234567);
  const PhiloxBlock second = philox4x32({0, 1, 0, 0}, 0x89ABCDEF, 0x01234567);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(words[i], i < 4 ? first[i] : second[i - 4]) << i;
  EXPECT_EQ(generator.state().block, 0x100000001u) << "a draw takes whole blocks";
}

TEST(Generator, no_words_take_no_block) {
  Generator generator(3);
  generator.fill_bits({});
  EXPECT_EQ(generator.uniform({0}, 0, 1).numel(), 0);
  EXPECT_EQ(generator.state().block, 0u);
}

TEST(Generator, state_and_seed_decide_what_is_drawn) {
  Generator a(5), b(5), c(6);
  const auto first = a.normal({100}).to_vector<float>();
  EXPECT_EQ(first, b.normal({100}).to_vector<float>());
  EXPECT_NE(first, c.normal({100}).to_vector<float>());
  const Generator::State state = a.state();
  const auto second = a.normal({100}).to_vector<float>();
  EXPECT_NE(first, second);
  c.set_state(state);
  EXPECT_EQ(second, c.normal({100}).to_vector<float>());
  EXPECT_EQ(a.state(), c.state());
}

TEST(Generator, manual_seed_restarts_the_default_generator) {
  manual_seed(7);
  const auto first = default_generator().uniform({9}, 0, 1).to_vector<float>();
  EXPECT_NE(first, default_generator().uniform({9}, 0, 1).to_vector<float>());
  manual_seed(7);
  EXPECT_EQ(first, default_generator().uniform({9}, 0, 1).to_vector<float>());
  manual_seed(0);
}

TEST(Generator, every_dtype_holds_the_same_draw_rounded_once) {
  const auto wide = Generator(8).normal({101}, 1.0, 3.0, DType::F64).to_vector<double>();
  const auto half = Generator(8).normal({101}, 1.0, 3.0, DType::F16);
  const auto bfloat = Generator(8).normal({101}, 1.0, 3.0, DType::BF16);
  const auto single = Generator(8).normal({101}, 1.0, 3.0, DType::F32);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(half.data<Half>()[i].bits, convert<Half>(wide[i]).bits);
    EXPECT_EQ(bfloat.data<BFloat16>()[i].bits, convert<BFloat16>(wide[i]).bits);
    EXPECT_EQ(single.data<float>()[i], static_cast<float>(wide[i]));
  }
}

// Moments of n independent draws lie within five standard errors of the distribution's: a right
// generator with another seed fails in one of 1.7 million runs per comparison.
TEST(Generator, uniform_has_the_moments_of_the_uniform_distribution) {
  constexpr int kN = 200000;
  const auto x = Generator(1).uniform({kN}, -1.0, 3.0, DType::F64).to_vector<double>();
  double mean = 0.0, square = 0.0;
  for (const double v : x) {
    ASSERT_TRUE(v >= -1.0 && v < 3.0);
    mean += v / kN;
    square += (v - 1.0) * (v - 1.0) / kN;
  }
  // Variance 16/12; (v - 1)^2 has mean 4/3 and variance 16/5 - 16/9.
  EXPECT_NEAR(mean, 1.0, 5.0 * std::sqrt(16.0 / 12.0 / kN));
  EXPECT_NEAR(square, 4.0 / 3.0, 5.0 * std::sqrt((16.0 / 5.0 - 16.0 / 9.0) / kN));
}

TEST(Generator, normal_has_the_moments_of_the_normal_distribution) {
  constexpr int kN = 200000;
  const auto x = Generator(2).normal({kN}, 2.0, 0.5, DType::F64).to_vector<double>();
  double mean = 0.0, square = 0.0, fourth = 0.0;
  for (const double v : x) {
    const double z = (v - 2.0) / 0.5;
    mean += z / kN;
    square += z * z / kN;
    fourth += z * z * z * z / kN;
  }
  EXPECT_NEAR(mean, 0.0, 5.0 / std::sqrt(kN));
  EXPECT_NEAR(square, 1.0, 5.0 * std::sqrt(2.0 / kN));   // variance of z^2: 3 - 1
  EXPECT_NEAR(fourth, 3.0, 5.0 * std::sqrt(96.0 / kN));  // variance of z^4: 105 - 9
}

TEST(Generator, uniform_never_reaches_its_upper_end) {
  // Below 2 a float32 steps by 2^-23 and a bfloat16 by 2^-7; the largest draw, 2 - 2^-24, would be
  // rounded up. Word 2 of block 2330056 of seed 0 is 0xFFFFFF45.
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    Generator generator;
    generator.set_state({0, 2330056});
    const Tensor x = generator.uniform({4}, 1.0, 2.0, dtype);
    EXPECT_LT(x.to_vector<double>()[2], 2.0) << name_of(dtype);
  }
}

TEST(Generator, impossible_ranges_are_errors) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Generator generator;
  EXPECT_THROW(generator.uniform({1}, 1.0, 0.0), ArgumentError);
  EXPECT_THROW(generator.uniform({1}, 0.0, kInf), ArgumentError);
  EXPECT_THROW(generator.uniform({1}, kNan, 1.0), ArgumentError);
  EXPECT_THROW(generator.normal({1}, 0.0, -1.0), ArgumentError);
  EXPECT_THROW(generator.normal({1}, kNan, 1.0), ArgumentError);
  EXPECT_THROW(generator.permutation(-1), ArgumentError);
  EXPECT_EQ(generator.state(), Generator::State{}) << "an error draws nothing";
}

TEST(NormalQuantile, known_values) {
  // Inverse of erfc(-z / sqrt 2) / 2 at these very doubles, computed with 40 digits.
  constexpr double kKnown[][2] = {
      {0.975, 1.9599639845400538556},   {0.9, 1.2815515655446005935},
      {0.99, 2.3263478740408407676},    {0.001, -3.0902323061678135354},
      {0.075, -1.4395314709384559349},  {0.0749, -1.4402382675279636631},  // both sides of a branch
      {1e-10, -6.3613409024040561991},  {0x1p-33, -6.3379577545537892525},
      {0.3, -0.52440051270804081597},   {1e-20, -9.2623400897984075796},
      {1e-100, -21.273453560965324294}, {1e-300, -37.047096299361199237},
  };
  for (const auto& [p, z] : kKnown) EXPECT_NEAR(normal_quantile(p) / z, 1.0, 1e-14) << p;
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_EQ(normal_quantile(1.0 - 0x1p-33), -normal_quantile(0x1p-33));
}

TEST(NormalQuantile, rises_across_its_branches) {
  double last = -10.0;
  for (int i = 1; i < 4096; ++i) {
    const double z = normal_quantile(i / 4096.0);
    EXPECT_GT(z, last) << i;
    last = z;
  }
}

TEST(Permutation, holds_every_number_once) {
  for (const int64_t n : {0, 1, 2, 3, 100, 1797}) {
    auto order = Generator(4).permutation(n);
    ASSERT_EQ(static_cast<int64_t>(order.size()), n);
    EXPECT_EQ(order, Generator(4).permutation(n));
    EXPECT_TRUE(n < 100 || order != Generator(5).permutation(n));
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(Permutation, all_orders_are_equally_likely) {
  Generator generator(9);
  constexpr int kDraws = 24000;
  std::vector<int> counts(27);
  for (int i = 0; i < kDraws; ++i) {
    const auto order = generator.permutation(3);
    ++counts[static_cast<size_t>(order[0] * 9 + order[1] * 3 + order[2])];
  }
  // Each of the 6 is binomial with p = 1/6; five standard errors.
  const double expected = kDraws / 6.0,
               margin = 5.0 * std::sqrt(kDraws * (1.0 / 6.0) * (5.0 / 6.0));
  int seen = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++seen;
    EXPECT_NEAR(count, expected, margin);
  }
  EXPECT_EQ(seen, 6);
}

}  // namespace
}  // namespace halfstep::test
