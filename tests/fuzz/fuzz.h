// What the fuzzers share: a check that ends the program, taking values from the input, and a file
// in memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "halfstep/core/error.h"
#include "halfstep/core/tensor.h"

/// Ends the program, which is how a fuzzer reports, unless `condition` holds.
#define FUZZ_CHECK(condition, ...)                                                                \
  do {                                                                                            \
    if (!(condition))                                                                             \
      ::halfstep::fuzz::fail_check(__FILE__, __LINE__, #condition, ::halfstep::cat(__VA_ARGS__)); \
  } while (false)

namespace halfstep::fuzz {

[[noreturn]] inline void fail_check(const char* file, int line, const char* condition,
                                    const std::string& text) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, condition, text.c_str());
  std::abort();
}

/// The input, taken byte by byte; zeros after its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint8_t next() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  /// One of `count` choices.
  size_t choose(size_t count) { return next() % count; }

 private:
  const uint8_t* data_;
  size_t size_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// Shape, dtype and elements, as text that is equal for equal tensors.
inline std::string bits(const Tensor& x) {
  if (!x.defined()) return "undefined";
  const size_t bytes = static_cast<size_t>(x.numel()) * size_of(x.dtype());
  return x.str() + std::string(static_cast<const char*>(x.raw_data()), bytes);
}

/// A file that has a path and lies in memory only.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view contents) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    const auto size = static_cast<ssize_t>(contents.size());
    FUZZ_CHECK(file_ >= 0 && ::write(file_, contents.data(), contents.size()) == size,
               "no file in memory");
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return cat("/proc/self/fd/", file_); }

 private:
  int file_;
};

}  // namespace halfstep::fuzz
