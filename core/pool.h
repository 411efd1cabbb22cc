// The small pool: recycles the fixed-size objects of a step (tensor headers, storages, graph
// nodes), so that a step in steady state calls operator new not once.
#pragma once

#include <cstddef>

namespace halfstep {

// Under AddressSanitizer nothing is recycled, so that use after free is seen.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kRecycleMemory = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kRecycleMemory = false;
#else
inline constexpr bool kRecycleMemory = true;
#endif
#else
inline constexpr bool kRecycleMemory = true;
#endif

/// Memory for an object of `bytes`, from a free list of its size class (multiples of 64 bytes;
/// above 1 KiB straight from operator new). Thread-safe; throws std::bad_alloc.
void* pool_allocate(size_t bytes);
void pool_deallocate(void* pointer, size_t bytes) noexcept;

/// Number of pool objects alive now, for leak tests.
size_t pool_live_objects();

/// Base class whose derived objects come from the small pool.
struct Pooled {
  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* pointer, size_t bytes) noexcept {
    pool_deallocate(pointer, bytes);
  }
};

}  // namespace halfstep
