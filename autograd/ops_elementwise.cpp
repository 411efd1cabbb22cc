// Elementwise ops: one body for every unary row of elementwise.def, one for every binary row.
#include "halfstep/autograd/op_call.h"
#include "halfstep/autograd/ops.h"

namespace halfstep {
namespace {

template <UnaryOp kOp>
void unary_backward(Node& node, Tensor dy, Tensor* dx) {
  const Tensor saved = node.saved(0);
  dx[0] = empty_like(dy);
  const auto& table = kernels(dy.device()).unary_backward[static_cast<size_t>(kOp)];
  kernel_for(node.name(), table, dy.dtype())(dy.raw_data(), saved.raw_data(),
                                             dx[0].mutable_raw_data(), dy.numel());
}

template <UnaryOp kOp>
Tensor unary(Op op, BackwardNeeds needs, const Tensor& input) {
  const OpCall call(op, {&input});
  const Tensor& x = call[0];
  Tensor y = empty_like(x);
  const auto& table = call.table().unary[static_cast<size_t>(kOp)];
  kernel_for(call.name(), table, x.dtype())(x.raw_data(), y.mutable_raw_data(), x.numel());
  if (Node* node = call.record(y, unary_backward<kOp>)) {
    node->save(needs == BackwardNeeds::kInput ? x : y);
  }
  return y;
}

/// Sums a gradient that is spread over [rows, cols] down to the operand that was spread.
Tensor reduce_spread(const Tensor& spread, Spread how, const BinaryLayout& layout,
                     const Shape& shape) {
  if (how == Spread::kFull) return spread;
  Tensor out = Tensor::empty(shape, spread.dtype(), spread.device());
  const ReduceDims dims = how == Spread::kRow ? ReduceDims{1, layout.rows, layout.cols}
                                              : ReduceDims{1, layout.rows * layout.cols, 1};
  kernel_for("sum", kernels(spread.device()).reduce_sum, spread.dtype())(
      spread.raw_data(), out.mutable_raw_data(), dims, 1.0);
  return out;
}

/// Which operands a binary node has saved, lhs first.
constexpr int kSavedLhs = 1, kSavedRhs = 2;

// ints: the BinaryLayout; number: kSavedLhs, kSavedRhs.
template <BinaryOp kOp, BackwardNeeds kNeeds>
void binary_backward(Node& node, Tensor dy, Tensor* dx) {
  const BinaryLayout layout{static_cast<Spread>(node.ints[0]), static_cast<Spread>(node.ints[1]),
                            node.ints[2], node.ints[3]};
  const KernelTable& table = kernels(dy.device());
  const int saved = static_cast<int>(node.number);
  for (int i = 0; i < 2; ++i) {
    if (!node.wants(i)) continue;
    // An operand that the formula does not read is not looked at, whatever has happened to it.
    const bool reads_lhs =
        kNeeds == BackwardNeeds::kInput || (kNeeds == BackwardNeeds::kOther && i == 1);
    const bool reads_rhs =
        kNeeds == BackwardNeeds::kInput || (kNeeds == BackwardNeeds::kOther && i == 0);
    const Tensor lhs = reads_lhs ? node.saved(0) : dy;
    const Tensor rhs = reads_rhs ? node.saved(saved & kSavedLhs ? 1 : 0) : dy;
    const auto& by_op = i == 0 ? table.binary_backward_lhs : table.binary_backward_rhs;
    Tensor full = empty_like(dy);
    kernel_for(node.name(), by_op[static_cast<size_t>(kOp)], dy.dtype())(
        dy.raw_data(), saved ? lhs.raw_data() : nullptr, saved ? rhs.raw_data() : nullptr,
        full.mutable_raw_data(), layout);
    dx[i] = reduce_spread(full, i == 0 ? layout.lhs : layout.rhs, layout, node.input(i).shape);
  }
}

template <BinaryOp kOp, BackwardNeeds kNeeds>
Tensor binary(Op op, const Tensor& lhs, const Tensor& rhs) {
  const OpCall call(op, {&lhs, &rhs});
  const BinaryLayout layout = broadcast(call.name(), call[0], call[1]);
  Tensor y =
      Tensor::empty((layout.lhs == Spread::kFull ? lhs : rhs).shape(), call.dtype(), call.device());
  const auto& table = call.table().binary[static_cast<size_t>(kOp)];
  kernel_for(call.name(), table, call.dtype())(call[0].raw_data(), call[1].raw_data(),
                                               y.mutable_raw_data(), layout);
  if (Node* node = call.record(y, binary_backward<kOp, kNeeds>)) {
    node->ints = {static_cast<int64_t>(layout.lhs), static_cast<int64_t>(layout.rhs), layout.rows,
                  layout.cols};
    const bool saves_lhs = kNeeds == BackwardNeeds::kInput ||
                           (kNeeds == BackwardNeeds::kOther && call[1].requires_grad());
    const bool saves_rhs = kNeeds == BackwardNeeds::kInput ||
                           (kNeeds == BackwardNeeds::kOther && call[0].requires_grad());
    if (saves_lhs) node->save(call[0]);
    if (saves_rhs) node->save(call[1]);
    node->number = (saves_lhs ? kSavedLhs : 0) + (saves_rhs ? kSavedRhs : 0);
  }
  return y;
}

/// A number as the second operand. Halves meet it in float32, so that it is not rounded to a half.
template <class Fn>
Tensor with_number(Op op, const Tensor& x, double value, Fn&& fn) {
  check_defined(info_of(op).name, x);
  if (is_half(x.dtype())) {
    return to(fn(to(x, DType::F32), Tensor::scalar(value, DType::F32, x.device())), x.dtype());
  }
  return fn(x, Tensor::scalar(value, x.dtype(), x.device()));
}

}  // namespace

#define HS_UNARY(name, policy, needs, ...) \
  Tensor name(const Tensor& x) { return unary<UnaryOp::name>(Op::name, BackwardNeeds::needs, x); }
#define HS_BINARY(name, policy, needs, ...)                                  \
  Tensor name(const Tensor& lhs, const Tensor& rhs) {                        \
    return binary<BinaryOp::name, BackwardNeeds::needs>(Op::name, lhs, rhs); \
  }
#include "halfstep/core/elementwise.def"

Tensor add(const Tensor& x, double value) {
  return with_number(Op::add, x, value, [](const Tensor& a, const Tensor& b) { return add(a, b); });
}

Tensor mul(const Tensor& x, double factor) {
  return with_number(Op::mul, x, factor,
                     [](const Tensor& a, const Tensor& b) { return mul(a, b); });
}

}  // namespace halfstep
