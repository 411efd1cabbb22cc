// Reference kernels, first part: the elementwise ops, casts, and what works in place. Serves steps
// 3 and 4 of a training step for F64. The formulas are those of all devices (formulas-inl.h), here
// instantiated with plain doubles; products.cpp and step.cpp hold the other kernels.
#include "halfstep/backends/reference/reference.h"

#include <cstddef>
#include <cstdint>

#include "halfstep/backends/reference/double_math.h"
#include "halfstep/core/dtype.h"
#include "halfstep/core/kernels.h"

namespace halfstep {
namespace {

constexpr size_t kF64 = static_cast<size_t>(DType::F64);

const double* in(const void* p) { return static_cast<const double*>(p); }
double* out(void* p) { return static_cast<double*>(p); }

// y[i] = f(x[i])
template <class Formula>
void unary(const void* x, void* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out(y)[i] = Formula::fwd(in(x)[i]);
}

// dx[i] = dy[i] * f'(x[i]); saved is x, or y where f' is simpler in terms of y.
template <class Formula>
void unary_backward(const void* dy, const void* saved, void* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out(dx)[i] = Formula::bwd(in(dy)[i], in(saved)[i]);
}

/// An operand's element for output element (row, col) of [rows, cols]; 0 if it has none.
double element(const void* p, Spread spread, int64_t row, int64_t col, int64_t cols) {
  if (p == nullptr) return 0.0;
  if (spread == Spread::kScalar) return in(p)[0];                 // [1]
  return in(p)[spread == Spread::kRow ? col : row * cols + col];  // [cols] or [rows, cols]
}

// y[row, col] = fn(dy[row, col], lhs at (row, col), rhs at (row, col)); forward has no dy.
template <class Fn>
void spread_loop(Fn fn, const void* dy, const void* lhs, const void* rhs, void* y,
                 const BinaryLayout& layout) {
  const int64_t cols = layout.cols;
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      out(y)[row * cols + col] =
          fn(element(dy, Spread::kFull, row, col, cols), element(lhs, layout.lhs, row, col, cols),
             element(rhs, layout.rhs, row, col, cols));
    }
  }
}

template <class Formula>
void binary(const void* lhs, const void* rhs, void* y, const BinaryLayout& layout) {
  spread_loop([](double, double a, double b) { return Formula::fwd(a, b); }, nullptr, lhs, rhs, y,
              layout);
}

template <class Formula>
void binary_backward_lhs(const void* dy, const void* lhs, const void* rhs, void* dlhs,
                         const BinaryLayout& layout) {
  spread_loop(Formula::bwd_lhs, dy, lhs, rhs, dlhs, layout);
}

template <class Formula>
void binary_backward_rhs(const void* dy, const void* lhs, const void* rhs, void* drhs,
                         const BinaryLayout& layout) {
  spread_loop(Formula::bwd_rhs, dy, lhs, rhs, drhs, layout);
}

// y[i] = x[i], rounded once to To.
template <class From, class To>
void cast(const void* x, void* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<To*>(y)[i] = convert<To>(static_cast<const From*>(x)[i]);
  }
}

template <class T>
void register_casts(KernelTable& table) {
  constexpr size_t kT = static_cast<size_t>(kDTypeOf<T>);
  table.cast[kF64][kT] = cast<double, T>;
  table.cast[kT][kF64] = cast<T, double>;
}

void fill(void* x, double value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out(x)[i] = value;
}

void scale(void* x, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out(x)[i] *= factor;
}

// Written so that a NaN, for which no comparison holds, stays.
void clamp(void* x, double limit, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double& v = out(x)[i];
    if (v > limit) v = limit;
    if (v < -limit) v = -limit;
  }
}

}  // namespace

void register_reference_kernels(KernelTable& table) {
  size_t op = 0;
#define HS_UNARY(name, ...)                                 \
  table.unary[op][kF64] = unary<formula::name<DoubleMath>>; \
  table.unary_backward[op++][kF64] = unary_backward<formula::name<DoubleMath>>;
#include "halfstep/core/elementwise.def"
  op = 0;
#define HS_BINARY(name, ...)                                                            \
  table.binary[op][kF64] = binary<formula::name<DoubleMath>>;                           \
  table.binary_backward_lhs[op][kF64] = binary_backward_lhs<formula::name<DoubleMath>>; \
  table.binary_backward_rhs[op++][kF64] = binary_backward_rhs<formula::name<DoubleMath>>;
#include "halfstep/core/elementwise.def"
  register_casts<float>(table);
  register_casts<Half>(table);
  register_casts<BFloat16>(table);
  table.fill[kF64] = fill;
  table.scale[kF64] = scale;
  table.clamp[kF64] = clamp;
  register_reference_products(table);
  register_reference_step(table);
}

}  // namespace halfstep
