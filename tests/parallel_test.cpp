// The thread pool: what a kernel may rely on when it calls parallel_for, and how many threads there
// are. Results never depend on that number (see the kernel tests); these tests are about the pool.
// Also the memory functions of the CPU's kernel table.
#include "halfstep/backends/cpu/parallel.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halfstep/backends/cpu/cpu_count.h"
#include "halfstep/core/error.h"
#include "halfstep/core/kernels.h"
#include "halfstep/tests/with_threads.h"

namespace halfstep {
namespace {

using test::WithThreads;

/// The pieces of a parallel_for in order of their begin.
std::vector<std::pair<int64_t, int64_t>> pieces_of(int64_t n, int64_t grain) {
  std::vector<std::pair<int64_t, int64_t>> pieces(static_cast<size_t>(n / grain + 1), {-1, -1});
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    pieces[static_cast<size_t>(begin / grain)] = {begin, end};
  });
  while (!pieces.empty() && pieces.back().first < 0) pieces.pop_back();
  return pieces;
}

TEST(ParallelFor, pieces_do_not_depend_on_the_number_of_threads) {
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 7}, {7, 14}, {14, 21}, {21, 24}};
  for (const int threads : {1, 2, 3, 8}) {
    const WithThreads with(threads);
    EXPECT_EQ(pieces_of(24, 7), expected) << threads;
    EXPECT_EQ(pieces_of(7, 7).size(), 1u);
    EXPECT_EQ(pieces_of(8, 7).size(), 2u);
    EXPECT_EQ(pieces_of(14, 7).size(), 2u);
    EXPECT_EQ(pieces_of(0, 7).size(), 0u);
  }
}

TEST(ParallelFor, every_element_is_visited_once_in_thousands_of_jobs) {
  for (const int threads : {2, 3, 8}) {
    const WithThreads with(threads);
    std::vector<int> visits(1000);
    for (int job = 1; job <= 2000; ++job) {
      const auto n = static_cast<int64_t>(visits.size()) - job % 10;
      parallel_for(n, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // asleep
    }
    EXPECT_EQ(visits.front(), 2000) << threads;
    EXPECT_EQ(visits[990], 2000) << threads;
    EXPECT_EQ(visits[999], 200) << threads;
  }
}

/// Whether `count` threads are at work at the same time: each piece waits for the others.
bool all_come_together(int count) {
  std::atomic<int> present{0};
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  parallel_for(count, 1, [&](int64_t, int64_t) {
    ++present;
    while (present < count && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  });
  return std::chrono::steady_clock::now() < give_up;
}

TEST(ParallelFor, several_threads_work_on_one_job) {
  const WithThreads with(3);
  EXPECT_TRUE(all_come_together(3));
}

TEST(ParallelFor, a_call_from_inside_a_piece_runs_inline_with_the_same_pieces) {
  const WithThreads with(3);
  std::atomic<int> inner_pieces{0};
  std::atomic<bool> elsewhere{false};
  parallel_for(8, 1, [&](int64_t, int64_t) {
    const std::thread::id here = std::this_thread::get_id();
    parallel_for(10, 4, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() != here) elsewhere = true;
      if ((begin == 8 && end == 10) || end - begin == 4) ++inner_pieces;
    });
  });
  EXPECT_EQ(inner_pieces, 8 * 3);
  EXPECT_FALSE(elsewhere);
}

TEST(ParallelFor, callers_on_many_threads_do_not_disturb_each_other) {
  const WithThreads with(3);
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 6; ++t) {
    callers.emplace_back([&] {
      for (int job = 0; job < 300; ++job) {
        std::atomic<int64_t> sum{0};
        parallel_for(100, 9, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) sum += i;
        });
        total += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 6 * 300 * 4950);
}

TEST(ParallelFor, the_number_of_threads_may_change_between_and_inside_jobs) {
  const WithThreads with(2);
  int64_t sum = 0;
  for (const int threads : {1, 4, 2, 8, 3}) {
    std::atomic<int64_t> pieces{0};
    parallel_for(20, 1, [&](int64_t begin, int64_t) {
      if (begin == 10) set_num_threads(threads);
      ++pieces;
    });
    EXPECT_EQ(num_threads(), threads);
    sum += pieces;
  }
  EXPECT_EQ(sum, 100);
}

TEST(ParallelFor, works_in_a_child_of_fork) {
#if HALFSTEP_TSAN
  GTEST_SKIP() << "ThreadSanitizer ends a child of fork that starts threads";
#endif
  const WithThreads with(3);
  ASSERT_EQ(pieces_of(100, 7).size(), 15u);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a hang ends as a failure
    if (pieces_of(100, 7).size() != 15) _exit(1);
    if (!all_come_together(3)) _exit(2);  // with threads of its own
    set_num_threads(2);
    _exit(all_come_together(2) ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(pieces_of(100, 7).size(), 15u);  // and the parent still does
}

TEST(Threads, zero_and_too_many_are_errors) {
  const int before = num_threads();
  EXPECT_GE(before, 1);
  EXPECT_THROW(set_num_threads(0), ArgumentError);
  EXPECT_THROW(set_num_threads(-1), ArgumentError);
  EXPECT_THROW(set_num_threads(257), ArgumentError);
  EXPECT_EQ(num_threads(), before);
}

// Each runs in a process of its own, in which nobody has asked for the number yet.
TEST(Threads, the_environment_sets_the_default) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("HALFSTEP_NUM_THREADS", "5", 1);
        std::_Exit(num_threads());
      },
      testing::ExitedWithCode(5), "");
}

TEST(Threads, nonsense_in_the_environment_is_ignored_with_a_warning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* text : {"0", "-3", "4x", "many", "1000000"}) {
    EXPECT_EXIT(
        {
          setenv("HALFSTEP_NUM_THREADS", text, 1);
          std::_Exit(num_threads() == usable_cpu_count() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "HALFSTEP_NUM_THREADS is '.*'; it must be a number");
  }
}

/// A made-up /sys/fs/cgroup and /proc/self/cgroup.
class CpuCount : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / ("cgroup" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  int count() { return usable_cpu_count(root_.string(), (root_ / "self").string()); }

  std::filesystem::path root_;
};

TEST_F(CpuCount, without_a_quota_affinity_decides) {
  write("cpu.max", "max 100000");
  EXPECT_EQ(count(), usable_cpu_count("/nowhere", "/nowhere"));
  std::thread([&] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    EXPECT_EQ(count(), CPU_COUNT(&all));
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &all)) ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // of this thread
    EXPECT_EQ(count(), 1);
  }).join();
}

TEST_F(CpuCount, a_quota_limits_and_rounds_down_to_at_least_one) {
  write("cpu.max", "190000 100000");
  EXPECT_EQ(count(), 1);
  write("cpu.max", "50000 100000");
  EXPECT_EQ(count(), 1);
}

TEST_F(CpuCount, the_own_group_and_its_parents_count) {
  write("self", "0::/outer/inner");
  write("outer/inner/cpu.max", "max 100000");
  EXPECT_EQ(count(), usable_cpu_count("/nowhere", "/nowhere"));
  write("outer/cpu.max", "100000 100000");
  EXPECT_EQ(count(), 1);
}

TEST_F(CpuCount, version_1_is_read_too) {
  write("self", "5:memory:/other\n3:cpu,cpuacct:/box");
  write("cpu/box/cpu.cfs_quota_us", "-1");
  write("cpu/box/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count(), usable_cpu_count("/nowhere", "/nowhere"));
  write("cpu/box/cpu.cfs_quota_us", "100000");
  EXPECT_EQ(count(), 1);
}

TEST(CpuMemory, blocks_are_aligned_to_a_cache_line) {
  const KernelTable& cpu = kernels(Device::cpu());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65}, size_t{5} << 20}) {
    void* data = cpu.allocate(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    cpu.deallocate(data, bytes);
  }
}

TEST(CpuMemory, more_than_there_is_throws_bad_alloc) {
  const KernelTable& cpu = kernels(Device::cpu());
  for (const size_t bytes : {~size_t{0}, ~size_t{0} - 63, size_t{1} << 63, size_t{1} << 48}) {
    EXPECT_THROW(cpu.allocate(bytes), std::bad_alloc) << bytes;
  }
}

TEST(CpuMemory, copy_copies_every_byte_and_no_more) {
  const WithThreads with(3);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, (size_t{3} << 20) + 17}) {
    std::vector<unsigned char> from(bytes), to(bytes + 1, 0xEE);
    for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<unsigned char>(i * 31 % 251);
    kernels(Device::cpu()).copy(from.data(), to.data(), bytes);
    EXPECT_EQ(to.back(), 0xEE);
    to.pop_back();
    EXPECT_EQ(to, from);
  }
}

}  // namespace
}  // namespace halfstep
