// SimdMath: the maths facade of backends/formulas-inl.h on float lanes, and the formulas on it
// (step 4 of a training step). Compiled once per SIMD target. Our own functions, since
// Highway 1.0.3 has no erf and its others are untested on our edge cases; coefficients are minimax
// fits (Remez, then a search over neighbouring floats). Errors below are the largest found against
// double precision on every 307th of all float32 numbers, with and without FMA.
#if defined(HALFSTEP_BACKENDS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_BACKENDS_CPU_MATH_INL_H_
#undef HALFSTEP_BACKENDS_CPU_MATH_INL_H_
#else
#define HALFSTEP_BACKENDS_CPU_MATH_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "halfstep/backends/cpu/vec-inl.h"

#undef HS_FN
#define HS_FN HWY_INLINE

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {

template <class D>
struct SimdMath {
  using V = hn::Vec<D>;
  using Mask = hn::Mask<D>;
  static_assert(std::is_same_v<hn::TFromD<D>, float>);

  static constexpr double kErfLimit = 14.5, kTanhLimit = 10.75, kSigmoidLimit = 105.0;

  static HWY_INLINE V Set(double c) { return hn::Set(D(), static_cast<float>(c)); }
  static HWY_INLINE V Low(double c, double /*c_lo*/) { return Set(c - static_cast<float>(c)); }
  static HWY_INLINE V Neg(V a) { return hn::Neg(a); }
  static HWY_INLINE V Abs(V a) { return hn::Abs(a); }
  static HWY_INLINE V Add(V a, V b) { return hn::Add(a, b); }
  static HWY_INLINE V Sub(V a, V b) { return hn::Sub(a, b); }
  static HWY_INLINE V Mul(V a, V b) { return hn::Mul(a, b); }
  static HWY_INLINE V Div(V a, V b) { return hn::Div(a, b); }
  static HWY_INLINE V MulAdd(V a, V b, V c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE Mask Lt(V a, V b) { return hn::Lt(a, b); }
  static HWY_INLINE Mask Le(V a, V b) { return hn::Le(a, b); }
  static HWY_INLINE V If(Mask mask, V yes, V no) { return hn::IfThenElse(mask, yes, no); }

  static HWY_INLINE V ProductError(V a, V b, V product) {
#if HWY_NATIVE_FMA
    return hn::MulSub(a, b, product);
#else  // Dekker: products of 12-bit halves are exact
    const V a_high = Upper12Bits(a);
    const V b_high = Upper12Bits(b);
    const V a_low = hn::Sub(a, a_high);
    const V b_low = hn::Sub(b, b_high);
    const V high = hn::Sub(hn::Mul(a_high, b_high), product);
    const V middle = hn::Add(hn::Mul(a_high, b_low), hn::Mul(a_low, b_high));
    return hn::Add(hn::Add(high, middle), hn::Mul(a_low, b_low));
#endif
  }

  /// Within 1 ulp; hi >= -109, so that 2^32 e^hi is normal and one product rounds to a subnormal.
  static HWY_INLINE V ExpSum(V hi, V lo) {
    // Adding 1.5 * 2^23 rounds to an integer; 127 + 32 more make its low bits the exponent field.
    const V magic = Set(0x1.8p23 + 159.0);
    const V shifted = hn::MulAdd(hi, Set(kLog2E), magic);
    const V r = hn::Add(RemoveLn2(hi, hn::Sub(shifted, magic)), lo);
    const V scale = hn::BitCast(D(), hn::ShiftLeft<23>(hn::BitCast(Int(), shifted)));
    return hn::Mul(hn::Mul(ExpNearZero(r), scale), Set(0x1p-32));
  }

  /// Within 1 ulp. 0 below -104, Inf above 88.7228.
  static HWY_INLINE V Exp(V x) {
    const V clamped = hn::Min(hn::Max(x, Set(-104.5)), Set(89.0));
    const V magic = Set(0x1.8p23);
    const V shifted = hn::MulAdd(clamped, Set(kLog2E), magic);
    const V p = ExpNearZero(RemoveLn2(clamped, hn::Sub(shifted, magic)));
    const auto n = hn::Sub(hn::BitCast(Int(), shifted), hn::Set(Int(), 0x4B400000));
    const auto half = hn::ShiftRight<1>(n);  // 2^n in two factors: n is in [-151, 128]
    const V y = hn::Mul(hn::Mul(p, PowerOf2(half)), PowerOf2(hn::Sub(n, half)));
    return hn::IfThenElse(hn::IsNaN(x), x, y);
  }

  /// Within 1 ulp, subnormals included. log(0) = -Inf, log(Inf) = Inf, log(x < 0) is NaN.
  static HWY_INLINE V Log(V x) {
    const V zero = Set(0.0);
    const Mask tiny = hn::Lt(x, Set(0x1p-126));
    const V scaled = hn::IfThenElse(tiny, hn::Mul(x, Set(0x1p25)), x);
    // x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    const auto bits = hn::BitCast(Int(), scaled);
    const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(Int(), 0x3F3504F3)));
    const V f = hn::Sub(hn::BitCast(D(), hn::Sub(bits, hn::ShiftLeft<23>(exponent))), Set(1.0));
    const V k = hn::Sub(hn::ConvertTo(D(), exponent), hn::IfThenElseZero(tiny, Set(25.0)));
    // log(1 + f) = f - f^2 / 2 + f^3 P(f); the fit's error is 1.1e-9.
    const V square = hn::Mul(f, f);
    const V p = Polynomial(f, 0.333333135, -0.250000089, 0.200021103, -0.166679889, 0.142195478,
                           -0.124055974, 0.118881255, -0.116756745, 0.0674664155);
    V y = hn::Mul(hn::Mul(f, square), p);
    y = hn::MulAdd(k, Set(kLn2Low), y);
    y = hn::Sub(y, hn::Mul(square, Set(0.5)));
    y = hn::MulAdd(k, Set(kLn2High), hn::Add(f, y));
    const V infinity = hn::Set(D(), std::numeric_limits<float>::infinity());
    y = hn::IfThenElse(hn::Lt(x, infinity), y, x);  // Inf and NaN
    y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
    return hn::IfThenElse(hn::Lt(x, zero), hn::NaN(D()), y);
  }

  /// Within 1.6 ulp: a polynomial up to 0.625 (the fit's error is 5.5e-9), else by e^(-2 |x|).
  static HWY_INLINE V Tanh(V x) {
    const V one = Set(1.0);
    const V square = hn::Mul(x, x);
    const V p =
        Polynomial(square, -0.333332807, 0.133314386, -0.0537397228, 0.0206390899, -0.00570498826);
    const V small = hn::MulAdd(hn::Mul(x, square), p, x);
    const V a = hn::Abs(x);
    const V limited = hn::IfThenElse(hn::Lt(Set(20.0), a), Set(20.0), a);
    const V e = ExpSum(hn::Mul(limited, Set(-2.0)), Set(0.0));
    const V large = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    return hn::CopySign(hn::IfThenElse(hn::Lt(a, Set(0.625)), small, large), x);
  }

  /// exp(-a^2 / 2) Q(a) with Q(a) = erfcx(a / sqrt(2)) / 2. Q(a) (a + c) is nearly flat, and a
  /// polynomial of degree 9 in (a - c) / (a + c), c = 2.625, fits it to 2.3e-8 on [0, 14.5].
  static HWY_INLINE V NormalTail(V a, V e) {
    const V c = Set(2.625);
    const V r = hn::Div(Set(1.0), hn::Add(a, c));
    const V t = hn::Mul(hn::Sub(a, c), r);
    const V p =
        Polynomial(t, 0.713136911, -0.454791903, 0.157437459, -0.0029147102, -0.0171728488,
                   0.000818144938, 0.00271435105, 0.000224181844, -0.000406048232, -0.000125858642);
    return hn::Mul(hn::Mul(e, r), p);
  }

 private:
  using Int = hn::RebindToSigned<D>;
  static constexpr double kLog2E = 1.4426950408889634;
  // ln 2 in two parts; k times the high one (9 bits) is exact.
  static constexpr double kLn2High = 0.693359375, kLn2Low = -2.12194440054690583e-4;

  static HWY_INLINE V RemoveLn2(V x, V n) {
    return hn::NegMulAdd(n, Set(kLn2Low), hn::NegMulAdd(n, Set(kLn2High), x));
  }
  static HWY_INLINE V PowerOf2(hn::Vec<Int> n) {
    return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(n, hn::Set(Int(), 127))));
  }
  /// e^r for |r| <= ln(2) / 2; the fit's error is 3.3e-9.
  static HWY_INLINE V ExpNearZero(V r) {
    const V p = Polynomial(r, 0.49999994, 0.166665196, 0.0416683294, 0.00836887024, 0.00138142705);
    return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), Set(1.0));
  }
#if !HWY_NATIVE_FMA
  static HWY_INLINE V Upper12Bits(V a) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(D(), hn::And(hn::BitCast(du, a), hn::Set(du, 0xFFFFF000u)));
  }
#endif
  /// c + (rest of the coefficients) x, by Horner's scheme.
  static HWY_INLINE V Polynomial(V /*x*/, double c) { return Set(c); }
  template <class... Rest>
  static HWY_INLINE V Polynomial(V x, double c, Rest... rest) {
    return hn::MulAdd(Polynomial(x, rest...), x, Set(c));
  }
};

#include "halfstep/backends/formulas-inl.h"

}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#endif  // toggling include guard
