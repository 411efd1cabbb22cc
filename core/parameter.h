// Parameter: a named leaf that an optimizer updates.
#pragma once

#include <string>
#include <vector>

#include "halfstep/core/tensor.h"

namespace halfstep {

/// A handle: copies share the value and its gradient.
struct Parameter {
  std::string name;
  Tensor value;
};

}  // namespace halfstep
