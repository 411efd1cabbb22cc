// Device: where a tensor's elements live.
#pragma once

#include <cstdint>
#include <string>

namespace halfstep {

enum class DeviceType : uint8_t { CPU, CUDA };
inline constexpr int kDeviceTypeCount = 2;

struct Device {
  DeviceType type = DeviceType::CPU;
  int index = 0;

  static constexpr Device cpu() { return {DeviceType::CPU, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::CUDA, index}; }

  constexpr bool is_cpu() const { return type == DeviceType::CPU; }
  friend constexpr bool operator==(const Device&, const Device&) = default;

  /// "cpu" or "cuda:0".
  std::string str() const { return is_cpu() ? "cpu" : "cuda:" + std::to_string(index); }
};

}  // namespace halfstep
