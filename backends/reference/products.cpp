// Reference kernels, second part: the matrix product and the reductions (step 4 of a training step
// for F64). Every sum runs over ascending indices.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "halfstep/backends/reference/reference.h"
#include "halfstep/core/kernels.h"

namespace halfstep {
namespace {

const double* in(const void* p) { return static_cast<const double*>(p); }
double* out(void* p) { return static_cast<double*>(p); }

// c[i, j] = sum over p of op(a)[i, p] * op(b)[p, j] (+ bias[j]);  a [m, k], b [k, n], c [m, n],
// or a [k, m], b [n, k] where op transposes. linear(x, W, b) is c = x W^T + b.
void gemm(const GemmArgs& args) {
  const auto [transpose_a, transpose_b, m, n, k, a, b, bias, c] = args;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t p = 0; p < k; ++p) {
        const double left = in(a)[transpose_a ? p * m + i : i * k + p];
        const double right = in(b)[transpose_b ? j * k + p : p * n + j];
        sum += left * right;
      }
      out(c)[i * n + j] = bias == nullptr ? sum : sum + in(bias)[j];
    }
  }
}

// y[outer, inner] = (sum over n of x[outer, n, inner]) / divisor
void reduce_sum(const void* x, void* y, const ReduceDims& dims, double divisor) {
  for (int64_t o = 0; o < dims.outer; ++o) {
    for (int64_t i = 0; i < dims.inner; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < dims.n; ++j) sum += in(x)[(o * dims.n + j) * dims.inner + i];
      out(y)[o * dims.inner + i] = sum / divisor;
    }
  }
}

// The backward of reduce_sum: dx[outer, n, inner] = dy[outer, inner] / divisor
void expand(const void* dy, void* dx, const ReduceDims& dims, double divisor) {
  for (int64_t o = 0; o < dims.outer; ++o) {
    for (int64_t j = 0; j < dims.n; ++j) {
      for (int64_t i = 0; i < dims.inner; ++i) {
        out(dx)[(o * dims.n + j) * dims.inner + i] = in(dy)[o * dims.inner + i] / divisor;
      }
    }
  }
}

double sum_of_squares(const double* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// y[1] = sqrt(sum of x[i]^2). The squares of every float32 fit into a double; those of doubles
// beyond 1e154 overflow to Inf, as in PyTorch.
void norm(const void* x, void* y, int64_t n) { out(y)[0] = std::sqrt(sum_of_squares(in(x), n)); }

// dx[i] = dy[1] * x[i] / y[1]; at the kink x = 0 the subgradient 0.
void norm_backward(const void* dy, const void* x, const void* y, void* dx, int64_t n) {
  const double length = in(y)[0];
  const double gradient = in(dy)[0];
  for (int64_t i = 0; i < n; ++i) {
    out(dx)[i] = length == 0.0 ? 0.0 : gradient * in(x)[i] / length;
  }
}

// loss[1] = (sum of (x[i] - target[i])^2) / divisor
void mse(const void* x, const void* target, void* loss, int64_t n, double divisor) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = in(x)[i] - in(target)[i];
    sum += difference * difference;
  }
  out(loss)[0] = sum / divisor;
}

// dx[i] = dy[1] * 2 (x[i] - target[i]) / divisor; a negative divisor gives the target's gradient.
void mse_backward(const void* dy, const void* x, const void* target, void* dx, int64_t n,
                  double divisor) {
  const double gradient = in(dy)[0];
  for (int64_t i = 0; i < n; ++i) {
    out(dx)[i] = gradient * (2.0 * (in(x)[i] - in(target)[i])) / divisor;
  }
}

}  // namespace

void register_reference_products(KernelTable& table) {
  constexpr size_t kF64 = static_cast<size_t>(DType::F64);
  table.gemm[kF64] = gemm;
  table.reduce_sum[kF64] = reduce_sum;
  table.expand[kF64] = expand;
  table.norm[kF64] = norm;
  table.norm_backward[kF64] = norm_backward;
  table.mse[kF64] = mse;
  table.mse_backward[kF64] = mse_backward;
}

}  // namespace halfstep
