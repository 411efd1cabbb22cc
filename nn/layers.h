// The layers: Linear, GELU, MSELoss and Sequential.
#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "halfstep/autograd/ops.h"
#include "halfstep/core/rng.h"
#include "halfstep/nn/module.h"

namespace halfstep::nn {

struct LinearOptions {
  bool bias = true;
  DType dtype = DType::F32;
  Device device = Device::cpu();
  Generator* generator = nullptr;  ///< draws the initial values; default_generator() if null
};

/// y[..., out] = x[..., in] weight^T + bias, with weight [out, in] and bias [out], both drawn from
/// U(-1/sqrt(in), 1/sqrt(in)) as torch.nn.Linear.
class Linear final : public Module {
 public:
  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) override;

  const Tensor& weight() const { return weight_; }
  /// Undefined without a bias.
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_;
  Tensor bias_;
};

enum class GeluForm : uint8_t { kErf, kTanh };

/// GELU, exact (erf) by default, as torch.nn.GELU.
class GELU final : public Module {
 public:
  explicit GELU(GeluForm form = GeluForm::kErf) : form_(form) {}
  Tensor forward(const Tensor& x) override {
    return form_ == GeluForm::kErf ? gelu(x) : gelu_tanh(x);
  }

 private:
  GeluForm form_;
};

/// Modules one after another; the i-th child's parameters are named "i.name".
class Sequential final : public Module {
 public:
  template <std::derived_from<Module> M, std::derived_from<Module>... Ms>
  requires(sizeof...(Ms) > 0 || !std::same_as<M, Sequential>) explicit Sequential(M first,
                                                                                  Ms... rest) {
    append(std::make_unique<M>(std::move(first)));
    (append(std::make_unique<Ms>(std::move(rest))), ...);
  }

  Tensor forward(const Tensor& x) override;
  /// Adds a module at the end.
  void append(std::unique_ptr<Module> child);
  size_t size() const { return children_.size(); }
  /// ArgumentError if there is no i-th child.
  Module& operator[](size_t i);

 private:
  std::vector<std::unique_ptr<Module>> children_;
};

using halfstep::mse_loss;
using halfstep::Reduction;

/// Mean squared error as an object, as torch.nn.MSELoss.
class MSELoss {
 public:
  explicit MSELoss(Reduction reduction = Reduction::kMean) : reduction_(reduction) {}
  Tensor operator()(const Tensor& x, const Tensor& target) const {
    return mse_loss(x, target, reduction_);
  }

 private:
  Reduction reduction_;
};

}  // namespace halfstep::nn
