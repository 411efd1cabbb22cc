// Grad mode of the calling thread.
#include "halfstep/autograd/grad_mode.h"

#include <utility>

namespace halfstep {
namespace {

thread_local bool enabled = true;

}  // namespace

bool grad_enabled() { return enabled; }

NoGrad::NoGrad() : previous_(std::exchange(enabled, false)) {}
NoGrad::~NoGrad() { enabled = previous_; }

}  // namespace halfstep
