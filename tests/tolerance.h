// The one table of tolerances of the kernel tests. Kernels compute in float32 (F64 in double) and
// round once at the store, so a result is right if it lies between the two ends of
// [expected - slack, expected + slack], both rounded to the dtype: `slack` is the error of the
// float32 arithmetic, and the rounding to a half needs no allowance of its own.
#pragma once

#include <algorithm>
#include <cmath>

#include "halfstep/core/dtype.h"

namespace halfstep::test {

/// Largest error of our float32 functions in ulps of the result (measured: exp 1.0, log 0.8,
/// sigmoid 2.3, tanh 1.5, GELU 4.8 and 5.8), with a margin for inputs that were not measured.
inline constexpr double kFunctionUlps = 8;
/// Ops that are one IEEE operation or none.
inline constexpr double kExact = 0;

/// Distance between neighbouring values of a format with `digits` bits of precision around `value`;
/// `lowest` is the distance between its subnormals.
inline double ulp(double value, int digits, double lowest) {
  if (!std::isfinite(value)) return 0.0;
  if (value == 0.0) return lowest;
  return std::max(lowest, std::ldexp(1.0, std::ilogb(value) - digits + 1));
}

/// The ulp of float32 at `value`. In results below the normal range two errors of one subnormal
/// step meet (a subnormal exponential times a factor of up to 14), hence the 2.
inline double float_ulp(double value) { return ulp(value, 24, 2 * 0x1p-149); }

/// Machine epsilon (distance from 1 to the next value) of a dtype.
inline double epsilon_of(DType dtype) {
  constexpr double kEpsilon[kDTypeCount] = {0x1p-23, 0x1p-10, 0x1p-7, 0x1p-52};
  return kEpsilon[static_cast<int>(dtype)];
}

/// Whether `got` is `expected` within `slack` in the sense above. NaN is right for NaN only.
template <class T>
bool is_close(T got, double expected, double slack) {
  const double value = convert<double>(got);
  if (std::isnan(expected) || std::isnan(value)) return std::isnan(expected) == std::isnan(value);
  const double low = convert<double>(convert<T>(expected - slack));
  const double high = convert<double>(convert<T>(expected + slack));
  return low <= value && value <= high;
}

}  // namespace halfstep::test
