// The layers: construction and forward.
#include "halfstep/nn/layers.h"

#include "halfstep/nn/init.h"

namespace halfstep::nn {

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options) {
  HS_CHECK(in > 0 && out > 0, ArgumentError, "Linear", "in = ", in, ", out = ", out,
           " given; both must be positive");
  Generator& generator = options.generator ? *options.generator : default_generator();
  const auto draw = [&](const Shape& shape) {
    return fan_in_uniform(generator, shape, in, options.dtype, options.device);
  };
  weight_ = register_parameter("weight", draw({out, in}));
  if (options.bias) bias_ = register_parameter("bias", draw({out}));
}

Tensor Linear::forward(const Tensor& x) {
  return bias_.defined() ? linear(x, weight_, bias_) : linear(x, weight_);
}

void Sequential::append(std::unique_ptr<Module> child) {
  HS_CHECK(child, ArgumentError, "Sequential", "a null module was given");
  register_module(std::to_string(children_.size()), *child);
  children_.push_back(std::move(child));
}

Module& Sequential::operator[](size_t i) {
  HS_CHECK(i < children_.size(), ArgumentError, "Sequential", "child ", i, " asked for; there are ",
           children_.size());
  return *children_[i];
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& child : children_) y = child->forward(y);
  return y;
}

}  // namespace halfstep::nn
