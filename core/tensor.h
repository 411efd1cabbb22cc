// Tensor: a cheap counted handle to a contiguous row-major array with a dtype, a device and,
// for leaves, a gradient. Views (reshape, rows) share memory and version. Transposes are flags of
// matmul. Differentiable functions of tensors are in autograd/ops.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halfstep/core/dtype.h"
#include "halfstep/core/error.h"
#include "halfstep/core/graph_node.h"
#include "halfstep/core/leaf_state.h"
#include "halfstep/core/ref.h"
#include "halfstep/core/shape.h"
#include "halfstep/core/storage.h"

namespace halfstep {

struct TensorImpl final : RefCounted<TensorImpl> {
  TensorImpl(Ref<Storage> storage_in, size_t offset_in, const Shape& shape_in, DType dtype_in)
      : storage(std::move(storage_in)), offset(offset_in), shape(shape_in), dtype(dtype_in) {}

  Ref<Storage> storage;
  size_t offset;  // bytes from the storage's start
  Shape shape;
  DType dtype;
  bool requires_grad = false;
  Ref<GraphNode> grad_fn;           // the op that made this tensor, if it has a history
  std::unique_ptr<LeafState> leaf;  // made when a gradient or a cast copy first needs it
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  // Making tensors. Elements of empty() are undefined.
  static Tensor empty(const Shape& shape, DType dtype = DType::F32, Device device = Device::cpu());
  static Tensor full(const Shape& shape, double value, DType dtype = DType::F32,
                     Device device = Device::cpu());
  static Tensor zeros(const Shape& shape, DType dtype = DType::F32, Device device = Device::cpu()) {
    return full(shape, 0.0, dtype, device);
  }
  static Tensor ones(const Shape& shape, DType dtype = DType::F32, Device device = Device::cpu()) {
    return full(shape, 1.0, dtype, device);
  }
  static Tensor scalar(double value, DType dtype = DType::F32, Device device = Device::cpu()) {
    return full({}, value, dtype, device);
  }
  /// A copy of `values`, converted to `dtype`; ShapeError unless shape.numel() == values.size().
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, DType dtype = kDTypeOf<T>,
                     Device device = Device::cpu());
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, DType dtype = kDTypeOf<T>,
                     Device device = Device::cpu()) {
    return from(std::span<const T>(values), shape, dtype, device);
  }
  static Tensor from(std::initializer_list<float> values, const Shape& shape,
                     DType dtype = DType::F32, Device device = Device::cpu()) {
    return from(std::span<const float>(values.begin(), values.size()), shape, dtype, device);
  }

  bool defined() const { return static_cast<bool>(impl_); }
  const Shape& shape() const { return impl()->shape; }
  int64_t dim(int i) const { return shape().dim(i); }
  int rank() const { return shape().rank(); }
  int64_t numel() const { return shape().numel(); }
  DType dtype() const { return impl()->dtype; }
  Device device() const { return impl()->storage->device(); }
  /// "f32[2, 3] on cpu", for messages.
  std::string str() const;

  // Elements. mutable_data counts as a write: it advances the version, so that a backward which
  // saved this tensor refuses to run. Pointers to CUDA memory may only be used on the device.
  template <class T>
  const T* data() const {
    check_type(kDTypeOf<T>);
    return static_cast<const T*>(raw_data());
  }
  template <class T>
  T* mutable_data() {
    check_type(kDTypeOf<T>);
    return static_cast<T*>(mutable_raw_data());
  }
  const void* raw_data() const {
    const TensorImpl& x = *impl();
    return static_cast<const std::byte*>(x.storage->data()) + x.offset;
  }
  void* mutable_raw_data() {
    TensorImpl& x = *impl();
    x.storage->bump_version();
    return static_cast<std::byte*>(x.storage->data()) + x.offset;
  }
  uint64_t version() const { return impl()->storage->version(); }

  /// The one element as a double; ShapeError if there are more. Waits for a CUDA device.
  double item() const;
  /// All elements, converted to T. Waits for a CUDA device.
  template <class T>
  std::vector<T> to_vector() const;

  // Autograd.
  bool requires_grad() const { return impl()->requires_grad; }
  /// Only leaves can be told to require a gradient (GraphError otherwise).
  Tensor& set_requires_grad(bool value = true);
  bool is_leaf() const { return !impl()->grad_fn; }
  /// The gradient, or an undefined tensor if there is none.
  Tensor grad() const;
  /// Replaces the gradient with a copy of `grad` (same shape, dtype and device, else an error) and
  /// its tag with `none`; an undefined tensor removes it. A copy, so that gradients never share
  /// memory.
  void set_grad(const Tensor& grad);
  /// Removes the gradient, or fills it with zeros. Clears its scale tag; always legal.
  void zero_grad(bool set_to_none = true);
  /// Runs backward from this tensor (defined in autograd/engine.cpp). `seed` is the gradient of
  /// this tensor; it may be left out for one-element tensors and is 1 then. Throws GraphError if
  /// there is no history or it was consumed; gradients are then unchanged.
  void backward(const Tensor& seed = {}, bool retain_graph = false) const;

  /// The same memory without history.
  Tensor detach() const;
  /// A copy of the elements without history.
  Tensor clone() const;

  // In place. Only on tensors without history, and never with an operand whose gradient would be
  // lost (GraphError). The dtype stays; add_ and mul_ want operands of this dtype (DTypeError) that
  // have this shape, are one row of it, or are a scalar; copy_ converts.
  Tensor& fill_(double value);
  Tensor& copy_(const Tensor& from);
  Tensor& add_(const Tensor& other);
  Tensor& mul_(const Tensor& other);
  Tensor& mul_(double factor);

  // For the layers above.
  TensorImpl* impl() const {
    if (!impl_) [[unlikely]]
      fail<ArgumentError>("tensor", "an undefined tensor was used");
    return impl_.get();
  }
  const Ref<TensorImpl>& ref() const { return impl_; }
  /// Gradient, tag, record and cast copies; made on first use.
  LeafState& leaf_state() const;
  /// Whether `other` shares this tensor's memory.
  bool shares_storage(const Tensor& other) const {
    return impl()->storage == other.impl()->storage;
  }

 private:
  void check_type(DType wanted) const;
  Tensor& in_place(BinaryOp op, const Tensor& other, std::string_view name);

  Ref<TensorImpl> impl_;
};

/// A tensor like `x` (shape, dtype, device) with undefined elements.
inline Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

/// How `rhs` spreads over a tensor of shape `lhs`, or both over the larger of them: same shape, one
/// row (rank 1, the last extent), or one element. Throws ShapeError in `op`'s name for all else.
BinaryLayout broadcast(std::string_view op, const Tensor& lhs, const Tensor& rhs);

}  // namespace halfstep
