// Grad mode: whether ops record history, per thread.
#pragma once

namespace halfstep {

/// Whether ops on the calling thread record history (true at a thread's start).
bool grad_enabled();

/// While it lives, ops on this thread record no history. Nests.
class [[nodiscard]] NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

}  // namespace halfstep
