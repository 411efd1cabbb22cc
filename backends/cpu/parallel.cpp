// The thread pool behind parallel_for. One job at a time; whoever finds the pool taken works alone.
// A worker that wakes up late never delays the caller: a job is open while its caller works on it,
// workers join by counting themselves in, and the caller waits only for those that did.
#include "halfstep/backends/cpu/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "halfstep/backends/cpu/cpu_count.h"
#include "halfstep/core/error.h"
#include "halfstep/core/warning.h"

namespace halfstep {
namespace {

/// A warning from inside a kernel, which must not throw, whatever the handler does.
template <class Text>
void warn_nothrow(std::string_view kind, Text&& text) noexcept {
  try {
    warn_once(kind, text());
  } catch (...) {  // the work goes on; there is nobody to tell
  }
}

constexpr int kMaxThreads = 256;
constexpr std::chrono::microseconds kSpinTime{50};  // then sleep: waking up costs about as much

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

struct Job {
  detail::PieceFn fn;
  void* context;
  int64_t n;
  int64_t grain;
};

class Pool {
 public:
  bool try_acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }
  pid_t pid() const { return pid_; }

  // The caller has acquired the pool. With fewer threads than wanted the work goes on.
  void resize(int workers) noexcept {
    if (wanted_ == workers) return;
    wanted_ = workers;
    stop_.store(true, std::memory_order_relaxed);
    wake(static_cast<int64_t>(workers_.size()));
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stop_.store(false, std::memory_order_relaxed);
    const uint32_t seen = signal_.load(std::memory_order_relaxed);
    try {
      workers_.reserve(static_cast<size_t>(workers));
      while (static_cast<int>(workers_.size()) < workers) {
        workers_.emplace_back([this, seen] { work(seen); });
      }
    } catch (const std::exception&) {  // bad_alloc as well: a kernel works on what there is
      warn_nothrow("threads", [&] {
        return cat("[parallel_for] the system refused a thread; ", workers_.size() + 1, " of ",
                   workers + 1, " are used");
      });
    }
  }

  // The caller has acquired the pool.
  void run(const Job& job) {
    job_ = job;
    next_.store(0, std::memory_order_relaxed);
    state_.store(kOpen, std::memory_order_release);
    wake((job.n - 1) / job.grain);
    take_pieces();
    uint32_t joined = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    // A worker may have been scheduled onto this very CPU, so spinning on would keep it from
    // ending.
    for (int turn = 0; joined != 0; joined = state_.load(std::memory_order_acquire), ++turn) {
      if (turn < 100) {
        pause_briefly();
      } else if (turn < 200) {
        std::this_thread::yield();
      } else {
        state_.wait(joined, std::memory_order_acquire);
      }
    }
  }

 private:
  // state_: the number of workers in the job, plus kOpen while more may join. job_ is written only
  // when it is 0, and read only by the caller and by workers that are counted in it.
  static constexpr uint32_t kOpen = 1u << 31;

  void wake(int64_t workers) {
    signal_.fetch_add(1, std::memory_order_release);
    if (workers >= static_cast<int64_t>(workers_.size())) {
      signal_.notify_all();
    } else {
      for (int64_t i = 0; i < workers; ++i) signal_.notify_one();
    }
  }

  void take_pieces() {
    const Job job = job_;
    const int64_t pieces = (job.n - 1) / job.grain + 1;
    for (;;) {
      const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces) return;
      const int64_t begin = piece * job.grain;
      job.fn(job.context, begin, begin + std::min(job.grain, job.n - begin));
    }
  }

  bool join() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while (state & kOpen) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void work(uint32_t seen) {
    for (;;) {
      const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
      for (int i = 1; signal_.load(std::memory_order_relaxed) == seen; ++i) {
        pause_briefly();
        if (i % 64 == 0 && std::chrono::steady_clock::now() > give_up) break;
      }
      signal_.wait(seen, std::memory_order_acquire);
      seen = signal_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      if (!join()) continue;
      take_pieces();
      state_.fetch_sub(1, std::memory_order_acq_rel);
      state_.notify_one();  // the caller may be asleep
    }
  }

  const pid_t pid_ = getpid();
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
  int wanted_ = 0;  // workers_ has fewer if the system refused some
  Job job_{};
  alignas(64) std::atomic<uint32_t> signal_{0};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};  // 0: not decided yet

/// This process's pool. Never destroyed: its threads may outlive every static object. A child of
/// fork() has its parent's pool without the threads, and with locks in any state: it makes its own.
/// Null if there is no memory for one.
Pool* pool() {
  Pool* current = g_pool.load(std::memory_order_acquire);
  while (current == nullptr || current->pid() != getpid()) {
    Pool* fresh = new (std::nothrow) Pool;
    if (fresh == nullptr) return nullptr;
    if (g_pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return fresh;
    delete fresh;
  }
  return current;
}

int default_threads() {
  const char* text = std::getenv("HALFSTEP_NUM_THREADS");
  if (text != nullptr && *text != '\0') {
    int count = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, count);
    if (error == std::errc{} && stop == end && count >= 1 && count <= kMaxThreads) return count;
    warn_nothrow("HALFSTEP_NUM_THREADS", [&] {
      return cat("[parallel_for] HALFSTEP_NUM_THREADS is '", text,
                 "'; it must be a number from 1 to ", kMaxThreads, "; it is ignored");
    });
  }
  return std::min(usable_cpu_count(), kMaxThreads);
}

}  // namespace

int num_threads() {
  int count = g_threads.load(std::memory_order_relaxed);
  if (count != 0) return count;
  const int decided = default_threads();
  // Another thread may have set a number meanwhile; that one holds.
  return g_threads.compare_exchange_strong(count, decided, std::memory_order_relaxed) ? decided
                                                                                      : count;
}

void set_num_threads(int count) {
  HS_CHECK(count >= 1 && count <= kMaxThreads, ArgumentError, "set_num_threads", count,
           " threads given; it must be from 1 to ", kMaxThreads,
           "; the default already follows the CPUs that this process may use");
  g_threads.store(count, std::memory_order_relaxed);
}

namespace detail {

void run_pieces(int64_t n, int64_t grain, PieceFn fn, void* context) {
  const int threads = num_threads();
  if (threads > 1) {
    Pool* p = pool();
    if (p != nullptr && p->try_acquire()) {
      p->resize(threads - 1);
      p->run(Job{fn, context, n, grain});
      p->release();
      return;
    }
  }
  for (int64_t begin = 0; begin < n; begin += grain) {
    fn(context, begin, begin + std::min(grain, n - begin));
  }
}

}  // namespace detail
}  // namespace halfstep
