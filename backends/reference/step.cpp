// Reference kernels, third part: the sweep over a gradient and the optimizers' updates (steps 7 and
// 9 of a training step for F64).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "halfstep/backends/reference/reference.h"
#include "halfstep/core/dtype.h"
#include "halfstep/core/kernels.h"

namespace halfstep {
namespace {

double* out(void* p) { return static_cast<double*>(p); }

/// Element i of the parameter's low-precision copy, if it has one.
void write_low_copy(const StepArrays& arrays, int64_t i) {
  if (arrays.low_copy == nullptr) return;
  visit_dtype(arrays.low_dtype, [&]<class T>(T) {
    static_cast<T*>(arrays.low_copy)[i] = convert<T>(out(arrays.param)[i]);
  });
}

// Loshchilov & Hutter 2019, algorithm 2, in the order of torch.optim.AdamW:
//   p = p (1 - lr wd)                       decoupled weight decay
//   m = m + (1 - beta1) (g - m)             exp_avg
//   v = beta2 v + (1 - beta2) g^2           exp_avg_sq (amsgrad: from here on its running maximum)
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
void adamw(const StepArrays& arrays, const AdamWStep& step) {
  const double* grad = static_cast<const double*>(arrays.grad);
  for (int64_t i = 0; i < arrays.n; ++i) {
    double& p = out(arrays.param)[i];
    double& m = out(arrays.exp_avg)[i];
    double& v = out(arrays.exp_avg_sq)[i];
    const double g = step.maximize ? -grad[i] : grad[i];
    p *= 1.0 - step.lr * step.weight_decay;
    m += (1.0 - step.beta1) * (g - m);
    v = step.beta2 * v + (1.0 - step.beta2) * g * g;
    double second = v;
    if (arrays.max_exp_avg_sq != nullptr) {
      double& largest = out(arrays.max_exp_avg_sq)[i];
      second = largest = std::max(largest, v);
    }
    const double denominator = std::sqrt(second) / std::sqrt(step.bias_correction2) + step.eps;
    p -= step.lr / step.bias_correction1 * m / denominator;
    write_low_copy(arrays, i);
  }
}

// torch.optim.SGD:
//   d = g + wd p                            weight decay, coupled
//   b = momentum b + (1 - dampening) d      momentum buffer; b = d in its first step
//   d = nesterov ? d + momentum b : b       without momentum d stays
//   p = p - lr d
void sgd(const StepArrays& arrays, const SGDStep& step) {
  const double* grad = static_cast<const double*>(arrays.grad);
  for (int64_t i = 0; i < arrays.n; ++i) {
    double& p = out(arrays.param)[i];
    double d = step.maximize ? -grad[i] : grad[i];
    if (step.weight_decay != 0.0) d += step.weight_decay * p;
    if (step.momentum != 0.0) {
      double& buffer = out(arrays.exp_avg)[i];
      buffer = step.first ? d : step.momentum * buffer + (1.0 - step.dampening) * d;
      d = step.nesterov ? d + step.momentum * buffer : buffer;
    }
    p -= step.lr * d;
    write_low_copy(arrays, i);
  }
}

}  // namespace

SweepRecord reference_sweep(double* data, int64_t n, double factor) {
  SweepRecord record{0.0, -1, 0.0f};
  for (int64_t i = 0; i < n; ++i) {
    if (factor != 1.0) data[i] *= factor;
    record.sum_squares += data[i] * data[i];
    if (!std::isfinite(data[i]) && record.first_non_finite < 0) {
      record.first_non_finite = i;
      record.non_finite_value = static_cast<float>(data[i]);
    }
  }
  return record;
}

void register_reference_step(KernelTable& table) {
  constexpr size_t kF64 = static_cast<size_t>(DType::F64);
  table.adamw[kF64] = adamw;
  table.sgd[kF64] = sgd;
}

}  // namespace halfstep
