// The differentiable functions. All return new tensors (or views, where said) on the device of
// their inputs; the output dtype is that of the inputs after autocast. Inputs of different devices
// are a DeviceError, of different dtypes (outside autocast) a DTypeError, of unfit shapes a
// ShapeError, all naming op, dtypes, shapes and devices.
#pragma once

#include "halfstep/core/tensor.h"

namespace halfstep {

// Elementwise functions of one tensor: gelu (erf form, torch's approximate="none"), gelu_tanh
// (approximate="tanh"), relu (gradient 0 at 0), tanh, sigmoid, exp, log. Halves are computed in
// float32 and rounded once.
#define HS_UNARY(name, ...) Tensor name(const Tensor& x);
#include "halfstep/core/elementwise.def"

// add, sub, mul: shapes equal, or one operand a scalar or a row (see broadcast in core/tensor.h).
// Each operand's gradient has that operand's shape.
#define HS_BINARY(name, ...) Tensor name(const Tensor& lhs, const Tensor& rhs);
#include "halfstep/core/elementwise.def"

// With a number: it takes part in float32 (float64 for F64) and the result has x's dtype.
Tensor add(const Tensor& x, double value);
Tensor mul(const Tensor& x, double factor);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator+(const Tensor& x, double value) { return add(x, value); }
inline Tensor operator-(const Tensor& x, double value) { return add(x, -value); }
inline Tensor operator*(const Tensor& x, double factor) { return mul(x, factor); }
inline Tensor operator*(double factor, const Tensor& x) { return mul(x, factor); }
/// x times the reciprocal of `divisor`, taken in float64.
inline Tensor operator/(const Tensor& x, double divisor) { return mul(x, 1.0 / divisor); }
inline Tensor operator-(const Tensor& x) { return mul(x, -1.0); }

struct MatmulOptions {
  bool transpose_a = false;  ///< a is stored [k, m]
  bool transpose_b = false;  ///< b is stored [n, k]
};
/// [m, k] x [k, n] -> [m, n]. Accumulates in float32 at least, rounds once.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

/// y[..., out] = x[..., in] weight[out, in]^T + bias[out]; the bias is added before the one
/// rounding.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
Tensor linear(const Tensor& x, const Tensor& weight);

/// Sum and mean of all elements (a scalar) or along one dimension, which disappears. Accumulated in
/// float64, divided, then rounded once to x's dtype: a mean of halves does not overflow on the way.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, int dim);
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, int dim);

/// L2 norm of all elements (a scalar), squares in float64. Its gradient at 0 is 0.
Tensor norm(const Tensor& x);

enum class Reduction : uint8_t { kMean, kSum };
/// Mean or sum of (x - target)^2, a float32 scalar (float64 if an input is). Shapes must be equal:
/// nothing is broadcast. Mixed dtypes are taken; each gradient has its input's dtype.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);

/// x as `dtype`, rounded to nearest even; x itself if it has that dtype. The gradient is cast back.
Tensor to(const Tensor& x, DType dtype);
/// A view with another shape; one extent may be -1 and is worked out.
Tensor reshape(const Tensor& x, std::initializer_list<int64_t> shape);
Tensor reshape(const Tensor& x, const Shape& shape);
/// A view of rows [begin, end) of the leading dimension.
Tensor rows(const Tensor& x, int64_t begin, int64_t end);

}  // namespace halfstep
