// Generator: random numbers by Philox, and the tensors and permutations drawn from it.
// One draw of any function advances the generator by a whole number of Philox blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halfstep/core/state_dict.h"
#include "halfstep/core/tensor.h"

namespace halfstep {

class Generator {
 public:
  struct State {
    uint64_t seed = 0;
    uint64_t block = 0;  // the next Philox block of the stream
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }
  /// The same as numbers: seed.low, seed.high, block.low, block.high, 32 bits each.
  StateDict state_dict() const;
  TakeOver prepare_load(const StateDict& state);

  /// Fills with 32-bit words: element i is word i % 4 of block i / 4 from here.
  void fill_bits(std::span<uint32_t> out);
  /// Uniform on [low, high): 24 random bits each.
  Tensor uniform(const Shape& shape, double low, double high, DType dtype = DType::F32);
  /// Normal by the inverse distribution function (Wichura's AS 241) from 32 random bits each, with
  /// plain float64 arithmetic only, so that all devices agree.
  Tensor normal(const Shape& shape, double mean = 0.0, double stddev = 1.0,
                DType dtype = DType::F32);
  /// A random order of 0..n-1 (Fisher-Yates, unbiased up to n 2^-64).
  std::vector<int64_t> permutation(int64_t n);

 private:
  State state_;
};

/// The generator that modules draw their initial values from unless given one. Not thread-safe.
Generator& default_generator();
/// Restarts the default generator.
void manual_seed(uint64_t seed);

/// Quantile function of the standard normal distribution, 0 < p < 1 (AS 241, PPND16: relative error
/// about 1e-16).
double normal_quantile(double p);

}  // namespace halfstep
