// What each file of backends/cpu puts into the kernel table, with the kernels of the best SIMD
// target of this machine. Called once by register_cpu_kernels.
#pragma once

#include "halfstep/core/kernels.h"

namespace halfstep {

void register_elementwise(KernelTable& table);  // unary, binary and their backwards
void register_cast(KernelTable& table);         // cast, fill, scale, clamp
void register_gemm(KernelTable& table);
void register_reduce(KernelTable& table);
void register_step(KernelTable& table);
void register_sweep(KernelTable& table);

}  // namespace halfstep
