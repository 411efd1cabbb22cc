// Tensor: making tensors, reading elements, gradients of leaves, and the broadcasting rule.
#include "halfstep/core/tensor.h"

#include <utility>

#include "halfstep/core/kernels.h"

namespace halfstep {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 62;

/// Calls fn(host pointer) on the bytes of `x`; copies them over first if they are on another
/// device.
template <class Fn>
void with_host_bytes(const Tensor& x, Fn&& fn) {
  if (x.device().is_cpu()) {
    fn(x.raw_data());
    return;
  }
  // GCOVR_EXCL_START: needs a device besides the CPU
  const size_t bytes = static_cast<size_t>(x.numel()) * size_of(x.dtype());
  const auto buffer = std::make_unique<std::byte[]>(bytes);
  kernels(x.device()).copy_to_host(x.raw_data(), buffer.get(), bytes);
  fn(buffer.get());
  // GCOVR_EXCL_STOP
}

void check_same_kind(std::string_view op, const Tensor& given, const Tensor& wanted) {
  HS_CHECK(given.shape() == wanted.shape(), ShapeError, op, "gradient ", given, " for a tensor ",
           wanted, "; the shapes must be equal");
  HS_CHECK(given.dtype() == wanted.dtype(), DTypeError, op, "gradient ", given, " for a tensor ",
           wanted, "; the dtypes must be equal");
  HS_CHECK(given.device() == wanted.device(), DeviceError, op, "gradient ", given, " for a tensor ",
           wanted, "; the devices must be equal");
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  HS_CHECK(dtype != DType::F64 || device.is_cpu(), DTypeError, "empty", "f64 on ", device,
           " asked for; f64 exists on the cpu only (for gradient checks)");
  HS_CHECK(shape.numel() <= kMostBytes / static_cast<int64_t>(size_of(dtype)), ArgumentError,
           "empty", name_of(dtype), shape,
           " asked for; it must take less than 2^62 bytes; is a "
           "dimension mistyped?");
  const size_t bytes = static_cast<size_t>(shape.numel()) * size_of(dtype);
  Ref<Storage> storage(new Storage(bytes, device));
  return Tensor(Ref<TensorImpl>(new TensorImpl(std::move(storage), 0, shape, dtype)));
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor y = empty(shape, dtype, device);
  kernels(device).fill[static_cast<size_t>(dtype)](y.mutable_raw_data(), value, y.numel());
  return y;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, DType dtype, Device device) {
  HS_CHECK(shape.numel() == static_cast<int64_t>(values.size()), ShapeError, "from", values.size(),
           " values given for shape ", shape, "; it must hold exactly as many elements");
  const Tensor host = empty(shape, dtype);
  void* out = Tensor(host).mutable_raw_data();
  visit_dtype(dtype, [&](auto element) {
    using To = decltype(element);
    for (size_t i = 0; i < values.size(); ++i) static_cast<To*>(out)[i] = convert<To>(values[i]);
  });
  if (device.is_cpu()) return host;
  // GCOVR_EXCL_START: needs a device besides the CPU
  Tensor y = empty(shape, dtype, device);
  kernels(device).copy_from_host(out, y.mutable_raw_data(), values.size() * size_of(dtype));
  return y;
  // GCOVR_EXCL_STOP
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> out(static_cast<size_t>(numel()));
  with_host_bytes(*this, [&](const void* bytes) {
    visit_dtype(dtype(), [&](auto element) {
      using From = decltype(element);
      const From* x = static_cast<const From*>(bytes);
      for (size_t i = 0; i < out.size(); ++i) out[i] = convert<T>(x[i]);
    });
  });
  return out;
}

double Tensor::item() const {
  HS_CHECK(numel() == 1, ShapeError, "item", *this, " given; it must have exactly one element");
  double value = 0.0;
  with_host_bytes(*this, [&](const void* bytes) {
    visit_dtype(dtype(), [&](auto element) {
      value = convert<double>(*static_cast<const decltype(element)*>(bytes));
    });
  });
  return value;
}

std::string Tensor::str() const {
  if (!defined()) return "an undefined tensor";
  return cat(name_of(dtype()), shape(), " on ", device());
}

void Tensor::check_type(DType wanted) const {
  HS_CHECK(dtype() == wanted, DTypeError, "data", *this, " read as ", name_of(wanted),
           "; the type must match the dtype");
}

LeafState& Tensor::leaf_state() const {
  if (!impl()->leaf) impl_->leaf = std::make_unique<LeafState>();
  return *impl_->leaf;
}

Tensor& Tensor::set_requires_grad(bool value) {
  HS_CHECK(is_leaf(), GraphError, "set_requires_grad", *this,
           " has a history; only leaves can be told, so detach() it first");
  impl()->requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return impl()->leaf ? Tensor(impl_->leaf->grad) : Tensor(); }

void Tensor::set_grad(const Tensor& grad) {
  HS_CHECK(is_leaf(), GraphError, "set_grad", *this, " has a history; only leaves keep a gradient");
  if (!grad.defined()) {
    zero_grad();
    return;
  }
  check_same_kind("set_grad", grad, *this);
  const Tensor copy = grad.clone();
  LeafState& leaf = leaf_state();
  leaf.grad = copy.ref();
  leaf.tag = GradTag::none();
  leaf.record = {};
}

void Tensor::zero_grad(bool set_to_none) {
  if (!impl()->leaf) return;
  LeafState& leaf = *impl_->leaf;
  if (set_to_none) {
    leaf.grad.reset();
  } else if (leaf.grad) {
    Tensor grad(leaf.grad);
    kernels(grad.device())
        .fill[static_cast<size_t>(grad.dtype())](grad.mutable_raw_data(), 0.0, grad.numel());
  }
  leaf.tag = {};
  leaf.record = {};
  if (leaf.grad) leaf.zeroed_version = leaf.grad->storage->version();
}

GradTag LeafState::current_tag() const {
  const bool written_to = grad && grad->storage->version() != zeroed_version;
  return tag.kind == GradTag::Kind::kEmpty && written_to ? GradTag::none() : tag;
}

Tensor Tensor::detach() const {
  const TensorImpl& x = *impl();
  return Tensor(Ref<TensorImpl>(new TensorImpl(x.storage, x.offset, x.shape, x.dtype)));
}

Tensor Tensor::clone() const {
  Tensor y = empty_like(*this);
  kernels(device()).copy(raw_data(), y.mutable_raw_data(),
                         static_cast<size_t>(numel()) * size_of(dtype()));
  return y;
}

BinaryLayout broadcast(std::string_view op, const Tensor& lhs, const Tensor& rhs) {
  const auto is_scalar = [](const Shape& s) { return s.numel() == 1 && s.rank() <= 1; };
  const auto is_row_of = [](const Shape& row, const Shape& s) {
    return row.rank() == 1 && s.rank() > 1 && row[0] == s.dim(-1);
  };
  const auto layout = [](Spread a, Spread b, const Shape& out) {
    const int64_t cols = out.rank() == 0 ? 1 : out.dim(-1);
    return BinaryLayout{a, b, cols == 0 ? 0 : out.numel() / cols, cols};
  };
  const Shape& a = lhs.shape();
  const Shape& b = rhs.shape();
  if (a == b) return layout(Spread::kFull, Spread::kFull, a);
  if (is_scalar(b) && !(is_scalar(a) && b.rank() > a.rank()))
    return layout(Spread::kFull, Spread::kScalar, a);
  if (is_scalar(a)) return layout(Spread::kScalar, Spread::kFull, b);
  if (is_row_of(b, a)) return layout(Spread::kFull, Spread::kRow, a);
  if (is_row_of(a, b)) return layout(Spread::kRow, Spread::kFull, b);
  fail<ShapeError>(op, lhs, " and ", rhs,
                   " given; shapes must be equal, or one operand a scalar or a row of rank 1 as "
                   "long as the other's last dimension; reshape() one of them if this is meant");
}

#define HS_ELEMENT_TYPE(T)                                                       \
  template Tensor Tensor::from(std::span<const T>, const Shape&, DType, Device); \
  template std::vector<T> Tensor::to_vector() const;
HS_ELEMENT_TYPE(float)
HS_ELEMENT_TYPE(double)
HS_ELEMENT_TYPE(Half)
HS_ELEMENT_TYPE(BFloat16)
#undef HS_ELEMENT_TYPE

}  // namespace halfstep
