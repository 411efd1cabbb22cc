// The replaced functions: each counts, and either fails or does what the real one does. fsync never
// reaches the disk, which is slow and no part of what is tested.
#include "halfstep/tests/faults.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

namespace halfstep::test {
namespace {

// One thread only: a test of this kind runs without others.
bool active = false;
bool next_write_fails = false;
FaultPlan plan_now;
FaultRecord* record;

int error_of(Fault fault) {
  switch (fault) {
    case Fault::kMemory:
      return ENOMEM;
    case Fault::kInterruptRead:
    case Fault::kInterruptWrite:
      return EINTR;
    default:
      return EIO;
  }
}

bool fails(Fault fault) {
  if (!active) return false;
  const int64_t call = record->calls[static_cast<size_t>(fault)]++;
  if (fault == Fault::kOpen && static_cast<size_t>(call) < record->news_at_open.size()) {
    record->news_at_open[static_cast<size_t>(call)] = record->count(Fault::kNew);
  }
  if (fault != plan_now.fault || plan_now.at < 0) return false;
  if (call != plan_now.at && !(plan_now.stays && call > plan_now.at)) return false;
  record->failed = true;
  errno = error_of(fault);
  return true;
}

void* allocate(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  if (fails(Fault::kNew)) throw std::bad_alloc();
  const size_t rounded = std::max<size_t>(1, (bytes + alignment - 1) / alignment) * alignment;
  void* data = nullptr;
  if (::posix_memalign(&data, alignment, rounded) != 0) throw std::bad_alloc();
  return data;
}

}  // namespace

void start_faults(const FaultPlan& plan, FaultRecord& into) {
  plan_now = plan;
  record = &into;
  active = true;
}
void stop_faults() { active = false; }

}  // namespace halfstep::test

using halfstep::test::allocate;
using halfstep::test::fails;
using halfstep::test::Fault;

// The nothrow forms call these. Not inlined, or the compiler sees free() meet new.
#define HS_REPLACED [[gnu::noinline]]
HS_REPLACED void* operator new(size_t bytes) { return allocate(bytes); }
HS_REPLACED void* operator new[](size_t bytes) { return allocate(bytes); }
HS_REPLACED void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
HS_REPLACED void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
HS_REPLACED void operator delete(void* data) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, size_t) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data, size_t) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }

extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
int __real_open(const char* path, int flags, ...);
std::FILE* __real_fopen(const char* path, const char* mode);
ssize_t __real_pread(int file, void* data, size_t bytes, off_t offset);
ssize_t __real_write(int file, const void* data, size_t bytes);
int __real_ftruncate(int file, off_t bytes);
int __real_rename(const char* from, const char* to);
int __real_close(int file);

void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails(Fault::kMemory) ? nullptr : __real_aligned_alloc(alignment, bytes);
}

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  return fails(Fault::kOpen) ? -1 : __real_open(path, flags, mode);
}

std::FILE* __wrap_fopen(const char* path, const char* mode) {
  return fails(Fault::kFopen) ? nullptr : __real_fopen(path, mode);
}

ssize_t __wrap_pread(int file, void* data, size_t bytes, off_t offset) {
  return fails(Fault::kRead) || fails(Fault::kInterruptRead)
             ? -1
             : __real_pread(file, data, bytes, offset);
}

ssize_t __wrap_write(int file, const void* data, size_t bytes) {
  if (fails(Fault::kWrite) || fails(Fault::kInterruptWrite)) return -1;
  if (std::exchange(halfstep::test::next_write_fails, false)) {
    errno = ENOSPC;
    return -1;
  }
  if (bytes > 1 && fails(Fault::kShortWrite)) {
    bytes /= 2;
    halfstep::test::next_write_fails = true;
  }
  return __real_write(file, data, bytes);
}

int __wrap_fsync(int) { return fails(Fault::kFsync) ? -1 : 0; }

int __wrap_ftruncate(int file, off_t bytes) {
  return fails(Fault::kTruncate) ? -1 : __real_ftruncate(file, bytes);
}

int __wrap_rename(const char* from, const char* to) {
  return fails(Fault::kRename) ? -1 : __real_rename(from, to);
}

int __wrap_close(int file) {
  const int result = __real_close(file);
  if (!fails(Fault::kClose)) return result;
  errno = EIO;
  return -1;
}
}
