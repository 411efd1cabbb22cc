// Node: one recorded op of the graph: which op, where its inputs came from, what its backward
// needs. A node never holds a tensor with a history, only the memory of saved tensors with the
// version they had, so there are no cycles and destruction is flat. Serves steps 3, 5 and 6 of a
// training step.
#pragma once

#include <array>
#include <cstdint>

#include "halfstep/core/graph_node.h"
#include "halfstep/core/ops.h"
#include "halfstep/core/tensor.h"

namespace halfstep {

class Node;

/// Where the gradient of one input goes: to the node that made it, to a leaf, or nowhere.
struct Edge {
  Ref<Node> node;
  Ref<TensorImpl> leaf;
  Shape shape;  // of the input, and so of its gradient
  DType dtype = DType::F32;

  bool wanted() const { return node || leaf; }
};

class Node final : public GraphNode {
 public:
  static constexpr int kMaxInputs = 3;

  /// Writes the gradient of each wanted input to dx[i]. dy belongs to the callee.
  using Backward = void (*)(Node& node, Tensor dy, Tensor* dx);

  Node(Op op, Backward backward_fn, const Tensor& y);
  ~Node() override;

  Op op() const { return op_; }
  std::string_view name() const { return info_of(op_).name; }
  /// Nodes are numbered in order of creation: an input's node has a smaller number.
  uint64_t sequence() const { return sequence_; }
  Backward backward() const { return backward_; }
  const Shape& y_shape() const { return y_shape_; }
  DType y_dtype() const { return y_dtype_; }

  void add_input(const Tensor& x);
  int input_count() const { return input_count_; }
  const Edge& input(int i) const { return inputs_[static_cast<size_t>(i)]; }
  bool wants(int i) const { return input(i).wanted(); }

  /// Keeps the elements of `x` for backward, and the version that they have now. If `x` is the cast
  /// of a leaf, the leaf's version as well: its low-precision copy outlives a change of the leaf.
  void save(const Tensor& x);
  /// The i-th saved tensor; GraphError if it has been written to since.
  Tensor saved(int i) const;

  /// After backward without retain_graph: drops inputs and saved tensors; later use is an error.
  void consume();
  bool consumed() const { return consumed_; }

  // What the op's backward needs to know besides tensors; each op says what it puts here.
  std::array<int64_t, 4> ints{};
  double number = 0.0;
  /// GradScaler::scale: the tag that gradients carry below this node.
  GradTag tag;

  // The engine's scratch during one backward: the sum of what has arrived so far.
  Tensor pending;
  GradTag pending_tag;

 private:
  struct Saved {
    Ref<Storage> storage;
    size_t offset = 0;
    uint64_t version = 0;
    Shape shape;
    DType dtype = DType::F32;
    Ref<Storage> leaf;  // that was cast, if any
    uint64_t leaf_version = 0;
    DType leaf_dtype = DType::F32;
  };

  uint64_t sequence_;
  Backward backward_;
  std::array<Edge, kMaxInputs> inputs_;
  std::array<Saved, 2> saved_;
  Shape y_shape_;
  DType y_dtype_;
  Op op_;
  bool consumed_ = false;
  int8_t input_count_ = 0;
  int8_t saved_count_ = 0;
};

/// The number of Nodes alive, for leak tests.
int64_t live_node_count();

}  // namespace halfstep
