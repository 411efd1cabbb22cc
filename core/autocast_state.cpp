// Autocast state of the calling thread.
#include "halfstep/core/autocast_state.h"

namespace halfstep {

AutocastState& autocast_state(DeviceType type) {
  thread_local AutocastState states[kDeviceTypeCount];
  return states[static_cast<int>(type)];
}

}  // namespace halfstep
