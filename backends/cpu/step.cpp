// AdamW and SGD for one parameter in one pass over its arrays, the low-precision copy included
// (step 9 of a training step). Float32 arithmetic in the order of torch.optim's single-tensor
// loops; scalars are made in float64 and rounded once. Products are not fused, on purpose: the pass
// is bound by memory, and so every SIMD target gives the same bits.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/step.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements: some 10 us of memory traffic

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// The arrays as the pass sees them. Low is the copy's storage type, float if there is none.
template <class Low>
struct Pass {
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  float* max_exp_avg_sq;
  Low* low_copy;
};

/// Whether a vector of `count` elements is whole; one lane always is.
HWY_INLINE bool is_whole(size_t count) { return hn::MaxLanes(D()) == 1 || count == hn::Lanes(D()); }

template <class T>
HWY_INLINE V load(const T* p, size_t count) {
  return is_whole(count) ? LoadAs(D(), p) : LoadAsN(D(), p, count);
}

template <class T>
HWY_INLINE void store(V v, T* p, size_t count) {
  if (is_whole(count)) {
    StoreAs(v, D(), p);
  } else {
    StoreAsN(v, D(), p, count);
  }
}

template <class Low>
HWY_INLINE void store_param(V v, const Pass<Low>& pass, size_t i, size_t count) {
  store(v, pass.param + i, count);
  if constexpr (!std::is_same_v<Low, float>) store(v, pass.low_copy + i, count);
}

/// Calls update(pass, i, count) for each vector of the arrays, with the static type of the copy.
template <class Update>
void run_pass(const StepArrays& arrays, const Update& update) {
  const auto run = [&](auto* low_copy) HWY_ATTR {
    const Pass<std::remove_pointer_t<decltype(low_copy)>> pass{
        static_cast<float*>(arrays.param),          static_cast<const float*>(arrays.grad),
        static_cast<float*>(arrays.exp_avg),        static_cast<float*>(arrays.exp_avg_sq),
        static_cast<float*>(arrays.max_exp_avg_sq), low_copy};
    parallel_for(arrays.n, kGrain, [&pass, &update](int64_t begin, int64_t end) HWY_ATTR {
      const auto local = pass;
      const Update fn = update;
      const auto stop = static_cast<size_t>(end);
      const size_t lanes = hn::Lanes(D());
      auto i = static_cast<size_t>(begin);
      for (; i + lanes <= stop; i += lanes) fn(local, i, lanes);
      if (i < stop) fn(local, i, stop - i);
    });
  };
  if (arrays.low_copy == nullptr) {
    run(static_cast<float*>(nullptr));
  } else if (arrays.low_dtype == DType::F16) {
    run(static_cast<Half*>(arrays.low_copy));
  } else {
    run(static_cast<BFloat16*>(arrays.low_copy));
  }
}

/// Loshchilov & Hutter 2019, algorithm 2, as torch.optim.AdamW computes it.
struct AdamWUpdate {
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float lerp_weight;      // 1 - beta1, or -beta1 when lerping from the gradient
  bool lerp_from_grad;    // torch.lerp starts from the nearer end: beta1 = 0 gives the gradient
  float square_weight;    // 1 - beta2
  float root_correction;  // 1 / sqrt(bias_correction2): dividing by it would be a third slower
  float eps;
  float minus_step;  // -lr / bias_correction1
  bool maximize;

  explicit AdamWUpdate(const AdamWStep& s)
      : decay(static_cast<float>(1.0 - s.lr * s.weight_decay)),
        beta2(static_cast<float>(s.beta2)),
        lerp_weight(static_cast<float>(s.beta1 > 0.5 ? 1.0 - s.beta1 : -s.beta1)),
        lerp_from_grad(!(s.beta1 > 0.5)),
        square_weight(static_cast<float>(1.0 - s.beta2)),
        root_correction(static_cast<float>(1.0 / std::sqrt(s.bias_correction2))),
        eps(static_cast<float>(s.eps)),
        minus_step(static_cast<float>(-(s.lr / s.bias_correction1))),
        maximize(s.maximize) {}

  template <class Low>
  HWY_INLINE void operator()(const Pass<Low>& pass, size_t i, size_t count) const {
    const D d;
    auto grad = load(pass.grad + i, count);
    if (maximize) grad = hn::Neg(grad);
    auto exp_avg = load(pass.exp_avg + i, count);
    const auto towards_grad = hn::Mul(hn::Set(d, lerp_weight), hn::Sub(grad, exp_avg));
    exp_avg = hn::Add(lerp_from_grad ? grad : exp_avg, towards_grad);
    store(exp_avg, pass.exp_avg + i, count);

    auto exp_avg_sq = hn::Mul(load(pass.exp_avg_sq + i, count), hn::Set(d, beta2));
    exp_avg_sq = hn::Add(exp_avg_sq, hn::Mul(hn::Mul(hn::Set(d, square_weight), grad), grad));
    store(exp_avg_sq, pass.exp_avg_sq + i, count);
    if (pass.max_exp_avg_sq != nullptr) {  // amsgrad; a NaN must win, which Max does not promise
      const auto old = load(pass.max_exp_avg_sq + i, count);
      exp_avg_sq = hn::IfThenElse(hn::Or(hn::Gt(old, exp_avg_sq), hn::IsNaN(old)), old, exp_avg_sq);
      store(exp_avg_sq, pass.max_exp_avg_sq + i, count);
    }

    const auto root = hn::Mul(hn::Sqrt(exp_avg_sq), hn::Set(d, root_correction));
    const auto denominator = hn::Add(root, hn::Set(d, eps));
    const auto step = hn::Div(hn::Mul(hn::Set(d, minus_step), exp_avg), denominator);
    const auto decayed = hn::Mul(load(pass.param + i, count), hn::Set(d, decay));
    store_param(hn::Add(decayed, step), pass, i, count);
  }
};

/// As torch.optim.SGD.
struct SGDUpdate {
  float minus_lr, momentum, grad_weight, weight_decay;
  bool decays, has_momentum, first, nesterov, maximize;

  SGDUpdate(const SGDStep& s, bool has_buffer)
      : minus_lr(static_cast<float>(-s.lr)),
        momentum(static_cast<float>(s.momentum)),
        grad_weight(static_cast<float>(1.0 - s.dampening)),
        weight_decay(static_cast<float>(s.weight_decay)),
        decays(s.weight_decay != 0.0),
        has_momentum(has_buffer && s.momentum != 0.0),
        first(s.first),
        nesterov(s.nesterov),
        maximize(s.maximize) {}

  template <class Low>
  HWY_INLINE void operator()(const Pass<Low>& pass, size_t i, size_t count) const {
    const D d;
    const auto param = load(pass.param + i, count);
    auto grad = load(pass.grad + i, count);
    if (maximize) grad = hn::Neg(grad);
    if (decays) grad = hn::Add(grad, hn::Mul(hn::Set(d, weight_decay), param));
    if (has_momentum) {
      const auto mean = hn::Set(d, momentum);
      auto buffer = grad;
      if (!first) {
        buffer = hn::Add(hn::Mul(load(pass.exp_avg + i, count), mean),
                         hn::Mul(hn::Set(d, grad_weight), grad));
      }
      store(buffer, pass.exp_avg + i, count);
      grad = nesterov ? hn::Add(grad, hn::Mul(mean, buffer)) : buffer;
    }
    store_param(hn::Add(param, hn::Mul(hn::Set(d, minus_lr), grad)), pass, i, count);
  }
};

void adamw(const StepArrays& arrays, const AdamWStep& step) { run_pass(arrays, AdamWUpdate(step)); }

void sgd(const StepArrays& arrays, const SGDStep& step) {
  run_pass(arrays, SGDUpdate(step, arrays.exp_avg != nullptr));
}

void register_here(KernelTable& table) {
  table.adamw[static_cast<size_t>(DType::F32)] = adamw;
  table.sgd[static_cast<size_t>(DType::F32)] = sgd;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {

HWY_EXPORT(register_here);

void register_step(KernelTable& table) { HWY_DYNAMIC_DISPATCH(register_here)(table); }

}  // namespace halfstep
#endif  // HWY_ONCE
