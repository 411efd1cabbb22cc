// The SIMD targets of this machine: a thin cover over Highway's list.
#include "halfstep/backends/cpu/targets.h"

#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/kernels.h"

#include "hwy/highway.h"

namespace halfstep {

std::vector<int64_t> supported_targets() { return hwy::SupportedAndGeneratedTargets(); }

const char* target_name(int64_t target) { return hwy::TargetName(target); }

void register_cpu_kernels_for_target(int64_t target, KernelTable& table) {
  // Dynamic dispatch happens in the register_* functions only; the table then holds plain pointers.
  hwy::SetSupportedTargetsForTest(target);
  register_cpu_kernels(table);
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace halfstep
