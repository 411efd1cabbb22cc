// Stands in for the CUDA backend in builds without CUDA: the table stays empty, and asking for a
// CUDA device is a DeviceError that says so (core/kernels.cpp).
#include "halfstep/core/kernels.h"

namespace halfstep {

void register_cuda_kernels(KernelTable& /*table*/) {}

}  // namespace halfstep
