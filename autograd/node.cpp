// Node: saving, checking and dropping what a backward needs.
#include "halfstep/autograd/node.h"

#include <atomic>

namespace halfstep {
namespace {

std::atomic<uint64_t> next_sequence{1};
std::atomic<int64_t> live_nodes{0};

}  // namespace

int64_t live_node_count() { return live_nodes.load(std::memory_order_relaxed); }

Node::Node(Op op, Backward backward_fn, const Tensor& y)
    : sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)),
      backward_(backward_fn),
      y_shape_(y.shape()),
      y_dtype_(y.dtype()),
      op_(op) {
  live_nodes.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() { live_nodes.fetch_sub(1, std::memory_order_relaxed); }

void Node::add_input(const Tensor& x) {
  Edge& edge = inputs_[static_cast<size_t>(input_count_++)];
  edge.shape = x.shape();
  edge.dtype = x.dtype();
  if (!x.requires_grad()) return;
  if (x.is_leaf()) {
    edge.leaf = x.ref();
  } else {
    edge.node = Ref<Node>(static_cast<Node*>(x.impl()->grad_fn.get()));
  }
}

void Node::save(const Tensor& x) {
  Saved& s = saved_[static_cast<size_t>(saved_count_++)];
  s = {x.impl()->storage, x.impl()->offset, x.version(), x.shape(), x.dtype(), {}, 0, DType::F32};
  const auto* cast = static_cast<const Node*>(x.impl()->grad_fn.get());
  if (cast && cast->op() == Op::to && cast->ints[0] != 0) {
    s.leaf = cast->input(0).leaf->storage;
    s.leaf_version = static_cast<uint64_t>(cast->ints[1]);
    s.leaf_dtype = cast->input(0).dtype;
  }
}

Tensor Node::saved(int i) const {
  const Saved& s = saved_[static_cast<size_t>(i)];
  constexpr std::string_view kAdvice =
      "; it must not be written to between forward and backward; was the optimizer stepped, or an "
      "in-place op called, in between?";
  HS_CHECK(s.storage->version() == s.version, GraphError, cat(name(), " backward"), "a saved ",
           name_of(s.dtype), s.shape, " has version ", s.storage->version(), ", expected version ",
           s.version, kAdvice);
  HS_CHECK(!s.leaf || s.leaf->version() == s.leaf_version, GraphError, cat(name(), " backward"),
           "the ", name_of(s.leaf_dtype), s.shape, " whose ", name_of(s.dtype),
           " cast was saved has version ", s.leaf->version(), ", expected version ", s.leaf_version,
           kAdvice);
  return Tensor(Ref<TensorImpl>(new TensorImpl(s.storage, s.offset, s.shape, s.dtype)));
}

void Node::consume() {
  for (Edge& edge : inputs_) {
    edge.node.reset();
    edge.leaf.reset();
  }
  for (Saved& s : saved_) {
    s.storage.reset();
    s.leaf.reset();
  }
  consumed_ = true;
}

}  // namespace halfstep
