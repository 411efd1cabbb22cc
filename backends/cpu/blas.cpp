// OpenBLAS calls and the check that it has recognised the CPU.
#include "halfstep/backends/cpu/blas.h"

#include <cblas.h>

#include <algorithm>
#include <array>

#include "halfstep/core/error.h"
#include "halfstep/core/warning.h"
#include "hwy/targets.h"

namespace halfstep {
namespace {

// The x86 cores of OpenBLAS whose kernels know no AVX (an unknown or virtual CPU is taken for
// Prescott). From OpenBLAS's driver/others/dynamic.c.
constexpr std::array<std::string_view, 18> kCoresWithoutAvx = {
    "Unknown", "Generic", "Katmai",  "Coppermine", "Northwood",    "Prescott",
    "Banias",  "Core2",   "Penryn",  "Dunnington", "Nehalem",      "Atom",
    "Nano",    "Athlon",  "Opteron", "Barcelona",  "Opteron_SSE3", "Bobcat"};

void warn_if_slow() {
#if HWY_ARCH_X86
  const bool has_avx2 = (hwy::SupportedTargets() & HWY_AVX2) != 0;
#else
  const bool has_avx2 = false;
#endif
  const std::string advice = slow_blas_advice(blas_core_name(), has_avx2);
  if (!advice.empty()) warn_once("blas core", advice);
}

}  // namespace

std::string blas_core_name() { return openblas_get_corename(); }

std::string slow_blas_advice(std::string_view core, bool has_avx2) {
  const auto same = [core](std::string_view name) {
    return std::equal(core.begin(), core.end(), name.begin(), name.end(), [](char a, char b) {
      return (a | 0x20) == (b | 0x20);  // letters alike in either case
    });
  };
  if (!has_avx2 || std::none_of(kCoresWithoutAvx.begin(), kCoresWithoutAvx.end(), same)) return {};
  return cat("[gemm] OpenBLAS uses its '", core,
             "' kernels, which know no AVX, though this CPU has AVX2; matrix products are several "
             "times slower than they need be; start the program with OPENBLAS_CORETYPE=Haswell");
}

void prepare_blas() { openblas_set_num_threads(1); }

void sgemm(int m, int n, int k, const BlasOperand& a, const BlasOperand& b, bool accumulate,
           float* c, int c_stride) {
  // At the first product and not at registration, so that a warning handler may use tensors.
  [[maybe_unused]] static const bool checked = (warn_if_slow(), true);
  cblas_sgemm(CblasRowMajor, a.transpose ? CblasTrans : CblasNoTrans,
              b.transpose ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a.data, a.stride, b.data,
              b.stride, accumulate ? 1.0f : 0.0f, c, c_stride);
}

}  // namespace halfstep
