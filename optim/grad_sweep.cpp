// Sweeps: collecting gradients per device and renewing their records.
#include "halfstep/optim/grad_sweep.h"

#include <atomic>

namespace halfstep::optim {
namespace {

/// Runs `sweep(table, items)` over the gradients that `wanted` picks, one call per run of
/// parameters on the same device (so one call when all are). Records become fresh only after their
/// sweep: one that throws leaves none that describes what was never looked at.
template <class Wanted, class Sweep>
void sweep_grads(std::span<const Parameter> parameters, bool writes, Wanted&& wanted,
                 Sweep&& sweep) {
  // These keep their capacity: a steady step does not allocate.
  thread_local std::vector<SweepItem> items;
  thread_local std::vector<LeafState*> leaves;
  items.clear();
  leaves.clear();
  Device device = Device::cpu();
  const auto flush = [&] {
    if (!items.empty()) sweep(kernels(device), items);
    for (LeafState* leaf : leaves) {
      leaf->record.valid = true;
      leaf->record.has_sum = true;
      leaf->record.version = leaf->grad->storage->version();
    }
    items.clear();
    leaves.clear();
  };
  for_each_grad(parameters, [&](size_t, const Parameter&, LeafState& leaf) {
    if (!wanted(leaf)) return;
    Tensor grad(leaf.grad);
    if (!(grad.device() == device)) flush();
    device = grad.device();
    leaf.record.valid = false;
    leaves.push_back(&leaf);
    void* data = writes ? grad.mutable_raw_data() : const_cast<void*>(grad.raw_data());
    items.push_back({data, grad.numel(), grad.dtype(), &leaf.record.sweep});
  });
  flush();
}

}  // namespace

uint64_t next_visit() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool is_record_fresh(const LeafState& leaf, bool with_sum) {
  return leaf.record.valid && leaf.record.version == leaf.grad->storage->version() &&
         (leaf.record.has_sum || !with_sum);
}

void measure_grads(std::span<const Parameter> parameters, bool with_sum) {
  sweep_grads(
      parameters, false, [&](const LeafState& leaf) { return !is_record_fresh(leaf, with_sum); },
      [](const KernelTable& table, const std::vector<SweepItem>& items) {
        table.measure(items.data(), static_cast<int64_t>(items.size()));
      });
}

void unscale_grads(std::span<const Parameter> parameters, float factor) {
  sweep_grads(
      parameters, true, [](const LeafState&) { return true; },
      [factor](const KernelTable& table, const std::vector<SweepItem>& items) {
        table.unscale(items.data(), static_cast<int64_t>(items.size()), factor);
      });
}

}  // namespace halfstep::optim
