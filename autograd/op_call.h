// OpCall: the prologue and epilogue that every differentiable op shares: checks that inputs are
// defined and on one device, asks the autocast policy, checks dtypes, and records the node.
// Serves steps 2 and 3 of a training step.
#pragma once

#include <array>
#include <initializer_list>

#include "halfstep/autograd/node.h"
#include "halfstep/core/kernels.h"
#include "halfstep/core/tensor.h"

namespace halfstep {

class OpCall {
 public:
  /// Takes up to three inputs. After it, all inputs are on one device and have one dtype, else it
  /// has thrown DeviceError or DTypeError naming op, dtypes, shapes and devices.
  OpCall(Op op, std::initializer_list<const Tensor*> inputs);

  /// The i-th input after autocast.
  const Tensor& operator[](int i) const { return inputs_[static_cast<size_t>(i)]; }
  std::string_view name() const { return info_of(op_).name; }
  Device device() const { return inputs_[0].device(); }
  DType dtype() const { return inputs_[0].dtype(); }
  const KernelTable& table() const { return kernels(device()); }
  /// The inputs for a message: "f16[8, 16] on cpu, f32[32, 16] on cpu".
  std::string str() const;

  /// Gives `y` a history if any input requires a gradient and grad mode is on, and returns its node
  /// to save things in; else returns null.
  Node* record(Tensor& y, Node::Backward backward) const;

 private:
  void apply_autocast();

  Op op_;
  int count_ = 0;
  std::array<Tensor, Node::kMaxInputs> inputs_;
};

/// ArgumentError in `op`'s name if `x`, its input number `input`, holds no tensor.
inline void check_defined(std::string_view op, const Tensor& x, int input = 0) {
  HS_CHECK(x.defined(), ArgumentError, op, "input ", input,
           " is undefined; every input must hold a tensor");
}

/// The entry of a per-dtype table; DTypeError in `op`'s name if the device has no such kernel.
template <class Fn>
Fn kernel_for(std::string_view op, const ByDType<Fn>& table, DType dtype) {
  const Fn fn = table[static_cast<size_t>(dtype)];
  HS_CHECK(fn, DTypeError, op, name_of(dtype), " given; this op has no kernel for it here");
  return fn;
}

/// `x` as `dtype` without history (the same memory if it has that dtype already).
Tensor cast_data(const Tensor& x, DType dtype);

}  // namespace halfstep
