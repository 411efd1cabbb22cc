// OpCall: device checks, autocast and recording, once for all ops.
#include "halfstep/autograd/op_call.h"

#include <algorithm>

#include "halfstep/autograd/grad_mode.h"
#include "halfstep/autograd/ops.h"
#include "halfstep/core/autocast_state.h"

namespace halfstep {
namespace {

/// The low-precision value of `x`: a parameter's copy is kept beside it with the version that it
/// was made from, and remade only when stale; anything else is converted.
Tensor low_precision_value(const Tensor& x, DType low) {
  if (!(x.is_leaf() && x.requires_grad() && x.dtype() == DType::F32)) return cast_data(x, low);
  CastCopy& copy = x.leaf_state().copy(low);
  if (!copy.value || copy.made_from != x.version()) {
    // A graph that still holds the old copy keeps it: its memory is not written to.
    copy.value = cast_data(x, low).ref();
    copy.made_from = x.version();
  }
  return Tensor(copy.value).detach();
}

void to_backward(Node& node, Tensor dy, Tensor* dx) { dx[0] = cast_data(dy, node.input(0).dtype); }

/// A differentiable cast whose result is `value`. ints: whether x is a parameter, and its version.
Tensor record_cast(const Tensor& x, Tensor value) {
  const OpCall call(Op::to, {&x});
  if (Node* node = call.record(value, to_backward)) {
    node->ints = {x.is_leaf() ? 1 : 0, static_cast<int64_t>(x.version()), 0, 0};
  }
  return value;
}

Tensor autocast_to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || x.dtype() == DType::F64) return x;
  if (!is_half(dtype)) return to(x, dtype);
  return record_cast(x, low_precision_value(x, dtype));
}

}  // namespace

Tensor cast_data(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x.detach();
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  const auto cast =
      kernel_for("to", kernels(x.device()).cast[static_cast<size_t>(x.dtype())], dtype);
  cast(x.raw_data(), y.mutable_raw_data(), x.numel());
  return y;
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", x);
  if (x.dtype() == dtype) return x;
  return record_cast(x, cast_data(x, dtype));
}

OpCall::OpCall(Op op, std::initializer_list<const Tensor*> inputs) : op_(op) {
  for (const Tensor* x : inputs) {
    check_defined(name(), *x, count_);
    inputs_[static_cast<size_t>(count_++)] = *x;
  }
  for (int i = 1; i < count_; ++i) {
    HS_CHECK((*this)[i].device() == device(), DeviceError, name(), str(),
             " given; all inputs must be on one device");
  }
  apply_autocast();
  for (int i = 1; i < count_; ++i) {
    HS_CHECK((*this)[i].dtype() == dtype(), DTypeError, name(), str(),
             " given; the dtypes must be equal; is one input outside autocast?");
  }
}

void OpCall::apply_autocast() {
  const CastPolicy policy = info_of(op_).policy;
  const AutocastState& state = autocast_state(device().type);
  if (policy == CastPolicy::kLowPrecision && !state.enabled && dtype() != DType::F64) {
    const auto other = device().is_cpu() ? DeviceType::CUDA : DeviceType::CPU;
    HS_CHECK(!autocast_state(other).enabled, DeviceError, name(), str(),
             " given while autocast is on for ", other == DeviceType::CPU ? "cpu" : "cuda",
             " only; it must be on for the tensors' device, or nothing is cast");
  }
  if (!state.enabled || policy == CastPolicy::kFollow) return;
  DType wanted = policy == CastPolicy::kLowPrecision ? state.dtype : DType::F32;
  if (policy == CastPolicy::kWidest) {
    wanted = dtype();
    for (int i = 1; i < count_; ++i) wanted = promote(wanted, (*this)[i].dtype());
  }
  for (int i = 0; i < count_; ++i) {
    Tensor& x = inputs_[static_cast<size_t>(i)];
    x = policy == CastPolicy::kWidest ? to(x, wanted) : autocast_to(x, wanted);
  }
}

std::string OpCall::str() const {
  std::string out;
  for (int i = 0; i < count_; ++i) out += cat(i ? ", " : "", (*this)[i]);
  return out;
}

Node* OpCall::record(Tensor& y, Node::Backward backward) const {
  const auto end = inputs_.begin() + count_;
  const bool wanted = grad_enabled() && std::any_of(inputs_.begin(), end, [](const Tensor& x) {
                        return x.requires_grad();
                      });
  if (!wanted) return nullptr;
  auto* node = new Node(op_, backward, y);
  y.impl()->grad_fn = Ref<GraphNode>(node);
  y.impl()->requires_grad = true;
  for (int i = 0; i < count_; ++i) node->add_input((*this)[i]);
  return node;
}

}  // namespace halfstep
