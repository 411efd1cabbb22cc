// Matrix products: matmul with transpose flags, and linear with its bias.
#include "halfstep/autograd/op_call.h"
#include "halfstep/autograd/ops.h"

namespace halfstep {
namespace {

/// c = op(a) op(b) (+ bias), all of one dtype; c's shape is [m, n] seen as `c_shape`.
Tensor product(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, int64_t m,
               int64_t n, int64_t k, const Shape& c_shape, const Tensor* bias = nullptr) {
  Tensor c = Tensor::empty(c_shape, a.dtype(), a.device());
  kernel_for("matmul", kernels(a.device()).gemm,
             a.dtype())({transpose_a, transpose_b, m, n, k, a.raw_data(), b.raw_data(),
                         bias ? bias->raw_data() : nullptr, c.mutable_raw_data()});
  return c;
}

// ints: transpose_a, transpose_b, k.
void matmul_backward(Node& node, Tensor dc, Tensor* dx) {
  const bool ta = node.ints[0] != 0, tb = node.ints[1] != 0;
  const int64_t m = node.y_shape()[0], n = node.y_shape()[1], k = node.ints[2];
  if (node.wants(0)) {  // da = dc op(b)^T, stored as a was
    const Tensor b = node.saved(1);
    const Shape& shape = node.input(0).shape;
    dx[0] =
        ta ? product(b, tb, dc, true, k, m, n, shape) : product(dc, false, b, !tb, m, k, n, shape);
  }
  if (node.wants(1)) {  // db = op(a)^T dc, stored as b was
    const Tensor a = node.saved(0);
    const Shape& shape = node.input(1).shape;
    dx[1] =
        tb ? product(dc, true, a, ta, n, k, m, shape) : product(a, !ta, dc, false, k, n, m, shape);
  }
}

// ints: rows, out, in.
void linear_backward(Node& node, Tensor dy, Tensor* dx) {
  const int64_t rows = node.ints[0], out = node.ints[1], in = node.ints[2];
  if (node.wants(0)) {  // dx[rows, in] = dy[rows, out] weight[out, in]
    dx[0] = product(dy, false, node.saved(1), false, rows, in, out, node.input(0).shape);
  }
  if (node.wants(1)) {  // dweight[out, in] = dy[rows, out]^T x[rows, in]
    dx[1] = product(dy, true, node.saved(0), false, out, in, rows, node.input(1).shape);
  }
  if (node.input_count() == 3 && node.wants(2)) {  // dbias[out] = sum of dy over rows
    dx[2] = Tensor::empty(node.input(2).shape, dy.dtype(), dy.device());
    kernel_for("sum", kernels(dy.device()).reduce_sum, dy.dtype())(
        dy.raw_data(), dx[2].mutable_raw_data(), {1, rows, out}, 1.0);
  }
}

Tensor linear_call(const OpCall& call, bool has_bias) {
  const Tensor& x = call[0];
  const Tensor& weight = call[1];
  const auto shapes_fit = [&] {
    return x.rank() >= 1 && weight.rank() == 2 && x.dim(-1) == weight.dim(1) &&
           (!has_bias || call[2].shape() == Shape{weight.dim(0)});
  };
  HS_CHECK(shapes_fit(), ShapeError, call.name(), call.str(),
           " given; x must be [..., in], weight [out, in] and bias [out]");
  const int64_t out = weight.dim(0), in = weight.dim(1);
  int64_t dims[Shape::kMaxRank];
  int64_t row_count = 1;
  for (int i = 0; i < x.rank(); ++i) {
    dims[i] = x.dim(i);
    if (i + 1 < x.rank()) row_count *= dims[i];
  }
  dims[x.rank() - 1] = out;
  const Shape y_shape(std::span<const int64_t>(dims, static_cast<size_t>(x.rank())));
  Tensor y =
      product(x, false, weight, true, row_count, out, in, y_shape, has_bias ? &call[2] : nullptr);
  if (Node* node = call.record(y, linear_backward)) {
    node->save(x);
    node->save(weight);
    node->ints = {row_count, out, in, 0};
  }
  return y;
}

}  // namespace

Tensor matmul(const Tensor& a_in, const Tensor& b_in, const MatmulOptions& options) {
  const OpCall call(Op::matmul, {&a_in, &b_in});
  const Tensor& a = call[0];
  const Tensor& b = call[1];
  HS_CHECK(a.rank() == 2 && b.rank() == 2, ShapeError, call.name(), call.str(),
           " given; both must be matrices");
  const auto [ta, tb] = options;
  const int64_t m = a.dim(ta ? 1 : 0), k = a.dim(ta ? 0 : 1), n = b.dim(tb ? 0 : 1);
  HS_CHECK(b.dim(tb ? 1 : 0) == k, ShapeError, call.name(), call.str(),
           " given with transpose_a = ", ta, ", transpose_b = ", tb,
           "; the inner dimensions must be equal");
  Tensor c = product(a, ta, b, tb, m, n, k, {m, n});
  if (Node* node = call.record(c, matmul_backward)) {
    node->save(a);
    node->save(b);
    node->ints = {ta, tb, k, 0};
  }
  return c;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_call(OpCall(Op::linear, {&x, &weight, &bias}), true);
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  return linear_call(OpCall(Op::linear, {&x, &weight}), false);
}

}  // namespace halfstep
