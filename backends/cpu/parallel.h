// parallel_for: the one way in which CPU kernels use more than one thread (step 4 of a training
// step and the sweeps). Work is cut into pieces of a fixed size, never by the number of threads, so
// a kernel gives the same bits for any number of threads. Kernels must not throw inside a piece and
// must not read thread-local modes (grad mode, autocast): pieces run on the pool's threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "halfstep/core/threads.h"

namespace halfstep {

namespace detail {

using PieceFn = void (*)(void* context, int64_t begin, int64_t end);
void run_pieces(int64_t n, int64_t grain, PieceFn fn, void* context);

}  // namespace detail

/// Calls fn(begin, end) for [0, grain), [grain, 2 grain), ... up to n, in any order and on any of
/// the threads; returns when all are done. n <= grain is a plain call of fn(0, n). A call from
/// inside a piece, or while another thread's parallel_for has the pool, runs on the caller alone,
/// with the same pieces. Never allocates once the pool's threads exist.
template <class Fn>
void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  if (n <= grain) {
    fn(int64_t{0}, n);
    return;
  }
  using F = std::remove_reference_t<Fn>;
  detail::run_pieces(
      n, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); },
      const_cast<std::remove_const_t<F>*>(&fn));
}

}  // namespace halfstep
