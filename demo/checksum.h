// FNV-1a, to notice a file that is damaged or another one. It keeps nobody from forging one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace halfstep::demo {

class Checksum {
 public:
  void add(const void* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      value_ = (value_ ^ static_cast<const uint8_t*>(bytes)[i]) * 0x100000001b3;
    }
  }
  /// With its length, so that what follows cannot be taken for a part of it.
  void add(std::string_view text) {
    const size_t size = text.size();
    add(&size, sizeof size);
    add(text.data(), size);
  }
  template <class T>
  void add(const std::vector<T>& numbers) {
    add(numbers.data(), numbers.size() * sizeof(T));
  }

  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace halfstep::demo
