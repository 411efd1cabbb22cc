// The engine: Tensor::backward. Nodes run in descending sequence number, so each runs once, after
// everything that depends on it; an explicit heap takes the place of recursion. Gradients of leaves
// are collected and committed together at the end: if anything throws, no leaf has changed.
// Serves step 6 of a training step.
#include <algorithm>
#include <utility>
#include <vector>

#include "halfstep/autograd/grad_mode.h"
#include "halfstep/autograd/node.h"
#include "halfstep/core/kernels.h"
#include "halfstep/core/tensor.h"

namespace halfstep {
namespace {

/// Whether `x` is the only handle to its memory, so that it may be written to or given away.
bool is_unshared(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.impl()->storage->use_count() == 1;
}

void add_into(Tensor& y, const Tensor& x) {
  const BinaryLayout layout{Spread::kFull, Spread::kFull, 1, y.numel()};
  kernels(y.device())
      .binary[static_cast<size_t>(BinaryOp::add)][static_cast<size_t>(y.dtype())](
          y.raw_data(), x.raw_data(), y.mutable_raw_data(), layout);
}

/// a + b, in place in whichever of the two nobody else sees, else in new memory.
Tensor accumulate(Tensor a, Tensor b) {
  if (is_unshared(a)) {
    add_into(a, b);
    return a;
  }
  if (is_unshared(b)) {
    add_into(b, a);
    return b;
  }
  Tensor y = a.clone();
  add_into(y, b);
  return y;
}

struct LeafGrad {
  Ref<TensorImpl> leaf;
  Tensor grad;
  GradTag tag;
  bool replaces = false;  // grad is the leaf's new gradient, not a term to be added in place
};

class Engine {
 public:
  explicit Engine(bool retain_graph) : retain_graph_(retain_graph) {}

  ~Engine() {  // also after an exception: nothing of this run stays behind in the graph
    for (const Ref<Node>& node : heap_) {
      node->pending = {};
      node->pending_tag = {};
    }
    for (const LeafGrad& entry : leaves_) entry.leaf->leaf->pending_index = -1;
    heap_.clear();
    leaves_.clear();
    std::swap(heap_, spare_heap());
    std::swap(leaves_, spare_leaves());
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void run(const Edge& root, Tensor seed) {
    deliver(root, std::move(seed), GradTag::none());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), runs_later);
      const Ref<Node> node = std::move(heap_.back());
      heap_.pop_back();
      run_node(*node);
    }
    commit();
  }

 private:
  static bool runs_later(const Ref<Node>& a, const Ref<Node>& b) {
    return a->sequence() < b->sequence();
  }
  // The vectors keep their capacity from run to run, so that a steady step does not allocate.
  static std::vector<Ref<Node>>& spare_heap() {
    thread_local std::vector<Ref<Node>> spare;
    return spare;
  }
  static std::vector<LeafGrad>& spare_leaves() {
    thread_local std::vector<LeafGrad> spare;
    return spare;
  }

  void run_node(Node& node) {
    Tensor dy = std::exchange(node.pending, {});
    GradTag tag = std::exchange(node.pending_tag, {});
    HS_CHECK(!node.consumed(), GraphError, "backward", "the graph through ", node.name(),
             " was used by an earlier backward (or one that failed); pass retain_graph = true to "
             "that one to use it again");
    if (node.tag.kind != GradTag::Kind::kEmpty) {  // a loss scaled twice has no one scale
      tag = tag == GradTag::none() ? node.tag : GradTag{GradTag::Kind::kMixed, 1.0f, 0, 0};
    }
    Tensor dx[Node::kMaxInputs];
    node.backward()(node, std::move(dy), dx);
    for (int i = 0; i < node.input_count(); ++i) {
      if (node.wants(i)) deliver(node.input(i), std::move(dx[i]), tag);
    }
    if (!retain_graph_) node.consume();
  }

  void deliver(const Edge& edge, Tensor grad, const GradTag& tag) {
    HS_CHECK(grad.defined() && grad.shape() == edge.shape && grad.dtype() == edge.dtype, GraphError,
             "backward", "gradient ", grad, " for an input ", name_of(edge.dtype), edge.shape,
             "; shape and dtype must be the input's; this is an error in an op's backward");
    if (edge.node) {
      Node& node = *edge.node;
      const bool is_first = !node.pending.defined();
      if (is_first) {
        heap_.push_back(edge.node);
        std::push_heap(heap_.begin(), heap_.end(), runs_later);
      }
      add_pending(node.pending, node.pending_tag, std::move(grad), tag);
      return;
    }
    int64_t& index = Tensor(edge.leaf).leaf_state().pending_index;
    if (index < 0) {
      leaves_.push_back({edge.leaf, {}, {}, false});
      index = static_cast<int64_t>(leaves_.size()) - 1;
    }
    LeafGrad& entry = leaves_[static_cast<size_t>(index)];
    add_pending(entry.grad, entry.tag, std::move(grad), tag);
  }

  static void add_pending(Tensor& sum, GradTag& sum_tag, Tensor grad, const GradTag& tag) {
    sum = sum.defined() ? accumulate(std::move(sum), std::move(grad)) : std::move(grad);
    sum_tag = GradTag::join(sum_tag, tag);
  }

  // First everything that may throw, then the change that cannot.
  void commit() {
    for (LeafGrad& entry : leaves_) {
      const Ref<TensorImpl>& old = entry.leaf->leaf->grad;
      entry.replaces = !old || old->use_count() != 1 || old->storage->use_count() != 1;
      if (!old) {
        if (!is_unshared(entry.grad)) entry.grad = entry.grad.clone();
      } else if (entry.replaces) {
        entry.grad = accumulate(Tensor(old), std::move(entry.grad));
      }
    }
    for (LeafGrad& entry : leaves_) {
      LeafState& leaf = *entry.leaf->leaf;
      const GradTag old_tag = leaf.current_tag();
      if (entry.replaces) {
        leaf.grad = entry.grad.ref();
      } else {
        Tensor grad(leaf.grad);
        add_into(grad, entry.grad);
      }
      leaf.tag = GradTag::join(old_tag, entry.tag);
      leaf.record = {};
    }
  }

  bool retain_graph_;
  std::vector<Ref<Node>> heap_ = std::move(spare_heap());
  std::vector<LeafGrad> leaves_ = std::move(spare_leaves());
};

}  // namespace

void Tensor::backward(const Tensor& seed, bool retain_graph) const {
  HS_CHECK(requires_grad(), GraphError, "backward", *this,
           " has no history; nothing it was made from requires a gradient, or it was made under "
           "NoGrad or detached");
  HS_CHECK(
      seed.defined() || numel() == 1, GraphError, "backward", *this,
      " given without a seed; only one-element tensors have an implied gradient of 1; reduce it "
      "with sum() or mean(), or pass the gradient");
  if (seed.defined()) {
    HS_CHECK(seed.shape() == shape() && seed.dtype() == dtype() && seed.device() == device(),
             GraphError, "backward", "seed ", seed, " for ", *this,
             "; shape, dtype and device must be equal");
  }
  Edge root;
  root.shape = shape();
  root.dtype = dtype();
  if (is_leaf()) {
    root.leaf = ref();
  } else {
    root.node = Ref<Node>(static_cast<Node*>(impl()->grad_fn.get()));
  }
  const NoGrad no_grad;
  Engine(retain_graph).run(root, seed.defined() ? seed.detach() : ones(shape(), dtype(), device()));
}

}  // namespace halfstep
