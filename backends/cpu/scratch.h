// Scratch: working memory of one kernel call, from the caching allocator, so that a kernel in
// steady state takes nothing from the system. Taken by the thread that calls the kernel and before
// its pieces start: how many blocks a step needs must not depend on how threads happen to overlap.
#pragma once

#include <cstddef>

#include "halfstep/core/allocator.h"
#include "halfstep/core/device.h"

namespace halfstep {

template <class T>
class Scratch {
 public:
  /// Room for `count` elements of a trivial T, contents undefined; 0 takes nothing.
  explicit Scratch(int64_t count)
      : bytes_(static_cast<size_t>(count) * sizeof(T)),
        data_(bytes_ == 0 ? nullptr : static_cast<T*>(cached_allocate(bytes_, Device::cpu()))) {}
  ~Scratch() {
    if (data_ != nullptr) cached_deallocate(data_, bytes_, Device::cpu());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() { return data_; }
  T& operator[](int64_t i) { return data_[i]; }

 private:
  size_t bytes_;
  T* data_;
};

}  // namespace halfstep
