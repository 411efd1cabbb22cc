// The BLAS behind gemm: OpenBLAS, always called single-threaded, because its own threading changes
// bits with the thread count. Serves step 4 of a training step. cblas.h is included by blas.cpp
// only.
#pragma once

#include <string>
#include <string_view>

namespace halfstep {

/// OpenBLAS's name for the CPU it has detected, for example "SkylakeX".
std::string blas_core_name();

/// What to tell the user of core `core` on a machine with or without AVX2; empty if all is well.
std::string slow_blas_advice(std::string_view core, bool has_avx2);

/// Sets OpenBLAS to one thread, for the whole process. Any number of calls, from any thread.
void prepare_blas();

/// One matrix in memory: rows are `stride` elements apart; read transposed if asked to.
struct BlasOperand {
  const float* data;
  int stride;
  bool transpose;
};

/// c[m, n] = op(a)[m, k] * op(b)[k, n], added to c if `accumulate`, else c's old contents are not
/// read. m, n, k >= 1. May be called from many threads at once.
void sgemm(int m, int n, int k, const BlasOperand& a, const BlasOperand& b, bool accumulate,
           float* c, int c_stride);

}  // namespace halfstep
