// Sweeps over the gradients of a list of parameters: fresh records are used, stale ones renewed in
// one kernel call. Shared by clipping and by GradScaler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halfstep/core/kernels.h"
#include "halfstep/core/parameter.h"

namespace halfstep::optim {

/// Whether the record beside the gradient of `leaf` describes its present contents; `with_sum` asks
/// for the sum of squares as well.
bool is_record_fresh(const LeafState& leaf, bool with_sum);

/// A number that no earlier visit has had.
uint64_t next_visit();

/// Calls fn(parameter, its leaf state) for each parameter that has a gradient, as often as it
/// stands in the list: for checks, which may be repeated.
template <class Fn>
void for_each_listed_grad(std::span<const Parameter> parameters, Fn&& fn) {
  for (const Parameter& parameter : parameters) {
    const auto& leaf = parameter.value.impl()->leaf;
    if (leaf && leaf->grad) fn(parameter, *leaf);
  }
}

/// Calls fn(position in the list, parameter, its leaf state) for each distinct parameter that has a
/// gradient, in order.
template <class Fn>
void for_each_grad(std::span<const Parameter> parameters, Fn&& fn) {
  const uint64_t visit = next_visit();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& value = parameters[i].value;
    if (!value.impl()->leaf) continue;
    LeafState& leaf = *value.impl()->leaf;
    if (!leaf.grad || leaf.last_visit == visit) continue;
    leaf.last_visit = visit;
    fn(i, parameters[i], leaf);
  }
}

/// Renews the records of gradients that have changed since their last sweep. Reads only.
void measure_grads(std::span<const Parameter> parameters, bool with_sum);

/// Multiplies all gradients by `factor` and renews their records, in one sweep.
void unscale_grads(std::span<const Parameter> parameters, float factor);

}  // namespace halfstep::optim
