// Loads and stores between any storage type and float (or double) lanes, and Map, the elementwise
// loop. Serves step 4 of a training step: a dtype exists only here, kernels see lanes. Compiled
// once per SIMD target. Assumes pointers aligned to their element only; nothing is read or written
// past the n elements that a function is told of.
//
// Narrowing rounds to nearest even and gives the bits of core/dtype.h on every target: Highway
// 1.0.3's DemoteTo truncates to bfloat16, and without F16C loses the infinities of float16.
#if defined(HALFSTEP_BACKENDS_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_BACKENDS_CPU_VEC_INL_H_
#undef HALFSTEP_BACKENDS_CPU_VEC_INL_H_
#else
#define HALFSTEP_BACKENDS_CPU_VEC_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The type that elements of storage type T are computed in.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// As many lanes as D, of type T.
template <class T, class D>
using LanesOf = hn::Vec<hn::Rebind<T, D>>;

/// float lanes from float16 bits, exactly. A signalling NaN becomes quiet, as F16C does it.
template <class D>
HWY_INLINE hn::Vec<D> WidenF16(D d, LanesOf<uint16_t, D> half) {
#if HWY_TARGET <= HWY_AVX2  // F16C
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
#else
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, half);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
  // Read as a float the magnitude is too small by 2^112, subnormals included.
  const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto inf = hn::Set(d, 65536.0f);  // where the bits of Inf land; NaN lands above
  const auto special = hn::BitCast(d, hn::Or(hn::BitCast(du, value), hn::Set(du, 0x7F800000u)));
  const auto quiet = hn::BitCast(d, hn::Or(hn::BitCast(du, special), hn::Set(du, 0x00400000u)));
  const auto finite_or_inf = hn::IfThenElse(hn::Ge(value, inf), special, value);
  const auto widened = hn::IfThenElse(hn::Gt(value, inf), quiet, finite_or_inf);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  return hn::Or(widened, hn::BitCast(d, sign));
#endif
}

/// float lanes from bfloat16 bits, exactly.
template <class D>
HWY_INLINE hn::Vec<D> WidenBF16(D d, LanesOf<uint16_t, D> half) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
}

/// The lower 16 bits of each lane.
template <class D, class V>
HWY_INLINE LanesOf<uint16_t, D> LowerBits(D /*d*/, V u32) {
  const hn::Rebind<uint16_t, D> du16;
#if HWY_TARGET <= HWY_AVX3
  return hn::TruncateTo(du16, u32);
#else
  return hn::DemoteTo(du16, hn::BitCast(hn::RebindToSigned<D>(), u32));  // saturates above 0xFFFF
#endif
}

/// float16 bits from float lanes.
template <class D>
HWY_INLINE LanesOf<uint16_t, D> NarrowF16(D d, hn::Vec<D> v) {
#if HWY_TARGET <= HWY_AVX2  // F16C has just our rules, also for NaN
  return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
#else  // the steps of f32_to_f16_bits in core/dtype.h; magnitudes compare alike as signed integers
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, v);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(di, 0xFFF)), odd);
  const auto normal = hn::Sub(hn::ShiftRight<13>(rounded), hn::Set(di, 112 << 10));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3F000000));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x3FF));
  auto half = hn::IfThenElse(hn::Gt(hn::Set(di, 0x38800000), magnitude), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477FEFFF)), hn::Set(di, 0x7C00), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)),
                        hn::Or(payload, hn::Set(di, 0x7E00)), half);
  return LowerBits(d, hn::BitCast(hn::RebindToUnsigned<D>(), hn::Or(half, sign)));
#endif
}

/// bfloat16 bits from float lanes.
template <class D>
HWY_INLINE LanesOf<uint16_t, D> NarrowBF16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto bias = hn::Add(hn::And(upper, hn::Set(du, 1u)), hn::Set(du, 0x7FFFu));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, bias));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x0040u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  return LowerBits(d, hn::IfThenElse(is_nan, quiet, rounded));
}

/// What an element of T is loaded and stored as.
template <class T>
using Bits = std::conditional_t<is_half(kDTypeOf<T>), uint16_t, T>;

template <class T>
HWY_INLINE const Bits<T>* bits_of(const T* p) {
  return reinterpret_cast<const Bits<T>*>(p);
}
template <class T>
HWY_INLINE Bits<T>* bits_of(T* p) {
  return reinterpret_cast<Bits<T>*>(p);
}

/// Lanes of d (float, or double) from as many elements of T, exactly.
template <class T, class D>
HWY_INLINE hn::Vec<D> Widen(D d, LanesOf<Bits<T>, D> bits) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return bits;
  } else if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, Widen<T>(hn::Rebind<float, D>(), bits));
  } else if constexpr (std::is_same_v<T, Half>) {
    return WidenF16(d, bits);
  } else {
    return WidenBF16(d, bits);
  }
}

/// Elements of T from lanes of d, rounded once.
template <class T, class D>
HWY_INLINE LanesOf<Bits<T>, D> Narrow(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return v;
  } else {
    static_assert(std::is_same_v<hn::TFromD<D>, float>, "doubles would be rounded twice");
    if constexpr (std::is_same_v<T, Half>) {
      return NarrowF16(d, v);
    } else {
      return NarrowBF16(d, v);
    }
  }
}

/// Lanes(d) elements from p as lanes of d: float lanes from float, Half or BFloat16; double lanes
/// from those or from double.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadAs(D d, const T* p) {
  return Widen<T>(d, hn::LoadU(hn::Rebind<Bits<T>, D>(), bits_of(p)));
}

/// Stores Lanes(d) elements, rounded once to T: float, Half or BFloat16 from float lanes, double
/// from double lanes.
template <class D, class T>
HWY_INLINE void StoreAs(hn::Vec<D> v, D d, T* p) {
  hn::StoreU(Narrow<T>(d, v), hn::Rebind<Bits<T>, D>(), bits_of(p));
}

/// The first n <= Lanes(d) elements of p, then zeros.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadAsN(D d, const T* p, size_t n) {
#if HWY_TARGET <= HWY_AVX3  // masked loads and stores that never fault, of 16-bit lanes too
  const hn::Rebind<Bits<T>, D> bits;
  return Widen<T>(d, hn::MaskedLoad(hn::FirstN(bits, n), bits, bits_of(p)));
#else
  HWY_ALIGN T padded[hn::MaxLanes(D())] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return LoadAs(d, padded);
#endif
}

/// Stores the first n <= Lanes(d) lanes, as StoreAs.
template <class D, class T>
HWY_INLINE void StoreAsN(hn::Vec<D> v, D d, T* p, size_t n) {
#if HWY_TARGET <= HWY_AVX3
  const hn::Rebind<Bits<T>, D> bits;
  hn::BlendedStore(Narrow<T>(d, v), hn::FirstN(bits, n), bits, bits_of(p));
#else
  HWY_ALIGN T padded[hn::MaxLanes(D())];
  StoreAs(v, d, padded);
  std::memcpy(p, padded, n * sizeof(T));
#endif
}

/// double lanes for half of the float lanes of D, see LowerAsDouble.
#if HWY_TARGET == HWY_SCALAR
template <class D>
using DoubleTag = hn::Rebind<double, D>;
#else
template <class D>
using DoubleTag = hn::RepartitionToWide<D>;
#endif

/// The lower half of v's float lanes as doubles (with one lane: that lane).
template <class D>
HWY_INLINE hn::Vec<DoubleTag<D>> LowerAsDouble(D /*d*/, hn::Vec<D> v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::PromoteTo(DoubleTag<D>(), v);
#else
  return hn::PromoteTo(DoubleTag<D>(), hn::LowerHalf(hn::Half<D>(), v));
#endif
}

/// The upper half of v's float lanes as doubles (with one lane: zero).
template <class D>
HWY_INLINE hn::Vec<DoubleTag<D>> UpperAsDouble(D /*d*/, [[maybe_unused]] hn::Vec<D> v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Zero(DoubleTag<D>());
#else
  return hn::PromoteTo(DoubleTag<D>(), hn::UpperHalf(hn::Half<D>(), v));
#endif
}

/// out[i] = fn(in[i]...) for n elements: whole vectors, then one that is padded with zeros, so body
/// and tail give the same bits. out may be one of the inputs.
template <class Fn, class Out, class... In>
HWY_INLINE void Map(Fn fn, size_t n, Out* out, const In*... in) {
  const hn::ScalableTag<Compute<Out>> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreAs(fn(LoadAs(d, in + i)...), d, out + i);
  if (i < n) StoreAsN(fn(LoadAsN(d, in + i, n - i)...), d, out + i, n - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#endif  // toggling include guard
