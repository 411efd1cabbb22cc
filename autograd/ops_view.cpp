// Views: reshape and rows share their input's memory and version.
#include <algorithm>
#include <span>

#include "halfstep/autograd/op_call.h"
#include "halfstep/autograd/ops.h"

namespace halfstep {
namespace {

Tensor view(const Tensor& x, const Shape& shape, size_t offset) {
  return Tensor(Ref<TensorImpl>(
      new TensorImpl(x.impl()->storage, x.impl()->offset + offset, shape, x.dtype())));
}

void reshape_backward(Node& node, Tensor dy, Tensor* dx) {
  dx[0] = view(dy, node.input(0).shape, 0);
}

// ints: offset of the view in bytes.
void rows_backward(Node& node, Tensor dy, Tensor* dx) {
  dx[0] = Tensor::zeros(node.input(0).shape, dy.dtype(), dy.device());
  kernels(dy.device())
      .copy(dy.raw_data(), static_cast<std::byte*>(dx[0].mutable_raw_data()) + node.ints[0],
            static_cast<size_t>(dy.numel()) * size_of(dy.dtype()));
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const OpCall call(Op::reshape, {&x});
  HS_CHECK(shape.numel() == x.numel(), ShapeError, call.name(), x, " to ", shape,
           " asked for; the number of elements must stay the same");
  Tensor y = view(x, shape, 0);
  call.record(y, reshape_backward);
  return y;
}

Tensor reshape(const Tensor& x, std::initializer_list<int64_t> dims) {
  const auto unknown = std::ranges::find(dims, -1);
  if (unknown == dims.end()) return reshape(x, Shape(dims));
  HS_CHECK(std::find(unknown + 1, dims.end(), -1) == dims.end(), ShapeError, "reshape",
           "two extents are -1; only one can be worked out");
  HS_CHECK(dims.size() <= Shape::kMaxRank, ShapeError, "reshape", dims.size(),
           " dimensions given; at most ", Shape::kMaxRank, " are supported");
  int64_t complete[Shape::kMaxRank];
  std::ranges::copy(dims, complete);
  const std::span<const int64_t> extents(complete, dims.size());
  int64_t known = 1;
  for (const int64_t dim : dims) {
    if (dim == -1) continue;
    HS_CHECK(dim >= 0 && (dim == 0 || known <= x.numel() / dim + 1), ShapeError, "reshape", x,
             " with an extent of ", dim,
             " asked for; extents must not be negative, nor multiply to more than the elements");
    known *= dim;
  }
  HS_CHECK(known > 0 && x.numel() % known == 0, ShapeError, "reshape", x,
           " with the known extents' product ", known,
           " given; it must divide the number of elements");
  complete[unknown - dims.begin()] = x.numel() / known;
  return reshape(x, Shape(extents));
}

Tensor rows(const Tensor& x, int64_t begin, int64_t end) {
  const OpCall call(Op::rows, {&x});
  HS_CHECK(x.rank() >= 1 && 0 <= begin && begin <= end && end <= x.dim(0), ShapeError, call.name(),
           "rows [", begin, ", ", end, ") of ", x, " asked for; they must lie within the tensor");
  int64_t dims[Shape::kMaxRank];
  std::ranges::copy(x.shape().dims(), dims);
  dims[0] = end - begin;
  const int64_t row_numel = x.dim(0) == 0 ? 0 : x.numel() / x.dim(0);
  const size_t offset = static_cast<size_t>(begin * row_numel) * size_of(x.dtype());
  Tensor y = view(x, Shape(std::span<const int64_t>(dims, static_cast<size_t>(x.rank()))), offset);
  if (Node* node = call.record(y, rows_backward)) node->ints[0] = static_cast<int64_t>(offset);
  return y;
}

}  // namespace halfstep
