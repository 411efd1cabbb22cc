// The reference backend: every kernel for F64, as the shortest plain double-precision loop. Read it
// first: it says what the SIMD and CUDA kernels compute, without how they get fast. F64 tensors run
// on it, and all other kernels are compared with it. Filled in by register_reference_kernels
// (core/kernels.h); nothing here uses threads.
#pragma once

#include <cstdint>

#include "halfstep/core/kernels.h"

namespace halfstep {

void register_reference_products(KernelTable& table);  // gemm, sums, norm, mse
void register_reference_step(KernelTable& table);      // AdamW and SGD

/// The sweep's work on one F64 gradient: multiplies data[n] by `factor` in place (a factor of 1
/// writes nothing) and records what is there. Not in the table, since a sweep mixes dtypes.
SweepRecord reference_sweep(double* data, int64_t n, double factor);

}  // namespace halfstep
