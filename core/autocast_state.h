// Autocast state: per thread and per device type, read by every op's prologue on the calling
// thread and never by pool workers. amp::Autocast sets it.
#pragma once

#include "halfstep/core/device.h"
#include "halfstep/core/dtype.h"

namespace halfstep {

struct AutocastState {
  bool enabled = false;
  DType dtype = DType::F16;
};

/// The calling thread's state for tensors on `type`.
AutocastState& autocast_state(DeviceType type);

/// The low-precision dtype that autocast uses when none is named: BF16 on CPU, F16 on CUDA.
constexpr DType default_autocast_dtype(DeviceType type) {
  return type == DeviceType::CPU ? DType::BF16 : DType::F16;
}

}  // namespace halfstep
