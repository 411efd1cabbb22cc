// What the kernel tests share: the kernel tables of every SIMD target that this machine can run,
// and buffers that notice when a kernel leaves its n elements.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/backends/cpu/targets.h"
#include "halfstep/core/dtype.h"
#include "halfstep/core/error.h"
#include "halfstep/core/kernels.h"

namespace halfstep::test {

struct Target {
  std::string name;
  KernelTable kernels;
};

/// Every target, best first. Their F64 kernels are all the reference ones.
inline const std::vector<Target>& every_target() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> result;
    for (const int64_t target : supported_targets()) {
      result.push_back({target_name(target), KernelTable{}});
      register_cpu_kernels_for_target(target, result.back().kernels);
    }
    return result;
  }();
  return targets;
}

inline const KernelTable& reference_kernels() { return every_target().front().kernels; }

/// n elements, poisoned, that end where an inaccessible page begins: one element too far is a
/// crash. The bytes before them are watched. Odd n make odd addresses, aligned to an element only.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t n) : n_(static_cast<size_t>(n)) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (n_ * sizeof(T) + kGuard + page - 1) / page * page + page;
    void* map = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HS_CHECK(map != MAP_FAILED, Error, "Buffer", "mmap failed");
    map_ = static_cast<unsigned char*>(map);
    HS_CHECK(mprotect(map_ + bytes_ - page, page, PROT_NONE) == 0, Error, "Buffer", "mprotect");
    data_ = reinterpret_cast<T*>(map_ + bytes_ - page - n_ * sizeof(T));
    std::memset(guard(), kPoison, kGuard + n_ * sizeof(T));
  }
  template <class Values>
  explicit Buffer(const Values& values) : Buffer(static_cast<int64_t>(values.size())) {
    for (size_t i = 0; i < n_; ++i) data_[i] = convert<T>(values[i]);
  }
  ~Buffer() { munmap(map_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return static_cast<int64_t>(n_); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

  std::vector<double> as_doubles() const {
    std::vector<double> result(n_);
    for (size_t i = 0; i < n_; ++i) result[i] = convert<double>(data_[i]);
    return result;
  }
  bool same_bits(const Buffer& other) const {
    return n_ == other.n_ && std::memcmp(data_, other.data_, n_ * sizeof(T)) == 0;
  }
  /// Whether the bytes before the elements are as they were.
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (guard()[i] != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr unsigned char kPoison = 0xA5;
  unsigned char* guard() const { return reinterpret_cast<unsigned char*>(data_) - kGuard; }

  size_t n_;
  size_t bytes_;
  unsigned char* map_;
  T* data_;
};

constexpr size_t index_of(DType dtype) { return static_cast<size_t>(dtype); }

/// Calls fn with an element of each storage type that the SIMD kernels handle.
template <class Fn>
void for_each_dtype(Fn fn) {
  fn(float{});
  fn(Half{});
  fn(BFloat16{});
}

}  // namespace halfstep::test
