// The caching allocator and the small pool: size classes, reuse, counters, running out of memory,
// and many threads. Under AddressSanitizer freed blocks are not reused, so those claims are
// skipped.
#include "halfstep/core/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "halfstep/core/pool.h"
#include "halfstep/core/tensor.h"

namespace halfstep::test {
namespace {

constexpr Device kCpu = Device::cpu();

bool caches() {
  const uint64_t before = allocator_stats(kCpu).cached_bytes;
  cached_deallocate(cached_allocate(3000, kCpu), 3000, kCpu);
  return allocator_stats(kCpu).cached_bytes > before || before > 0;
}

TEST(Allocator, a_block_wastes_at_most_a_quarter) {
  size_t last = 0;
  for (size_t bytes = 0; bytes < 70000; ++bytes) {
    const size_t block = block_size(bytes);
    ASSERT_GE(block, std::max<size_t>(bytes, 64));
    ASSERT_TRUE(block == 64 || 4 * block <= 5 * bytes) << bytes << " in " << block;
    ASSERT_EQ(block_size(block), block) << "a class holds its own size";
    ASSERT_GE(block, last) << "more bytes never get a smaller block";
    last = block;
  }
  for (int shift = 17; shift < 62; ++shift) {
    for (const size_t bytes :
         {(size_t{1} << shift) - 1, size_t{1} << shift, (size_t{1} << shift) + 1}) {
      ASSERT_GE(block_size(bytes), bytes);
      ASSERT_LE(block_size(bytes) - bytes, bytes / 4);
      ASSERT_EQ(block_size(block_size(bytes)), block_size(bytes));
    }
  }
}

TEST(Allocator, an_octave_has_four_classes) {
  std::vector<size_t> classes;
  for (size_t bytes = 1025; bytes <= 2048; ++bytes) classes.push_back(block_size(bytes));
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  EXPECT_EQ(classes, (std::vector<size_t>{1280, 1536, 1792, 2048}));
}

TEST(Allocator, memory_is_aligned_to_a_cache_line) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65}, size_t{1000}, size_t{100000}}) {
    void* data = cached_allocate(bytes, kCpu);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u) << bytes;
    std::memset(data, 0xA5, block_size(bytes));  // all of the block is ours
    cached_deallocate(data, bytes, kCpu);
  }
}

TEST(Allocator, a_freed_block_serves_the_next_request_of_its_class) {
  if (!caches()) GTEST_SKIP() << "no reuse in this build";
  void* first = cached_allocate(1793, kCpu);
  cached_deallocate(first, 1793, kCpu);
  const AllocatorStats before = allocator_stats(kCpu);
  void* second = cached_allocate(2048, kCpu);  // another size of the same class
  EXPECT_EQ(first, second);
  const AllocatorStats after = allocator_stats(kCpu);
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.requests, before.requests + 1);
  EXPECT_EQ(after.cached_bytes, before.cached_bytes - 2048);
  cached_deallocate(second, 2048, kCpu);
}

TEST(Allocator, another_class_is_not_served_by_it) {
  void* small = cached_allocate(1792, kCpu);
  cached_deallocate(small, 1792, kCpu);
  void* larger = cached_allocate(1793, kCpu);
  EXPECT_NE(small, larger);
  cached_deallocate(larger, 1793, kCpu);
}

TEST(Allocator, counters_tell_what_is_handed_out) {
  empty_cache(kCpu);
  const AllocatorStats start = allocator_stats(kCpu);
  EXPECT_EQ(start.cached_bytes, 0u);
  void* a = cached_allocate(100, kCpu);
  void* b = cached_allocate(5000, kCpu);
  const size_t bytes = block_size(100) + block_size(5000);
  AllocatorStats now = allocator_stats(kCpu);
  EXPECT_EQ(now.requests - start.requests, 2u);
  EXPECT_EQ(now.system_allocations - start.system_allocations, 2u);
  EXPECT_EQ(now.live_blocks - start.live_blocks, 2u);
  EXPECT_EQ(now.live_bytes - start.live_bytes, bytes);
  EXPECT_GE(now.peak_live_bytes, now.live_bytes);
  cached_deallocate(a, 100, kCpu);
  cached_deallocate(b, 5000, kCpu);
  now = allocator_stats(kCpu);
  EXPECT_EQ(now.live_blocks, start.live_blocks);
  EXPECT_EQ(now.live_bytes, start.live_bytes);
  empty_cache(kCpu);
  now = allocator_stats(kCpu);
  EXPECT_EQ(now.cached_bytes, 0u);
  EXPECT_EQ(now.system_deallocations - start.system_deallocations, 2u);
}

TEST(Allocator, the_peak_is_the_most_that_was_live_at_once) {
  const size_t live = allocator_stats(kCpu).live_bytes;
  const size_t peak = allocator_stats(kCpu).peak_live_bytes;
  const size_t bytes = block_size(peak - live + (size_t{1} << 20));
  for (int i = 0; i < 2; ++i) cached_deallocate(cached_allocate(bytes, kCpu), bytes, kCpu);
  EXPECT_EQ(allocator_stats(kCpu).peak_live_bytes, live + bytes);
  empty_cache(kCpu);
}

TEST(Allocator, when_the_system_has_no_more_the_cache_is_given_back_first) {
  cached_deallocate(cached_allocate(4096, kCpu), 4096, kCpu);
  const AllocatorStats before = allocator_stats(kCpu);
  for (const size_t bytes :
       {size_t{1} << 55, size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
    EXPECT_THROW(cached_allocate(bytes, kCpu), std::bad_alloc);
  }
  const AllocatorStats after = allocator_stats(kCpu);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.live_blocks, before.live_blocks);
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.cached_bytes, 0u);
  void* data = cached_allocate(4096, kCpu);  // and it goes on working
  std::memset(data, 1, 4096);
  cached_deallocate(data, 4096, kCpu);
}

TEST(Allocator, a_tensors_memory_returns_with_its_last_view) {
  const size_t live = allocator_stats(kCpu).live_bytes;
  Tensor view;
  {
    Tensor x = Tensor::zeros({1000});
    view = x.detach();
    EXPECT_EQ(allocator_stats(kCpu).live_bytes, live + block_size(4000));
  }
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, live + block_size(4000));
  view = {};
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, live);
}

TEST(Allocator, threads_never_get_the_same_memory) {
  const AllocatorStats before = allocator_stats(kCpu);
  std::atomic<int> spoilt{0};
  const auto work = [&](int id) {
    struct Block {
      unsigned char* data;
      size_t bytes;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 2000; ++i) {
      const size_t bytes = 64 + static_cast<size_t>(i * 37 % 900);
      auto* data = static_cast<unsigned char*>(cached_allocate(bytes, kCpu));
      std::memset(data, id, bytes);
      blocks.push_back({data, bytes});
      if (blocks.size() < 20) continue;
      const Block block = blocks[static_cast<size_t>(i) % 20];
      blocks.erase(blocks.begin() + i % 20);
      spoilt += static_cast<int>(std::count_if(block.data, block.data + block.bytes,
                                               [&](unsigned char c) { return c != id; }));
      cached_deallocate(block.data, block.bytes, kCpu);
    }
    for (const Block& block : blocks) cached_deallocate(block.data, block.bytes, kCpu);
  };
  std::vector<std::thread> threads;
  for (int id = 1; id <= 4; ++id) threads.emplace_back(work, id);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(spoilt, 0);
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, before.live_bytes);
  EXPECT_EQ(allocator_stats(kCpu).live_blocks, before.live_blocks);
}

TEST(Allocator, memory_of_one_thread_may_be_freed_in_another) {
  const size_t live = allocator_stats(kCpu).live_bytes;
  std::vector<Tensor> tensors(100);
  std::thread([&] {
    for (Tensor& x : tensors) x = Tensor::ones({50});
  }).join();
  for (const Tensor& x : tensors) EXPECT_EQ(x.data<float>()[49], 1.0f);
  std::thread([&] { tensors.clear(); }).join();
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, live);
}

TEST(Pool, objects_are_counted_and_do_not_overlap) {
  const size_t live = pool_live_objects();
  struct Object {
    unsigned char* data;
    size_t bytes;
  };
  std::vector<Object> objects;
  for (size_t i = 0; i < 300; ++i) {
    const size_t bytes = 1 + i * 7;  // to 2,094: beyond the largest class too
    objects.push_back({static_cast<unsigned char*>(pool_allocate(bytes)), bytes});
    std::memset(objects.back().data, static_cast<int>(i % 251), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(objects.back().data) % alignof(std::max_align_t), 0u);
  }
  EXPECT_EQ(pool_live_objects(), live + 300);
  for (size_t i = 0; i < 300; ++i) {
    for (size_t j = 0; j < objects[i].bytes; ++j) ASSERT_EQ(objects[i].data[j], i % 251);
  }
  for (const Object& object : objects) pool_deallocate(object.data, object.bytes);
  pool_deallocate(nullptr, 64);
  EXPECT_EQ(pool_live_objects(), live);
}

TEST(Pool, threads_share_it) {
  const size_t live = pool_live_objects();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&wrong, id] {
      for (int i = 0; i < 5000; ++i) {
        int* a = static_cast<int*>(pool_allocate(64));
        int* b = static_cast<int*>(pool_allocate(64));
        *a = id;
        *b = ~id;
        wrong += *a != id || *b != ~id;
        pool_deallocate(a, 64);
        pool_deallocate(b, 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(pool_live_objects(), live);
}

}  // namespace
}  // namespace halfstep::test
