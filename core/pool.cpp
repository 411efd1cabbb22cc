// The small pool: one free list per size class behind one mutex. Memory goes back to the system
// only at exit.
#include "halfstep/core/pool.h"

#include <array>
#include <atomic>
#include <mutex>
#include <new>

namespace halfstep {
namespace {

constexpr size_t kGranule = 64;
constexpr size_t kClassCount = 16;
constexpr size_t kObjectsPerChunk = 64;

struct FreeBlock {
  FreeBlock* next;
};

struct Pool {
  std::mutex mutex;
  std::array<FreeBlock*, kClassCount> free{};
  std::atomic<size_t> live{0};
};

// Never destroyed: tensors with static storage duration may outlive every other static object.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

size_t class_of(size_t bytes) { return (bytes + kGranule - 1) / kGranule - 1; }

void refill(FreeBlock*& list, size_t block_bytes) {
  auto* chunk = static_cast<std::byte*>(::operator new(block_bytes* kObjectsPerChunk));
  for (size_t i = kObjectsPerChunk; i-- > 0;) {
    list = new (chunk + i * block_bytes) FreeBlock{list};
  }
}

}  // namespace

void* pool_allocate(size_t bytes) {
  Pool& p = pool();
  const size_t size_class = class_of(bytes);
  if (!kRecycleMemory || size_class >= kClassCount) {
    void* block = ::operator new(bytes);
    p.live.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  const std::lock_guard lock(p.mutex);
  FreeBlock*& list = p.free[size_class];
  if (!list) refill(list, (size_class + 1) * kGranule);
  FreeBlock* block = list;
  list = block->next;
  p.live.fetch_add(1, std::memory_order_relaxed);
  return block;
}

void pool_deallocate(void* pointer, size_t bytes) noexcept {
  if (!pointer) return;
  Pool& p = pool();
  p.live.fetch_sub(1, std::memory_order_relaxed);
  const size_t size_class = class_of(bytes);
  if (!kRecycleMemory || size_class >= kClassCount) {
    ::operator delete(pointer);
    return;
  }
  const std::lock_guard lock(p.mutex);
  p.free[size_class] = new (pointer) FreeBlock{p.free[size_class]};
}

size_t pool_live_objects() { return pool().live.load(std::memory_order_relaxed); }

}  // namespace halfstep
