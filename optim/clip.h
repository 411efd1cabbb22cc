// Gradient norms and clipping. All see the gradients of a list of parameters as one vector; each
// parameter counts once, one without a gradient not at all. Squares are summed in float64.
// They use the record of the last sweep (GradScaler::unscale_ leaves one) while the gradients are
// unchanged, and touch gradients only when they clip. On gradients that carry a loss scale, or a
// mixture of scales, they throw OrderError before anything is changed. Serves step 8.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "halfstep/core/parameter.h"

namespace halfstep::optim {

/// The global norm before and after clipping.
struct ClipResult {
  double pre;
  double post;
};

/// Where the first Inf or NaN is: in the order of the list, then of the elements.
struct NonFiniteGrad {
  size_t parameter;  ///< position in the list
  int64_t index;
  float value;
};

/// sqrt of the sum of squares of all gradients; 0 if there are none. Waits for a CUDA device.
double compute_global_l2_norm(std::span<const Parameter> parameters);
std::optional<NonFiniteGrad> find_non_finite_grad(std::span<const Parameter> parameters);
bool has_non_finite_grad(std::span<const Parameter> parameters);

/// Multiplies all gradients by max_norm / (pre + 1e-12) (in float64, each product rounded once) if
/// pre > max_norm; leaves them alone if pre is within the limit or not finite. post = pre times
/// that factor, or pre. ArgumentError unless max_norm > 0 (inf never clips). An empty list warns
/// once.
ClipResult clip_global_l2_norm(std::span<const Parameter> parameters, double max_norm);

/// As torch.nn.utils.clip_grad_norm_: returns the norm before. With error_if_nonfinite it throws
/// NonFiniteError, gradients unchanged, when the norm is Inf or NaN; without, such gradients are
/// left alone as well (PyTorch multiplies them).
double clip_grad_norm_(std::span<const Parameter> parameters, double max_norm,
                       bool error_if_nonfinite = false);

/// As torch.nn.utils.clip_grad_value_: clamps every element to [-clip_value, clip_value]; NaN
/// stays.
void clip_grad_value_(std::span<const Parameter> parameters, double clip_value);

/// Clips gradients that are still multiplied by `scale`, on purpose: to max_norm * scale. Returns
/// the norm before, divided by scale. OrderError unless every gradient carries exactly that scale.
double clip_scaled_grad_norm_(std::span<const Parameter> parameters, double max_norm, double scale);

}  // namespace halfstep::optim
