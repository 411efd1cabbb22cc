// Optimizer: construction checks, the checks before a step, masters and low-precision copies.
#include "halfstep/optim/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "halfstep/autograd/op_call.h"
#include "halfstep/optim/grad_sweep.h"

namespace halfstep::optim {
namespace {

std::atomic<uint64_t> next_id{1};

}  // namespace

Optimizer::Optimizer(std::string_view name, std::vector<std::vector<Parameter>> groups)
    : name_(name), id_(next_id.fetch_add(1, std::memory_order_relaxed)) {
  HS_CHECK(!groups.empty(), ArgumentError, name,
           "no parameter groups given; at least one is needed");
  for (std::vector<Parameter>& group : groups) {
    HS_CHECK(!group.empty(), ArgumentError, name,
             "an empty parameter list was given; was it moved from, or does the model have none?");
    for (Parameter& parameter : group) {
      const Tensor& value = parameter.value;
      HS_CHECK(value.defined() && value.is_leaf() && value.requires_grad(), ArgumentError, name,
               "parameter ", parameter.name, " is ", value,
               "; it must be a leaf that requires a gradient");
      Tensor master = is_half(value.dtype()) ? cast_data(value, DType::F32) : Tensor();
      slots_.push_back({value.device(), std::move(master), value.version(), {}});
      parameters_.push_back(std::move(parameter));
    }
    group_ends_.push_back(parameters_.size());
  }
  check_disjoint();
}

// Each element must be updated once, so no two parameters may share memory.
void Optimizer::check_disjoint() const {
  std::vector<std::pair<const std::byte*, const Parameter*>> by_address;
  for (const Parameter& parameter : parameters_) {
    by_address.emplace_back(static_cast<const std::byte*>(parameter.value.raw_data()), &parameter);
  }
  std::ranges::sort(by_address);
  for (size_t i = 1; i < by_address.size(); ++i) {
    const auto& [begin, before] = by_address[i - 1];
    const size_t bytes =
        static_cast<size_t>(before->value.numel()) * size_of(before->value.dtype());
    const Parameter& parameter = *by_address[i].second;
    HS_CHECK(by_address[i].first >= begin + bytes && by_address[i].first != begin, ArgumentError,
             name_, "parameter ", parameter.name, " was given twice, or shares memory with ",
             before->name, "; each element must be updated once");
  }
}

size_t Optimizer::group_of(size_t parameter) const {
  size_t group = 0;
  while (parameter >= group_ends_[group]) ++group;
  return group;
}

size_t Optimizer::check_group(size_t group) const {
  HS_CHECK(group < group_count(), ArgumentError, name_, "group ", group, " asked for; there are ",
           group_count());
  return group;
}

size_t Optimizer::check_parameter(size_t parameter) const {
  HS_CHECK(parameter < parameters_.size(), ArgumentError, name_, "parameter ", parameter,
           " asked for; there are ", parameters_.size());
  return parameter;
}

void Optimizer::set_lr(double lr) {
  std::vector<double> before;
  try {
    for (size_t group = 0; group < group_count(); ++group) {
      before.push_back(this->lr(group));
      set_lr(group, lr);
    }
  } catch (...) {  // a group whose other options do not go with it: all keep what they had
    for (size_t group = 0; group < before.size(); ++group) set_lr(group, before[group]);
    throw;
  }
}

void Optimizer::zero_grad(bool set_to_none) {
  for (Parameter& parameter : parameters_) parameter.value.zero_grad(set_to_none);
}

Tensor Optimizer::zeros_for(size_t i) const {
  const Tensor& value = parameters_[i].value;
  return Tensor::zeros(value.shape(), promote(value.dtype(), DType::F32), value.device());
}

void Optimizer::step() {
  for (size_t i = 0; i < parameters_.size(); ++i) check(parameters_[i], slots_[i]);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].value.grad().defined()) continue;
    refresh(parameters_[i], slots_[i]);
  }
  bool updated = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].value.grad().defined()) continue;
    apply(i);
    updated = true;
  }
  step_count_ += updated;
}

void Optimizer::check(const Parameter& parameter, const Slot& slot) const {
  HS_CHECK(parameter.value.device() == slot.device, DeviceError, cat(name_, ".step"), "parameter ",
           parameter.name, " is on ", parameter.value.device(), " and was on ", slot.device,
           " when the optimizer was made; make the optimizer after moving the model");
  const Tensor grad = parameter.value.grad();
  if (!grad.defined()) return;
  const LeafState& leaf = parameter.value.leaf_state();
  HS_CHECK(leaf.tag.kind != GradTag::Kind::kScaled, OrderError, cat(name_, ".step"),
           "the gradient of ", parameter.name, " is still multiplied by the loss scale ",
           leaf.tag.scale,
           "; call scaler.step(optimizer) instead of optimizer.step(), or unscale_ it first");
  HS_CHECK(
      leaf.tag.kind != GradTag::Kind::kMixed, OrderError, cat(name_, ".step"), "the gradient of ",
      parameter.name,
      " is a sum of gradients with different loss scales; call zero_grad() before the backward "
      "that belongs to this step");
  HS_CHECK(!is_record_fresh(leaf, false) || leaf.record.sweep.first_non_finite < 0, NonFiniteError,
           cat(name_, ".step"), "the gradient of ", parameter.name, " holds ",
           leaf.record.sweep.non_finite_value, " at index ", leaf.record.sweep.first_non_finite,
           "; a step would spread it over the weights; scaler.step(optimizer) skips such a step");
}

void Optimizer::refresh(const Parameter& parameter, Slot& slot) {
  if (!is_half(parameter.value.dtype())) return;
  if (slot.master_version != parameter.value.version()) {
    // Written to from outside since: the parameter is the new master, unless it is still what the
    // master rounds to (as after loading a checkpoint).
    if (cast_data(slot.master, parameter.value.dtype()).to_vector<float>() !=
        parameter.value.to_vector<float>()) {
      slot.master = cast_data(parameter.value, DType::F32);
    }
  }
  slot.wide_grad = cast_data(parameter.value.grad(), DType::F32);
}

void Optimizer::apply(size_t i) {
  Tensor& value = parameters_[i].value;
  Slot& slot = slots_[i];
  const Tensor grad = value.grad();
  StepArrays arrays{};
  arrays.n = value.numel();
  if (is_half(value.dtype())) {
    arrays.param = slot.master.mutable_raw_data();
    arrays.grad = slot.wide_grad.raw_data();
    arrays.low_copy = value.mutable_raw_data();
    arrays.low_dtype = value.dtype();
    slot.master_version = value.version();
    update(i, arrays, DType::F32);
    slot.wide_grad = {};
    return;
  }
  // A fresh low-precision copy stays fresh: the kernel writes it in the same pass, unless a graph
  // still holds it.
  CastCopy* copy = nullptr;
  for (CastCopy& candidate : value.leaf_state().copies) {
    if (candidate.value && candidate.made_from == value.version() &&
        candidate.value->storage->use_count() == 1) {
      copy = &candidate;
      break;
    }
  }
  if (copy) {
    Tensor low(copy->value);
    arrays.low_copy = low.mutable_raw_data();
    arrays.low_dtype = low.dtype();
  }
  arrays.param = value.mutable_raw_data();
  arrays.grad = grad.raw_data();
  if (copy) copy->made_from = value.version();
  update(i, arrays, value.dtype());
}

StateDict Optimizer::state_dict() const {
  StateDict out;
  save(out);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].master.defined())
      out.tensors[cat("state.", i, ".master")] = slots_[i].master.clone();
  }
  return out;
}

TakeOver Optimizer::prepare_load(const StateDict& state) {
  StateReader reader(cat(name_, ".load_state_dict"), state);
  std::vector<Tensor> masters(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!is_half(parameters_[i].value.dtype())) continue;
    masters[i] = reader.tensor(cat("state.", i, ".master"), slots_[i].master);
  }
  TakeOver take_over = load(reader);
  reader.finish();
  return [this, take_over = std::move(take_over), masters = std::move(masters)] {
    take_over();
    for (size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].master = masters[i];
      slots_[i].master_version = 0;  // compared with the parameter at the next step
    }
  };
}

}  // namespace halfstep::optim
