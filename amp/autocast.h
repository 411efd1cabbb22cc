// Autocast: while it lives, ops on this thread run in low precision where that is safe. Every op
// has one policy (core/elementwise.def, core/family.def), the same on all devices.
#pragma once

#include <string>

#include "halfstep/core/autocast_state.h"

namespace halfstep::amp {

/// Scoped and nestable; restores what was before, also when an exception leaves the scope. State is
/// per thread and per device type: a thread started inside a scope begins without autocast.
/// Backward runs in the dtypes of the forward, inside or outside of the scope.
class Autocast {
 public:
  /// ArgumentError unless `dtype` is F16 or BF16 (any dtype goes with enabled = false, which
  /// switches autocast off for the scope).
  [[nodiscard]] explicit Autocast(Device device, DType dtype, bool enabled = true);
  /// With the device's default dtype: BF16 on CPU, F16 on CUDA.
  [[nodiscard]] explicit Autocast(Device device)
      : Autocast(device, default_autocast_dtype(device.type)) {}
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  DeviceType type_;
  AutocastState previous_;
};

/// Whether autocast is on for the calling thread and device, and in which dtype.
bool is_autocast_enabled(Device device);
DType autocast_dtype(Device device);

/// The table of all ops with policy, inputs and output dtype, one line each.
std::string autocast_table();

}  // namespace halfstep::amp
