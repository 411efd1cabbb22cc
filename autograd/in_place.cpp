// The in-place ops of Tensor. They write to memory that others may see, so they refuse whatever a
// graph could silently get wrong: tensors with a history, and operands whose gradient would be
// lost.
#include "halfstep/autograd/grad_mode.h"
#include "halfstep/autograd/op_call.h"
#include "halfstep/core/kernels.h"
#include "halfstep/core/tensor.h"

namespace halfstep {
namespace {

void check_target(std::string_view op, const Tensor& y) {
  check_defined(op, y);
  HS_CHECK(
      y.is_leaf(), GraphError, op, y,
      " has a history; in-place ops are for tensors without one; use the function that returns "
      "a new tensor, or detach() first");
}

void check_operand(std::string_view op, const Tensor& y, const Tensor& x) {
  check_defined(op, x, 1);
  HS_CHECK(!(grad_enabled() && x.requires_grad()), GraphError, op, "operand ", x,
           " requires a gradient, which would be lost; use the function that returns a new tensor, "
           "or detach() the operand");
  HS_CHECK(x.device() == y.device(), DeviceError, op, y, " and ", x,
           " given; all inputs must be on one device");
}

}  // namespace

Tensor& Tensor::fill_(double value) {
  check_target("fill_", *this);
  kernels(device()).fill[static_cast<size_t>(dtype())](mutable_raw_data(), value, numel());
  return *this;
}

Tensor& Tensor::copy_(const Tensor& from) {
  check_target("copy_", *this);
  check_operand("copy_", *this, from);
  HS_CHECK(from.shape() == shape(), ShapeError, "copy_", *this, " from ", from,
           " asked for; the shapes must be equal");
  if (from.raw_data() == raw_data() && from.dtype() == dtype()) return *this;
  // Another view of this memory may overlap with the elements that are written.
  const Tensor source = shares_storage(from) ? from.clone() : from;
  const KernelTable& table = kernels(device());
  if (source.dtype() == dtype()) {
    table.copy(source.raw_data(), mutable_raw_data(),
               static_cast<size_t>(numel()) * size_of(dtype()));
  } else {
    kernel_for("copy_", table.cast[static_cast<size_t>(source.dtype())], dtype())(
        source.raw_data(), mutable_raw_data(), numel());
  }
  return *this;
}

Tensor& Tensor::in_place(BinaryOp op, const Tensor& other, std::string_view name) {
  check_target(name, *this);
  check_operand(name, *this, other);
  HS_CHECK(other.dtype() == dtype(), DTypeError, name, *this, " and ", other,
           " given; an in-place op keeps its dtype and wants operands of it; cast the operand with "
           "to()");
  const BinaryLayout layout = broadcast(name, *this, other);
  HS_CHECK(layout.lhs == Spread::kFull, ShapeError, name, *this, " and ", other,
           " given; the result must have the shape of the tensor that is written to");
  // A view of this very memory that is not read element by element in step with the writes (another
  // offset, or one row for all rows) is copied first.
  const bool in_step = layout.rhs == Spread::kFull && other.raw_data() == raw_data();
  const Tensor operand = shares_storage(other) && !in_step ? other.clone() : other;
  kernels(device()).binary[static_cast<size_t>(op)][static_cast<size_t>(dtype())](
      raw_data(), operand.raw_data(), mutable_raw_data(), layout);
  return *this;
}

Tensor& Tensor::add_(const Tensor& other) { return in_place(BinaryOp::add, other, "add_"); }
Tensor& Tensor::mul_(const Tensor& other) { return in_place(BinaryOp::mul, other, "mul_"); }

Tensor& Tensor::mul_(double factor) {
  check_target("mul_", *this);
  kernels(device()).scale[static_cast<size_t>(dtype())](mutable_raw_data(), factor, numel());
  return *this;
}

}  // namespace halfstep
