// DoubleMath: the maths facade of backends/formulas-inl.h on plain doubles, and the formulas on it
// as halfstep::formula. Serves the reference kernels (F64, the oracle of all others). Relative
// error of values below 4e-16, of GELU's derivatives 2.5e-15, in the tails too.
#pragma once

#include <cmath>

#ifndef HS_FN
#define HS_FN inline
#endif

namespace halfstep {

struct DoubleMath {
  using V = double;

  // Beyond these exp(-a^2 / 2), sigmoid(-w(a)) and exp(-a) are 0 in double.
  static constexpr double kErfLimit = 39.0, kTanhLimit = 22.0, kSigmoidLimit = 746.0;

  static V Set(double c) { return c; }
  static V Low(double /*c*/, double c_lo) { return c_lo; }
  static V Neg(V a) { return -a; }
  static V Abs(V a) { return std::fabs(a); }
  static V Add(V a, V b) { return a + b; }
  static V Sub(V a, V b) { return a - b; }
  static V Mul(V a, V b) { return a * b; }
  static V Div(V a, V b) { return a / b; }
  static V MulAdd(V a, V b, V c) { return a * b + c; }
  static V ProductError(V a, V b, V product) { return std::fma(a, b, -product); }
  static bool Lt(V a, V b) { return a < b; }
  static bool Le(V a, V b) { return a <= b; }
  static V If(bool condition, V yes, V no) { return condition ? yes : no; }

  static V Exp(V x) { return std::exp(x); }
  static V Log(V x) { return std::log(x); }
  static V Tanh(V x) { return std::tanh(x); }
  static V ExpSum(V hi, V lo) {
    const double e = std::exp(hi);
    return e + e * lo;
  }
  /// erfc(z) / 2 at z = a / sqrt(2), corrected to first order for the rounding of z.
  static V NormalTail(V a, V e) {
    constexpr double kSqrtHalf = 0.7071067811865476, kSqrtHalfLow = -4.833646656726457e-17;
    const double z = a * kSqrtHalf;
    const double z_low = std::fma(a, kSqrtHalf, -z) + a * kSqrtHalfLow;
    return 0.5 * std::erfc(z) - 0.5641895835477563 * e * z_low;  // 1 / sqrt(pi)
  }
};

#include "halfstep/backends/formulas-inl.h"

}  // namespace halfstep
