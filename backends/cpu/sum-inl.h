// Sums in float64 with one order on every SIMD target: sixteen running sums, element i into sum
// i mod 16, folded by halves; then the elements that fill no step of 16, one by one. Serves the
// reductions (step 4 of a training step) and the sweep over gradients (step 7). Compiled once per
// target; blocks of kSumBlock elements are summed by themselves and their totals added in order, so
// the bits do not depend on threads either.
#if defined(HALFSTEP_BACKENDS_CPU_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_BACKENDS_CPU_SUM_INL_H_
#undef HALFSTEP_BACKENDS_CPU_SUM_INL_H_
#else
#define HALFSTEP_BACKENDS_CPU_SUM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "halfstep/backends/cpu/vec-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {

constexpr size_t kSums = 16;
constexpr int64_t kSumBlock = 1 << 16;  // elements; also the grain of the threads

class Sums {
 public:
  using D = hn::CappedTag<float, kSums>;
  using V = hn::Vec<D>;
  /// Float lanes of one vector, and how many vectors make up a step of sixteen elements.
  static constexpr size_t kLanes = hn::MaxLanes(D());
  static constexpr size_t kVectors = kSums / kLanes;

  HWY_INLINE Sums() {
    for (size_t j = 0; j < kVectors; ++j) {
      lower_[j] = hn::Zero(DoubleTag<D>());
      upper_[j] = hn::Zero(DoubleTag<D>());
    }
  }

  /// Adds vector j of a step.
  HWY_INLINE void add(size_t j, V v) {
    lower_[j] = hn::Add(lower_[j], LowerAsDouble(D(), v));
    if constexpr (kLanes > 1) upper_[j] = hn::Add(upper_[j], UpperAsDouble(D(), v));
  }

  /// Adds its squares, which are exact in float64: with or without FMA, the bits are the same.
  HWY_INLINE void add_squares(size_t j, V v) {
    const auto lower = LowerAsDouble(D(), v);
    lower_[j] = hn::MulAdd(lower, lower, lower_[j]);
    if constexpr (kLanes > 1) {
      const auto upper = UpperAsDouble(D(), v);
      upper_[j] = hn::MulAdd(upper, upper, upper_[j]);
    }
  }

  HWY_INLINE double total() const {
    const DoubleTag<D> dd;
    HWY_ALIGN double sums[kSums];
    for (size_t j = 0; j < kVectors; ++j) {
      hn::StoreU(lower_[j], dd, sums + j * kLanes);
      if constexpr (kLanes > 1) {
        hn::StoreU(upper_[j], dd, sums + j * kLanes + kLanes / 2);
      }
    }
    for (size_t half = kSums / 2; half > 0; half /= 2) {
      for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    return sums[0];
  }

 private:
  hn::Vec<DoubleTag<D>> lower_[kVectors];
  hn::Vec<DoubleTag<D>> upper_[kVectors];
};

/// The sum over n elements. step(sums, j, i) adds elements i to i + Sums::kLanes, which are vector
/// j of their step; term(i) is element i's term for those that don't fill a step.
template <class Step, class Term>
HWY_INLINE double sum_of(size_t n, Step step, Term term) {
  Sums running;
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t j = 0; j < Sums::kVectors; ++j) step(running, j, i + j * Sums::kLanes);
  }
  double sum = i == 0 ? 0.0 : running.total();
  for (; i < n; ++i) sum += term(i);
  return sum;
}

HWY_INLINE double square(double x) { return x * x; }

template <class T>
double sum_block(const T* x, size_t n) {
  return sum_of(
      n, [x](Sums& sums, size_t j, size_t i) HWY_ATTR { sums.add(j, LoadAs(Sums::D(), x + i)); },
      [x](size_t i) HWY_ATTR { return convert<double>(x[i]); });
}

template <class T>
double sum_squares_block(const T* x, size_t n) {
  return sum_of(
      n,
      [x](Sums& sums, size_t j, size_t i)
          HWY_ATTR { sums.add_squares(j, LoadAs(Sums::D(), x + i)); },
      [x](size_t i) HWY_ATTR { return square(convert<double>(x[i])); });
}

}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#endif  // toggling include guard
