// Reductions: sum, mean, norm and mse_loss.
#include "halfstep/autograd/op_call.h"
#include "halfstep/autograd/ops.h"

namespace halfstep {
namespace {

// ints: ReduceDims; number: the divisor.
void reduce_backward(Node& node, Tensor dy, Tensor* dx) {
  dx[0] = Tensor::empty(node.input(0).shape, dy.dtype(), dy.device());
  kernel_for(node.name(), kernels(dy.device()).expand, dy.dtype())(
      dy.raw_data(), dx[0].mutable_raw_data(), {node.ints[0], node.ints[1], node.ints[2]},
      node.number);
}

Tensor reduce(const OpCall& call, const ReduceDims& dims, const Shape& y_shape, bool is_mean) {
  const Tensor& x = call[0];
  Tensor y = Tensor::empty(y_shape, x.dtype(), x.device());
  const double divisor = is_mean ? static_cast<double>(dims.n) : 1.0;
  kernel_for(call.name(), call.table().reduce_sum, x.dtype())(x.raw_data(), y.mutable_raw_data(),
                                                              dims, divisor);
  if (Node* node = call.record(y, reduce_backward)) {
    node->ints = {dims.outer, dims.n, dims.inner, 0};
    node->number = divisor;
  }
  return y;
}

Tensor reduce_all(Op op, const Tensor& x) {
  const OpCall call(op, {&x});
  return reduce(call, {1, x.numel(), 1}, {}, op == Op::mean);
}

Tensor reduce_dim(Op op, const Tensor& x, int dim) {
  const OpCall call(op, {&x});
  const int axis = x.shape().axis(dim, call.name());
  ReduceDims dims{1, x.shape()[axis], 1};
  int64_t kept[Shape::kMaxRank];
  size_t kept_count = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (i == axis) continue;
    kept[kept_count++] = x.shape()[i];
    (i < axis ? dims.outer : dims.inner) *= x.shape()[i];
  }
  return reduce(call, dims, Shape(std::span<const int64_t>(kept, kept_count)), op == Op::mean);
}

void norm_backward(Node& node, Tensor dy, Tensor* dx) {
  const Tensor x = node.saved(0), y = node.saved(1);
  dx[0] = empty_like(x);
  kernel_for(node.name(), kernels(dy.device()).norm_backward, dy.dtype())(
      dy.raw_data(), x.raw_data(), y.raw_data(), dx[0].mutable_raw_data(), x.numel());
}

// number: the divisor; the target's gradient is the input's with the other sign.
void mse_backward(Node& node, Tensor dy, Tensor* dx) {
  const Tensor x = node.saved(0), target = node.saved(1);
  const auto kernel = kernel_for(node.name(), kernels(dy.device()).mse_backward, dy.dtype());
  for (int i = 0; i < 2; ++i) {
    if (!node.wants(i)) continue;
    dx[i] = empty_like(x);
    kernel(dy.raw_data(), x.raw_data(), target.raw_data(), dx[i].mutable_raw_data(), x.numel(),
           i == 0 ? node.number : -node.number);
  }
}

}  // namespace

Tensor sum(const Tensor& x) { return reduce_all(Op::sum, x); }
Tensor sum(const Tensor& x, int dim) { return reduce_dim(Op::sum, x, dim); }
Tensor mean(const Tensor& x) { return reduce_all(Op::mean, x); }
Tensor mean(const Tensor& x, int dim) { return reduce_dim(Op::mean, x, dim); }

Tensor norm(const Tensor& input) {
  const OpCall call(Op::norm, {&input});
  const Tensor& x = call[0];
  Tensor y = Tensor::empty({}, x.dtype(), x.device());
  kernel_for(call.name(), call.table().norm, x.dtype())(x.raw_data(), y.mutable_raw_data(),
                                                        x.numel());
  if (Node* node = call.record(y, norm_backward)) {
    node->save(x);
    node->save(y);
  }
  return y;
}

Tensor mse_loss(const Tensor& x_in, const Tensor& target_in, Reduction reduction) {
  check_defined("mse_loss", x_in);
  check_defined("mse_loss", target_in, 1);
  // The difference of halves is taken in float32 inside and outside autocast.
  const DType dtype = promote(promote(x_in.dtype(), target_in.dtype()), DType::F32);
  const Tensor x_wide = to(x_in, dtype), target_wide = to(target_in, dtype);
  const OpCall call(Op::mse_loss, {&x_wide, &target_wide});
  const Tensor& x = call[0];
  const Tensor& target = call[1];
  HS_CHECK(x.shape() == target.shape(), ShapeError, call.name(), call.str(),
           " given; the shapes must be equal (nothing is broadcast: [n, 1] with [n] would compare "
           "every pair)");
  Tensor loss = Tensor::empty({}, dtype, x.device());
  const double divisor = reduction == Reduction::kMean ? static_cast<double>(x.numel()) : 1.0;
  kernel_for(call.name(), call.table().mse, dtype)(x.raw_data(), target.raw_data(),
                                                   loss.mutable_raw_data(), x.numel(), divisor);
  if (Node* node = call.record(loss, mse_backward)) {
    node->save(x);
    node->save(target);
    node->number = divisor;
  }
  return loss;
}

}  // namespace halfstep
