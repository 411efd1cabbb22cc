// The SIMD targets of this machine, for diagnostics and for tests that run every one of them.
#pragma once

#include <cstdint>
#include <vector>

#include "halfstep/core/kernels.h"

namespace halfstep {

/// Highway's bit of each target that was compiled in and that this machine can run, best first.
std::vector<int64_t> supported_targets();
/// "AVX3", "AVX2", "SSE4" ...
const char* target_name(int64_t target);
/// What register_cpu_kernels would fill in on a machine whose best target is `target`, one of
/// supported_targets(). Not while another thread registers kernels.
void register_cpu_kernels_for_target(int64_t target, KernelTable& table);

}  // namespace halfstep
