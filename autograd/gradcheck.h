// Gradient check: compares backward with central differences in float64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "halfstep/core/tensor.h"

namespace halfstep {

struct GradcheckOptions {
  double step = 1e-6;       ///< of the central difference
  double tolerance = 1e-7;  ///< on max |difference| / max |gradient| of each input
  uint64_t seed = 1;        ///< of the random cotangent
};

struct GradcheckResult {
  bool ok = true;
  double worst = 0.0;   ///< largest relative error over all inputs
  std::string message;  ///< names input, index, both values; empty if ok
};

/// Checks the gradients of `fn` (float64 tensors in, one float64 tensor of any shape out) at
/// `inputs` against differences along every coordinate, for one random cotangent. The outputs of
/// the two sides are subtracted before the product with the cotangent, which keeps the rounding
/// error small. Throws DTypeError if an input is not F64. The inputs' gradients are replaced.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          std::vector<Tensor> inputs, const GradcheckOptions& options = {});

}  // namespace halfstep
