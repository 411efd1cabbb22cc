// Storage: a counted block of element memory with the version that every write advances.
#pragma once

#include <cstddef>
#include <cstdint>

#include "halfstep/core/allocator.h"
#include "halfstep/core/device.h"
#include "halfstep/core/ref.h"

namespace halfstep {

/// Tensors that share memory (views) share the Storage and so the version.
class Storage final : public RefCounted<Storage> {
 public:
  Storage(size_t bytes, Device device)
      : data_(cached_allocate(bytes, device)), bytes_(bytes), device_(device) {}
  ~Storage() { cached_deallocate(data_, bytes_, device_); }

  void* data() const { return data_; }
  Device device() const { return device_; }
  uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  void* data_;
  size_t bytes_;
  Device device_;
  uint64_t version_ = 0;
};

}  // namespace halfstep
