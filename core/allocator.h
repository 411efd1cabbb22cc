// The caching allocator: element memory of all tensors, one cache per device. A freed block waits
// in the list of its size class for the next request of that class; in steady state a training step
// takes nothing from the system.
#pragma once

#include <cstddef>
#include <cstdint>

#include "halfstep/core/device.h"

namespace halfstep {

/// Counters of one device's allocator, in bytes or events since the program's start.
struct AllocatorStats {
  uint64_t requests;              ///< calls of allocate
  uint64_t system_allocations;    ///< requests that had to ask the system
  uint64_t system_deallocations;  ///< blocks given back to the system
  size_t live_bytes;              ///< in blocks handed out now
  size_t live_blocks;
  size_t cached_bytes;  ///< in blocks waiting for reuse
  size_t peak_live_bytes;
};

/// Memory for `bytes` elements' bytes on `device`; the block's size is block_size(bytes).
/// Contents are undefined. Throws std::bad_alloc when the system has none even after the cache was
/// emptied, DeviceError when the device is not available.
void* cached_allocate(size_t bytes, Device device);
void cached_deallocate(void* data, size_t bytes, Device device) noexcept;

/// The size class of a request: at least 64 bytes, then four classes per power of two (at most 25 %
/// more than asked for).
size_t block_size(size_t bytes);

AllocatorStats allocator_stats(Device device);
/// Gives all waiting blocks back to the system.
void empty_cache(Device device) noexcept;

}  // namespace halfstep
