// Initial values of parameters.
#include "halfstep/nn/init.h"

#include <cmath>

#include "halfstep/core/kernels.h"

namespace halfstep::nn {

Tensor fan_in_uniform(Generator& generator, const Shape& shape, int64_t fan_in, DType dtype,
                      Device device) {
  kernels(device);  // throws before anything is drawn if the device is not there
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  const Tensor host = generator.uniform(shape, -bound, bound, dtype);
  if (device.is_cpu()) return host;
  // GCOVR_EXCL_START: needs a device besides the CPU
  Tensor y = Tensor::empty(shape, dtype, device);
  kernels(device).copy_from_host(host.raw_data(), y.mutable_raw_data(),
                                 static_cast<size_t>(host.numel()) * size_of(dtype));
  return y;
  // GCOVR_EXCL_STOP
}

}  // namespace halfstep::nn
