// The kernel tables: all that the layers above know of a device. A backend fills a KernelTable with
// plain function pointers; ops look their kernel up by dtype and trust it to trust its arguments.
// Kernels take raw pointers and sizes, never tensors, never null unless said; rows are contiguous.
// Inputs and outputs are aligned to their element only. A null entry means "not on this device".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "halfstep/core/device.h"
#include "halfstep/core/dtype.h"
#include "halfstep/core/ops.h"

namespace halfstep {

/// How one operand of a binary op lies over the [rows, cols] output.
enum class Spread : uint8_t { kFull, kRow, kScalar };

struct BinaryLayout {
  Spread lhs;
  Spread rhs;
  int64_t rows;
  int64_t cols;
};

/// c[m, n] = op(a)[m, k] * op(b)[k, n] (+ bias[n]); op transposes when asked to. Accumulates in
/// float32 at least, adds the bias before the one rounding to the dtype of c.
struct GemmArgs {
  bool transpose_a;  // a is stored [k, m]
  bool transpose_b;  // b is stored [n, k]
  int64_t m, n, k;
  const void* a;
  const void* b;
  const void* bias;  // may be null
  void* c;
};

/// A tensor seen as [outer, n, inner]; a reduction runs over n.
struct ReduceDims {
  int64_t outer;
  int64_t n;
  int64_t inner;
};

/// What one sweep over a gradient has found.
struct SweepRecord {
  double sum_squares;        // of all elements after unscaling, summed in float64, fixed order
  int64_t first_non_finite;  // index of the first Inf or NaN, -1 if there is none
  float non_finite_value;    // that element after unscaling, 0 if there is none
};

/// One gradient of a sweep; `record` is written.
struct SweepItem {
  void* data;
  int64_t n;
  DType dtype;
  SweepRecord* record;
};

/// AdamW's numbers for one parameter at its step t (t >= 1), in the notation of Loshchilov &
/// Hutter.
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  double bias_correction1;  // 1 - beta1^t
  double bias_correction2;  // 1 - beta2^t
  bool maximize;
};

/// SGD's numbers for one parameter, as torch.optim.SGD.
struct SGDStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
  bool first;  // the momentum buffer starts as the gradient itself
};

/// The arrays of one parameter in an optimizer step, n elements each, all of one dtype (F32 or F64)
/// except low_copy, the parameter's low-precision copy, written in the same pass; null if unused.
struct StepArrays {
  void* param;
  const void* grad;
  void* exp_avg;         // SGD: momentum buffer, may be null
  void* exp_avg_sq;      // SGD: unused
  void* max_exp_avg_sq;  // AdamW with amsgrad, else null
  void* low_copy;        // may be null
  DType low_dtype;
  int64_t n;
};

using UnaryFn = void (*)(const void* x, void* y, int64_t n);
using UnaryBackwardFn = void (*)(const void* dy, const void* saved, void* dx, int64_t n);
using BinaryFn = void (*)(const void* lhs, const void* rhs, void* y, const BinaryLayout& layout);
/// Gradient with respect to one operand, still spread over [rows, cols]. lhs and rhs are null when
/// the op's backward needs nothing; one that it does not read may be any memory as large as dy.
using BinaryBackwardFn = void (*)(const void* dy, const void* lhs, const void* rhs, void* out,
                                  const BinaryLayout& layout);

template <class Fn>
using ByDType = std::array<Fn, kDTypeCount>;

struct KernelTable {
  // Memory. allocate throws std::bad_alloc; addresses are aligned to 64 bytes at least.
  void* (*allocate)(size_t bytes);
  void (*deallocate)(void* data, size_t bytes);
  void (*copy)(const void* from, void* to, size_t bytes);  // on this device
  void (*copy_from_host)(const void* from, void* to, size_t bytes);
  void (*copy_to_host)(const void* from, void* to, size_t bytes);  // waits

  // Elementwise. y may be one of the inputs.
  std::array<ByDType<UnaryFn>, kUnaryOpCount> unary;
  std::array<ByDType<UnaryBackwardFn>, kUnaryOpCount> unary_backward;
  std::array<ByDType<BinaryFn>, kBinaryOpCount> binary;
  std::array<ByDType<BinaryBackwardFn>, kBinaryOpCount> binary_backward_lhs;
  std::array<ByDType<BinaryBackwardFn>, kBinaryOpCount> binary_backward_rhs;
  std::array<ByDType<UnaryFn>, kDTypeCount> cast;  // cast[from][to]
  ByDType<void (*)(void* x, double value, int64_t n)> fill;
  ByDType<void (*)(void* x, double factor, int64_t n)> scale;  // product in float64, rounded once
  ByDType<void (*)(void* x, double limit, int64_t n)> clamp;   // to [-limit, limit]; NaN stays

  // Products.
  ByDType<void (*)(const GemmArgs& args)> gemm;

  // Reductions, float64 sums in a fixed order. y[outer, inner] = (sum over n) / divisor.
  ByDType<void (*)(const void* x, void* y, const ReduceDims& dims, double divisor)> reduce_sum;
  // dx[outer, n, inner] = dy[outer, inner] / divisor.
  ByDType<void (*)(const void* dy, void* dx, const ReduceDims& dims, double divisor)> expand;
  // y[1] = L2 norm; dx = dy * x / y, 0 where y is 0.
  ByDType<void (*)(const void* x, void* y, int64_t n)> norm;
  ByDType<void (*)(const void* dy, const void* x, const void* y, void* dx, int64_t n)>
      norm_backward;
  // F32 and F64 only. loss[1] = sum((x - target)^2) / divisor;
  // dx = dy * 2 (x - target) / divisor, with the sign of divisor (negative for the target).
  ByDType<void (*)(const void* x, const void* target, void* loss, int64_t n, double divisor)> mse;
  ByDType<void (*)(const void* dy, const void* x, const void* target, void* dx, int64_t n,
                   double divisor)>
      mse_backward;

  // The step. unscale multiplies every gradient in place by `factor` and records; measure only
  // reads.
  void (*unscale)(const SweepItem* items, int64_t count, float factor);
  void (*measure)(const SweepItem* items, int64_t count);
  ByDType<void (*)(const StepArrays& arrays, const AdamWStep& step)> adamw;  // F32 and F64
  ByDType<void (*)(const StepArrays& arrays, const SGDStep& step)> sgd;      // F32 and F64
};

/// The table of `device`'s backend; throws DeviceError if this build or machine has none.
const KernelTable& kernels(Device device);
/// Whether kernels(device) would succeed.
bool is_available(Device device);

/// Defined by the backends; each fills the entries it has and leaves the others alone.
/// The reference backend fills F64 (and the F64 casts) with plain loops.
void register_reference_kernels(KernelTable& table);
void register_cpu_kernels(KernelTable& table);
void register_cuda_kernels(KernelTable& table);

}  // namespace halfstep
