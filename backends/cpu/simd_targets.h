// The SIMD targets that every foreach_target file is compiled for: on x86 AVX3 (AVX-512), AVX2,
// SSE4 and the compiler's baseline. Include it before hwy/foreach_target.h; one list for all files
// keeps the dispatch tables alike and the compile time short. Serves step 4 of a training step.
#pragma once

// Bits 0 to 6 are the x86 targets above AVX3_DL, whose names differ between Highway versions. They
// add no instruction that these kernels use (bfloat16 conversion is our own on purpose). Scalable
// vectors (SVE) cannot be held in arrays, as the GEMM does.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (0x7F | HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
