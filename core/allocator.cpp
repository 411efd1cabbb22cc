// The caching allocator: size classes with one list of waiting blocks each, behind one mutex per
// device.
#include "halfstep/core/allocator.h"

#include <array>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

#include "halfstep/core/kernels.h"
#include "halfstep/core/pool.h"

namespace halfstep {
namespace {

constexpr size_t kMinBlock = 64;
constexpr size_t kClassesPerOctave = 4;
constexpr size_t kClassCount = 64 * kClassesPerOctave;

struct Cache {
  std::mutex mutex;
  std::array<std::vector<void*>, kClassCount> waiting;
  AllocatorStats stats{};
};

Cache& cache_of(Device device) {
  // Never destroyed: tensors with static storage duration may outlive every other static object.
  static auto* caches = new std::array<Cache, kDeviceTypeCount>;
  return (*caches)[static_cast<size_t>(device.type)];
}

size_t class_of(size_t block_bytes) {
  const auto octave = static_cast<size_t>(std::bit_width(block_bytes)) - 1;
  const size_t quarter = (block_bytes >> (octave - 2)) & (kClassesPerOctave - 1);
  return octave * kClassesPerOctave + quarter;
}

void release_waiting(Cache& cache, Device device) noexcept {
  for (size_t c = 0; c < kClassCount; ++c) {
    const size_t octave = c / kClassesPerOctave;
    if (octave < 2) continue;
    const size_t bytes = (size_t{4} + c % kClassesPerOctave) << (octave - 2);
    for (void* data : cache.waiting[c]) {
      kernels(device).deallocate(data, bytes);
      ++cache.stats.system_deallocations;
    }
    cache.waiting[c].clear();
  }
  cache.stats.cached_bytes = 0;
}

}  // namespace

size_t block_size(size_t bytes) {
  if (bytes <= kMinBlock) return kMinBlock;
  if (bytes > size_t{1} << 62) throw std::bad_alloc();
  const auto octave = static_cast<size_t>(std::bit_width(bytes - 1)) - 1;
  const size_t step = size_t{1} << (octave - 2);
  return (bytes + step - 1) / step * step;
}

void* cached_allocate(size_t bytes, Device device) {
  const KernelTable& table = kernels(device);
  const size_t block = block_size(bytes);
  Cache& cache = cache_of(device);
  const std::lock_guard lock(cache.mutex);
  std::vector<void*>& waiting = cache.waiting[class_of(block)];
  void* data = nullptr;
  if (!waiting.empty()) {
    data = waiting.back();
    waiting.pop_back();
    cache.stats.cached_bytes -= block;
  } else {
    // Room for the block's return is made now, so that giving it back never allocates or throws.
    const size_t live_and_waiting = cache.stats.live_blocks + 1;
    if (waiting.capacity() < live_and_waiting) waiting.reserve(2 * live_and_waiting);
    try {
      data = table.allocate(block);
    } catch (const std::bad_alloc&) {
      release_waiting(cache, device);
      data = table.allocate(block);
    }
    ++cache.stats.system_allocations;
  }
  ++cache.stats.requests;
  ++cache.stats.live_blocks;
  cache.stats.live_bytes += block;
  if (cache.stats.live_bytes > cache.stats.peak_live_bytes) {
    cache.stats.peak_live_bytes = cache.stats.live_bytes;
  }
  return data;
}

void cached_deallocate(void* data, size_t bytes, Device device) noexcept {
  const size_t block = block_size(bytes);
  Cache& cache = cache_of(device);
  const std::lock_guard lock(cache.mutex);
  --cache.stats.live_blocks;
  cache.stats.live_bytes -= block;
  if (!kRecycleMemory) {
    kernels(device).deallocate(data, block);
    ++cache.stats.system_deallocations;
    return;
  }
  cache.waiting[class_of(block)].push_back(data);
  cache.stats.cached_bytes += block;
}

AllocatorStats allocator_stats(Device device) {
  Cache& cache = cache_of(device);
  const std::lock_guard lock(cache.mutex);
  return cache.stats;
}

void empty_cache(Device device) noexcept {
  Cache& cache = cache_of(device);
  const std::lock_guard lock(cache.mutex);
  release_waiting(cache, device);
}

}  // namespace halfstep
