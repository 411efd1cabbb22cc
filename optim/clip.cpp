// Gradient norms and clipping.
#include "halfstep/optim/clip.h"

#include <cmath>

#include "halfstep/core/warning.h"
#include "halfstep/optim/grad_sweep.h"

namespace halfstep::optim {
namespace {

void check_max_norm(std::string_view op, double max_norm) {
  HS_CHECK(max_norm > 0.0, ArgumentError, op, "max_norm = ", max_norm,
           " given; it must be > 0 (inf never clips)");
}

/// Throws unless every gradient is free of loss scales.
void check_tags(std::string_view op, std::span<const Parameter> parameters) {
  if constexpr (!kGradTags) return;
  for_each_listed_grad(parameters, [&](const Parameter& parameter, const LeafState& leaf) {
    HS_CHECK(leaf.tag.kind != GradTag::Kind::kScaled, OrderError, op, "the gradient of ",
             parameter.name, " is still multiplied by the loss scale ", leaf.tag.scale,
             "; call scaler.unscale_(optimizer) first");
    HS_CHECK(
        leaf.tag.kind != GradTag::Kind::kMixed, OrderError, op, "the gradient of ", parameter.name,
        " is a sum of gradients with different loss scales; call zero_grad() before the backward "
        "that belongs to this step");
  });
}

double norm_of(std::span<const Parameter> parameters) {
  measure_grads(parameters, true);
  double sum = 0.0;
  for_each_grad(parameters, [&](size_t, const Parameter&, const LeafState& leaf) {
    sum += leaf.record.sweep.sum_squares;
  });
  return std::sqrt(sum);
}

/// Scaling a finite gradient by a factor below 1 leaves it finite, so the record stays good for
/// that.
void scale_grads(std::span<const Parameter> parameters, double factor) {
  for_each_grad(parameters, [&](size_t, const Parameter&, LeafState& leaf) {
    Tensor grad(leaf.grad);
    const bool stays_zero = leaf.zeroed_version == grad.version();
    grad.mul_(factor);
    if (stays_zero) leaf.zeroed_version = grad.version();
    leaf.record.version = grad.version();
    leaf.record.has_sum = false;
  });
}

ClipResult clip(std::span<const Parameter> parameters, double max_norm) {
  const double pre = norm_of(parameters);
  if (!std::isfinite(pre) || pre <= max_norm) return {pre, pre};
  const double factor = max_norm / (pre + 1e-12);
  scale_grads(parameters, factor);
  return {pre, pre * factor};
}

void warn_if_empty(std::string_view op, std::span<const Parameter> parameters) {
  if (!parameters.empty()) return;
  warn_once(
      "clip without parameters",
      cat("[", op, "] an empty parameter list was given; nothing is clipped; was it moved from?"));
}

}  // namespace

double compute_global_l2_norm(std::span<const Parameter> parameters) {
  check_tags("compute_global_l2_norm", parameters);
  return norm_of(parameters);
}

std::optional<NonFiniteGrad> find_non_finite_grad(std::span<const Parameter> parameters) {
  measure_grads(parameters, false);
  std::optional<NonFiniteGrad> found;
  for_each_grad(parameters, [&](size_t i, const Parameter&, const LeafState& leaf) {
    const SweepRecord& sweep = leaf.record.sweep;
    if (!found && sweep.first_non_finite >= 0) {
      found = NonFiniteGrad{i, sweep.first_non_finite, sweep.non_finite_value};
    }
  });
  return found;
}

bool has_non_finite_grad(std::span<const Parameter> parameters) {
  return find_non_finite_grad(parameters).has_value();
}

ClipResult clip_global_l2_norm(std::span<const Parameter> parameters, double max_norm) {
  check_max_norm("clip_global_l2_norm", max_norm);
  check_tags("clip_global_l2_norm", parameters);
  warn_if_empty("clip_global_l2_norm", parameters);
  return clip(parameters, max_norm);
}

double clip_grad_norm_(std::span<const Parameter> parameters, double max_norm,
                       bool error_if_nonfinite) {
  check_max_norm("clip_grad_norm_", max_norm);
  check_tags("clip_grad_norm_", parameters);
  warn_if_empty("clip_grad_norm_", parameters);
  const double pre = norm_of(parameters);
  HS_CHECK(!error_if_nonfinite || std::isfinite(pre), NonFiniteError, "clip_grad_norm_",
           "the global norm is ", pre, "; with error_if_nonfinite it must be finite");
  return clip(parameters, max_norm).pre;
}

void clip_grad_value_(std::span<const Parameter> parameters, double clip_value) {
  HS_CHECK(static_cast<float>(clip_value) > 0.0f, ArgumentError, "clip_grad_value_",
           "clip_value = ", clip_value, " given; it must be > 0 in float32");
  check_tags("clip_grad_value_", parameters);
  warn_if_empty("clip_grad_value_", parameters);
  for_each_grad(parameters, [&](size_t, const Parameter&, LeafState& leaf) {
    Tensor grad(leaf.grad);
    kernels(grad.device())
        .clamp[static_cast<size_t>(grad.dtype())](grad.mutable_raw_data(), clip_value,
                                                  grad.numel());
  });
}

double clip_scaled_grad_norm_(std::span<const Parameter> parameters, double max_norm,
                              double scale) {
  constexpr std::string_view kOp = "clip_scaled_grad_norm_";
  check_max_norm(kOp, max_norm);
  HS_CHECK(std::isfinite(scale) && scale > 0.0, ArgumentError, kOp, "scale = ", scale,
           " given; it must be finite and > 0");
  for_each_grad(parameters, [&](size_t, const Parameter& parameter, const LeafState& leaf) {
    const GradTag tag = leaf.current_tag();
    if (tag.kind == GradTag::Kind::kEmpty) return;  // zeros are right at any scale
    HS_CHECK(tag.kind == GradTag::Kind::kScaled && tag.scale == static_cast<float>(scale),
             OrderError, kOp, "the gradient of ", parameter.name, " does not carry the loss scale ",
             scale, "; every gradient must; for unscaled gradients use clip_grad_norm_");
  });
  const double scaled_norm = max_norm * scale;
  HS_CHECK(scaled_norm > 0.0 && std::isfinite(scaled_norm) == std::isfinite(max_norm),
           ArgumentError, kOp, "max_norm = ", max_norm, " times scale = ", scale,
           " given; the product must stay within float64");
  warn_if_empty(kOp, parameters);
  return clip(parameters, scaled_norm).pre / scale;
}

}  // namespace halfstep::optim
