// The CPU's kernel table: memory functions and the order of registration (F64 by the reference
// loops first, then the SIMD kernels over them).
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/core/kernels.h"

namespace halfstep {
namespace {

constexpr size_t kAlignment = 64;               // a cache line, and the widest vector
constexpr size_t kMostBytes = size_t{1} << 47;  // user address space on x86-64
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kBigBytes = 2 * kHugePage;  // from here on streaming is bound by page walks
constexpr int64_t kCopyGrain = 1 << 20;      // bytes

void* allocate(size_t bytes) {
  if (bytes > kMostBytes) throw std::bad_alloc();  // rounding up below must not wrap around
  const size_t alignment = bytes >= kBigBytes ? kHugePage : kAlignment;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (data == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes >= kBigBytes) madvise(data, rounded, MADV_HUGEPAGE);  // a wish; may fail
#endif
  return data;
}

void deallocate(void* data, size_t /*bytes*/) { std::free(data); }

void copy(const void* from, void* to, size_t bytes) {
  parallel_for(static_cast<int64_t>(bytes), kCopyGrain, [from, to](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace

void register_cpu_kernels(KernelTable& table) {
  register_reference_kernels(table);
  table.allocate = allocate;
  table.deallocate = deallocate;
  table.copy = copy;
  table.copy_from_host = copy;
  table.copy_to_host = copy;
  register_elementwise(table);
  register_cast(table);
  register_gemm(table);
  register_reduce(table);
  register_step(table);
  register_sweep(table);
}

}  // namespace halfstep
