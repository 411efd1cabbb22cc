// The formulas of core/elementwise.def, each written once for all devices (step 4 of a training
// step). Include it inside the namespace whose maths facade M the formulas shall run on: inside
// halfstep::HWY_NAMESPACE once per SIMD target, inside halfstep for plain doubles and for CUDA.
// HS_FN is what the includer puts before a function. `saved` is x or y, as the .def says.
//
// A facade M has a value type V and static functions: Set(double), Low(c, c_lo) (what Set(c) lost,
// where c_lo is what the double c lost), Neg, Abs, Add, Sub, Mul, Div, MulAdd(a, b, c) = ab + c,
// ProductError(a, b, p) = ab - p exactly for p = Mul(a, b); Lt, Le, If(mask, yes, no);
// Exp, Log, Tanh; ExpSum(hi, lo) = e^(hi + lo) for hi <= 0 and |lo| an error term of hi;
// NormalTail(a, e) = P(N(0, 1) > a) for a >= 0, e = exp(-a^2 / 2); and the limits kErfLimit,
// kTanhLimit, kSigmoidLimit beyond which the tails below are zero.
namespace formula {

/// a, but at most `limit`; NaN stays.
template <class M>
HS_FN typename M::V at_most(typename M::V a, double limit) {
  return M::If(M::Lt(M::Set(limit), a), M::Set(limit), a);
}

/// GELU in terms of tail = P(-|x|), where P is the form's cumulative function and P(x) = 1 - P(-x).
/// y = x P(x) is max(x, 0) - |x| tail: neither side of zero cancels. a is |x|, limited so that no
/// product is Inf * 0: gelu(-Inf) is its limit -0, gelu(Inf) is Inf, NaN stays.
template <class M>
struct gelu_from_tail {
  using V = typename M::V;
  HS_FN static V fwd(V x, V a, V tail) {
    // Not If(x < 0, -0, x) - part: clang 14 compiles that to x <= 0, and gelu(0) to -0.
    const V part = M::Mul(a, tail);
    return M::If(M::Lt(x, M::Set(0.0)), M::Neg(part), M::Sub(x, part));
  }
  /// `slope` is dy/dx at -|x|; at |x| it is 1 - slope.
  HS_FN static V bwd(V dy, V x, V slope) {
    return M::Mul(dy, M::If(M::Lt(x, M::Set(0.0)), slope, M::Sub(M::Set(1.0), slope)));
  }
};

/// x Phi(x), Phi the normal distribution's cumulative function (Hendrycks & Gimpel 2016). In
/// float32 within 4.8 ulp (10 subnormal steps where |y| < 1e-37), its derivative within 2.1e-7.
template <class M>
struct gelu {
  using V = typename M::V;
  /// exp(-a^2 / 2). The rounding error of a^2 goes into the exponent: it would cost 60 ulp at 13.
  HS_FN static V bell(V a) {
    const V square = M::Mul(a, a);
    const V error = M::ProductError(a, a, square);
    return M::ExpSum(M::Mul(square, M::Set(-0.5)), M::Mul(error, M::Set(-0.5)));
  }
  HS_FN static V fwd(V x) {
    const V a = at_most<M>(M::Abs(x), M::kErfLimit);
    return gelu_from_tail<M>::fwd(x, a, M::NormalTail(a, bell(a)));
  }
  HS_FN static V bwd(V dy, V x) {
    const V a = at_most<M>(M::Abs(x), M::kErfLimit);
    const V e = bell(a);
    const V density = M::Mul(e, M::Set(0.3989422804014327));  // 1 / sqrt(2 pi)
    const V slope = M::Sub(M::NormalTail(a, e), M::Mul(a, density));
    return gelu_from_tail<M>::bwd(dy, x, slope);
  }
};

/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), written as x sigmoid(w(x)) with
/// w(x) = kC1 x + kC3 x^3. tanh itself would cancel for negative x, and its derivative as usually
/// written is 0 * Inf from |x| = 2e19 on. In float32 within 5.8 ulp, its derivative within 1e-7.
template <class M>
struct gelu_tanh {
  using V = typename M::V;
  static constexpr double kC1 = 1.5957691216057308, kC1Low = -9.96930880911092e-17;
  static constexpr double kC3 = 0.07135481627260025, kC3Low = -6.175149918155315e-19;

  /// sigmoid(-w(a)). w is kept as w + w_low, or an exponent of -80 would lose 6 bits of e^w.
  HS_FN static V tail(V a) {
    const V c1 = M::Set(kC1);
    const V c3 = M::Set(kC3);
    const V square = M::Mul(a, a);
    const V cubic = M::Mul(c3, square);
    V cubic_low = M::Add(M::ProductError(c3, square, cubic), M::Mul(M::Low(kC3, kC3Low), square));
    cubic_low = M::MulAdd(c3, M::ProductError(a, a, square), cubic_low);
    const V sum = M::Add(c1, cubic);
    const V part = M::Sub(sum, c1);  // Knuth's two-sum
    const V sum_low = M::Add(M::Sub(c1, M::Sub(sum, part)), M::Sub(cubic, part));
    const V low = M::Add(M::Add(sum_low, cubic_low), M::Low(kC1, kC1Low));
    const V w = M::Mul(a, sum);
    const V w_low = M::MulAdd(a, low, M::ProductError(a, sum, w));
    const V e = M::ExpSum(M::Neg(w), M::Neg(w_low));
    return M::Div(e, M::Add(M::Set(1.0), e));
  }
  HS_FN static V fwd(V x) {
    const V a = at_most<M>(M::Abs(x), M::kTanhLimit);
    return gelu_from_tail<M>::fwd(x, a, tail(a));
  }
  HS_FN static V bwd(V dy, V x) {
    const V a = at_most<M>(M::Abs(x), M::kTanhLimit);
    const V t = tail(a);
    const V dw = M::MulAdd(M::Mul(a, a), M::Set(3.0 * kC3), M::Set(kC1));  // w'(a)
    const V density = M::Mul(M::Mul(t, M::Sub(M::Set(1.0), t)), dw);
    return gelu_from_tail<M>::bwd(dy, x, M::Sub(t, M::Mul(a, density)));
  }
};

template <class M>
struct relu {
  using V = typename M::V;
  HS_FN static V fwd(V x) { return M::If(M::Le(x, M::Set(0.0)), M::Set(0.0), x); }
  HS_FN static V bwd(V dy, V y) { return M::If(M::Le(y, M::Set(0.0)), M::Set(0.0), dy); }
};

template <class M>
struct tanh {
  using V = typename M::V;
  HS_FN static V fwd(V x) { return M::Tanh(x); }
  HS_FN static V bwd(V dy, V y) {  // 1 - y^2, without its cancellation near |y| = 1
    const V one = M::Set(1.0);
    return M::Mul(dy, M::Mul(M::Sub(one, y), M::Add(one, y)));
  }
};

template <class M>
struct sigmoid {
  using V = typename M::V;
  HS_FN static V fwd(V x) {  // e^-|x| <= 1: nothing overflows, and small results stay accurate
    const V one = M::Set(1.0);
    const V a = at_most<M>(M::Abs(x), M::kSigmoidLimit);
    const V e = M::ExpSum(M::Neg(a), M::Set(0.0));
    return M::Div(M::If(M::Lt(x, M::Set(0.0)), e, one), M::Add(one, e));
  }
  HS_FN static V bwd(V dy, V y) { return M::Mul(dy, M::Mul(y, M::Sub(M::Set(1.0), y))); }
};

template <class M>
struct exp {
  using V = typename M::V;
  HS_FN static V fwd(V x) { return M::Exp(x); }
  HS_FN static V bwd(V dy, V y) { return M::Mul(dy, y); }
};

template <class M>
struct log {
  using V = typename M::V;
  HS_FN static V fwd(V x) { return M::Log(x); }
  HS_FN static V bwd(V dy, V x) { return M::Div(dy, x); }
};

template <class M>
struct add {
  using V = typename M::V;
  HS_FN static V fwd(V a, V b) { return M::Add(a, b); }
  HS_FN static V bwd_lhs(V dy, V /*a*/, V /*b*/) { return dy; }
  HS_FN static V bwd_rhs(V dy, V /*a*/, V /*b*/) { return dy; }
};

template <class M>
struct sub {
  using V = typename M::V;
  HS_FN static V fwd(V a, V b) { return M::Sub(a, b); }
  HS_FN static V bwd_lhs(V dy, V /*a*/, V /*b*/) { return dy; }
  HS_FN static V bwd_rhs(V dy, V /*a*/, V /*b*/) { return M::Neg(dy); }
};

template <class M>
struct mul {
  using V = typename M::V;
  HS_FN static V fwd(V a, V b) { return M::Mul(a, b); }
  HS_FN static V bwd_lhs(V dy, V /*a*/, V b) { return M::Mul(dy, b); }
  HS_FN static V bwd_rhs(V dy, V a, V /*b*/) { return M::Mul(dy, a); }
};

}  // namespace formula
