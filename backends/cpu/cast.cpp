// Casts between F32, F16 and BF16 (the Cast node, step 3 of a training step), and fill, scale and
// clamp in place. Compiled once per SIMD target; loads and stores of vec-inl.h do the rounding.
// Casts of F64 belong to the reference backend.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/cast.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements of one piece

template <class From, class To>
void cast(const void* x, void* y, int64_t n) {
  const From* in = static_cast<const From*>(x);
  To* out = static_cast<To*>(y);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    const auto same = [](auto v) HWY_ATTR { return v; };
    Map(same, static_cast<size_t>(end - begin), out + begin, in + begin);
  });
}

template <class T>
void fill(void* x, double value, int64_t n) {
  T* out = static_cast<T*>(x);
  const T element = convert<T>(value);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) out[i] = element;
  });
}

/// f64_to_f32_odd of core/dtype.h: an inexact result has its last bit set, so that rounding it to a
/// half once more gives what one rounding would have given.
template <class D>
HWY_INLINE LanesOf<float, D> NarrowOdd(D d, hn::Vec<D> v) {
  const hn::Rebind<float, D> df;
  const hn::RebindToUnsigned<D> du64;
  const hn::Rebind<uint32_t, D> du;
  const auto nearest = hn::DemoteTo(df, v);
  const auto back = hn::PromoteTo(d, nearest);
  const auto one = hn::Set(du64, uint64_t{1});
  const auto beyond =
      hn::IfThenElseZero(hn::RebindMask(du64, hn::Gt(hn::Abs(back), hn::Abs(v))), one);
  const auto inexact = hn::IfThenElseZero(hn::RebindMask(du64, hn::Ne(back, v)), one);
  const auto below = hn::Sub(hn::BitCast(du, nearest), hn::TruncateTo(du, beyond));
  return hn::BitCast(df, hn::Or(below, hn::TruncateTo(du, inexact)));
}

template <class T>
HWY_INLINE void scale_piece(T* x, double factor, size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    StoreAs(NarrowOdd(d, hn::Mul(LoadAs(d, x + i), factors)), df, x + i);
  }
  if (i < n) StoreAsN(NarrowOdd(d, hn::Mul(LoadAsN(d, x + i, n - i), factors)), df, x + i, n - i);
}
/// A plain loop, since Highway 1.0.3's scalar DemoteTo turns what overflows into FLT_MAX.
HWY_INLINE void scale_piece(float* x, double factor, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) * factor);
}

template <class T>
void scale(void* x, double factor, int64_t n) {
  T* out = static_cast<T*>(x);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    scale_piece(out + begin, factor, static_cast<size_t>(end - begin));
  });
}

template <class T>
void clamp(void* x, double limit, int64_t n) {
  T* out = static_cast<T*>(x);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    const auto clamped = [limit](auto v) HWY_ATTR {  // not Min and Max: they may drop a NaN
      const hn::ScalableTag<float> d;
      const auto high = hn::Set(d, static_cast<float>(limit));
      const auto low = hn::Neg(high);
      return hn::IfThenElse(hn::Lt(high, v), high, hn::IfThenElse(hn::Lt(v, low), low, v));
    };
    Map(clamped, static_cast<size_t>(end - begin), out + begin, out + begin);
  });
}

template <class From, class To>
void register_pair(KernelTable& table) {
  if constexpr (!std::is_same_v<From, To>) {
    table.cast[static_cast<size_t>(kDTypeOf<From>)][static_cast<size_t>(kDTypeOf<To>)] =
        cast<From, To>;
  }
}

template <class T>
void register_dtype(KernelTable& table) {
  constexpr size_t kDType = static_cast<size_t>(kDTypeOf<T>);
  register_pair<T, float>(table);
  register_pair<T, Half>(table);
  register_pair<T, BFloat16>(table);
  table.fill[kDType] = fill<T>;
  table.scale[kDType] = scale<T>;
  table.clamp[kDType] = clamp<T>;
}

void register_here(KernelTable& table) {
  register_dtype<float>(table);
  register_dtype<Half>(table);
  register_dtype<BFloat16>(table);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {

HWY_EXPORT(register_here);

void register_cast(KernelTable& table) { HWY_DYNAMIC_DISPATCH(register_here)(table); }

}  // namespace halfstep
#endif  // HWY_ONCE
