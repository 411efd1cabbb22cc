// Gradient check by central differences.
#include "halfstep/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "halfstep/autograd/grad_mode.h"
#include "halfstep/core/rng.h"

namespace halfstep {
namespace {

/// (sum of cotangent * (f(x + step) - f(x - step))) / 2 step along element `i` of `x`.
double central_difference(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          const std::vector<Tensor>& inputs, Tensor x, size_t i,
                          const std::vector<double>& cotangent, double step) {
  const NoGrad no_grad;
  const double centre = x.data<double>()[i];
  const auto output_at = [&](double value) {
    x.mutable_data<double>()[i] = value;
    std::vector<double> y = fn(inputs).to_vector<double>();
    HS_CHECK(y.size() == cotangent.size(), ShapeError, "gradcheck", "the function returned ",
             y.size(), " elements, and ", cotangent.size(), " at first; the shape must not change");
    return y;
  };
  std::vector<double> above, below;
  try {
    above = output_at(centre + step);
    below = output_at(centre - step);
  } catch (...) {  // the caller's input is as it was
    x.mutable_data<double>()[i] = centre;
    throw;
  }
  x.mutable_data<double>()[i] = centre;
  double product = 0.0;
  for (size_t j = 0; j < cotangent.size(); ++j) product += cotangent[j] * (above[j] - below[j]);
  return product / (2.0 * step);
}

}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          std::vector<Tensor> inputs, const GradcheckOptions& options) {
  for (Tensor& x : inputs) {
    HS_CHECK(x.dtype() == DType::F64, DTypeError, "gradcheck", x, " given; inputs must be f64");
    x.zero_grad();
    x.set_requires_grad();
  }
  const Tensor y = fn(inputs);
  Generator generator(options.seed);
  const Tensor cotangent = generator.normal(y.shape(), 0.0, 1.0, DType::F64);
  y.backward(cotangent);
  const std::vector<double> weights = cotangent.to_vector<double>();

  GradcheckResult result;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Tensor& x = inputs[k];
    const size_t n = static_cast<size_t>(x.numel());
    const std::vector<double> analytic =
        x.grad().defined() ? x.grad().to_vector<double>() : std::vector<double>(n, 0.0);
    std::vector<double> numeric(n);
    double scale = 1e-30;
    for (size_t i = 0; i < n; ++i) {
      numeric[i] = central_difference(fn, inputs, x, i, weights, options.step);
      scale = std::max({scale, std::fabs(numeric[i]), std::fabs(analytic[i])});
    }
    for (size_t i = 0; i < n; ++i) {
      const double error = std::fabs(numeric[i] - analytic[i]) / scale;
      if (!(error <= result.worst)) result.worst = error;  // NaN counts as worst
      if (error < options.tolerance || !result.ok) continue;
      result.ok = false;
      result.message = cat("input ", k, " ", x, ", element ", i, ": backward gives ", analytic[i],
                           ", differences give ", numeric[i], ", relative error ", error);
    }
  }
  return result;
}

}  // namespace halfstep
