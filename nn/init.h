// Initial values of parameters.
#pragma once

#include "halfstep/core/rng.h"

namespace halfstep::nn {

/// U(-1/sqrt(fan_in), 1/sqrt(fan_in)): what torch.nn.Linear's kaiming_uniform with a = sqrt(5)
/// comes to for weight and bias.
Tensor fan_in_uniform(Generator& generator, const Shape& shape, int64_t fan_in, DType dtype,
                      Device device);

}  // namespace halfstep::nn
