// Generator: Philox words turned into uniform and normal tensors and permutations.
#include "halfstep/core/rng.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "halfstep/core/philox.h"

namespace halfstep {
namespace {

PhiloxBlock block_at(const Generator::State& state, uint64_t i) {
  const uint64_t block = state.block + i;
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0},
                    static_cast<uint32_t>(state.seed), static_cast<uint32_t>(state.seed >> 32));
}

template <size_t N>
constexpr double horner(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (size_t i = N - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// log by frexp and the atanh series: only + - * /, so the bits do not depend on a maths library.
// |s| <= 0.172 gives a truncation error below 1e-18.
double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678118654752440) {
    m *= 2.0;
    --exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return 2.0 * s * series + exponent * 0.69314718055994530942;
}

void put_words(StateDict& state, const std::string& name, uint64_t value) {
  state.numbers[name + ".low"] = static_cast<double>(value & 0xFFFFFFFFu);
  state.numbers[name + ".high"] = static_cast<double>(value >> 32);
}

uint64_t read_words(StateReader& reader, const std::string& name) {
  uint64_t words[2];
  for (const int i : {0, 1}) {
    const std::string key = name + (i == 0 ? ".low" : ".high");
    const int64_t word = reader.whole_number(key, 0.0);
    HS_CHECK(word <= 0xFFFFFFFF, ArgumentError, reader.op(), reader.full(key), " = ", word,
             " given; it must be at most 2^32 - 1");
    words[i] = static_cast<uint64_t>(word);
  }
  return words[1] << 32 | words[0];
}

}  // namespace

StateDict Generator::state_dict() const {
  StateDict out;
  put_words(out, "seed", state_.seed);
  put_words(out, "block", state_.block);
  return out;
}

TakeOver Generator::prepare_load(const StateDict& state) {
  StateReader reader("Generator.load", state);
  const State loaded{.seed = read_words(reader, "seed"), .block = read_words(reader, "block")};
  reader.finish();
  return [this, loaded] { state_ = loaded; };
}

double normal_quantile(double p) {
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * horner(kA, r) / horner(kB, r);
  }
  double r = std::sqrt(-portable_log(q < 0.0 ? p : 1.0 - p));
  double z;
  if (r <= 5.0) {
    r -= 1.6;
    z = horner(kC, r) / horner(kD, r);
  } else {
    r -= 5.0;
    z = horner(kE, r) / horner(kF, r);
  }
  return q < 0.0 ? -z : z;
}

void Generator::fill_bits(std::span<uint32_t> out) {
  const uint64_t blocks = (out.size() + 3) / 4;
  for (uint64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock words = block_at(state_, b);
    for (size_t i = 4 * b; i < out.size() && i < 4 * (b + 1); ++i) out[i] = words[i % 4];
  }
  state_.block += blocks;
}

namespace {

/// The next smaller value of the storage type.
template <class T>
T next_below(T x) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
  const Bits bits = std::bit_cast<Bits>(x);
  if (bits == 0) return std::bit_cast<T>(static_cast<Bits>(kSign | 1));
  return std::bit_cast<T>(static_cast<Bits>(bits & kSign ? bits + 1 : bits - 1));
}

/// Draws one word per element, maps it to a double and stores it as `dtype`. A value that rounds up
/// to `end` becomes the one below it; NaN means that there is no end.
template <class Fn>
Tensor draw(Generator& generator, const Shape& shape, DType dtype, double end, Fn&& from_word) {
  Tensor y = Tensor::empty(shape, dtype);  // what may fail comes before the draw
  std::vector<uint32_t> words(static_cast<size_t>(shape.numel()));
  generator.fill_bits(words);
  void* out = y.mutable_raw_data();
  visit_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < words.size(); ++i) {
      T value = convert<T>(from_word(words[i]));
      if (convert<double>(value) >= end) value = next_below(value);
      static_cast<T*>(out)[i] = value;
    }
  });
  return y;
}

}  // namespace

Tensor Generator::uniform(const Shape& shape, double low, double high, DType dtype) {
  HS_CHECK(std::isfinite(high - low) && low <= high, ArgumentError, "uniform", "range [", low, ", ",
           high, ") given; both ends and the width must be finite, and in order");
  const double end = low < high ? high : std::numeric_limits<double>::quiet_NaN();
  return draw(*this, shape, dtype, end, [=](uint32_t word) {
    return low + (high - low) * (static_cast<double>(word >> 8) * 0x1p-24);
  });
}

Tensor Generator::normal(const Shape& shape, double mean, double stddev, DType dtype) {
  HS_CHECK(std::isfinite(mean) && std::isfinite(stddev) && stddev >= 0.0, ArgumentError, "normal",
           "mean ", mean, " and stddev ", stddev, " given; both must be finite, stddev >= 0");
  constexpr double kNoEnd = std::numeric_limits<double>::quiet_NaN();
  return draw(*this, shape, dtype, kNoEnd, [=](uint32_t word) {
    return mean + stddev * normal_quantile((static_cast<double>(word) + 0.5) * 0x1p-32);
  });
}

std::vector<int64_t> Generator::permutation(int64_t n) {
  HS_CHECK(n >= 0 && n <= int64_t{1} << 40, ArgumentError, "permutation", n,
           " elements asked for; n must lie in [0, 2^40]");
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::vector<uint32_t> words(2 * static_cast<size_t>(n));
  fill_bits(words);
  for (size_t i = order.size(); i > 1; --i) {
    const uint64_t word = (uint64_t{words[2 * i - 1]} << 32) | words[2 * i - 2];
    std::swap(order[i - 1], order[word % i]);
  }
  return order;
}

Generator& default_generator() {
  static Generator generator(0);
  return generator;
}

void manual_seed(uint64_t seed) { default_generator() = Generator(seed); }

}  // namespace halfstep
