// The number of threads of parallel_for during one test.
#pragma once

#include "halfstep/backends/cpu/parallel.h"

namespace halfstep::test {

class WithThreads {
 public:
  explicit WithThreads(int count) : before_(num_threads()) { set_num_threads(count); }
  ~WithThreads() { set_num_threads(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  int before_;
};

/// The numbers of threads that must all give the same bits.
inline constexpr int kThreadCounts[] = {1, 2, 3, 8};

}  // namespace halfstep::test

// A child of fork that starts threads is ended by ThreadSanitizer.
#if defined(__SANITIZE_THREAD__)
#define HALFSTEP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HALFSTEP_TSAN 1
#endif
#endif
