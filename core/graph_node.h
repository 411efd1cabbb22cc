// GraphNode: what core knows of an autograd node: that it is counted, and that it can be destroyed
// without recursion, however long the chain behind it.
#pragma once

#include <atomic>
#include <cstdint>

#include "halfstep/core/pool.h"

namespace halfstep {

class GraphNode : public Pooled {
 public:
  GraphNode() = default;
  GraphNode(const GraphNode&) = delete;
  GraphNode& operator=(const GraphNode&) = delete;
  virtual ~GraphNode() = default;

  void add_ref() const { count_.fetch_add(1, std::memory_order_relaxed); }
  /// The last owner's release queues the node; the outermost release on this thread destroys the
  /// queue one by one, so that a chain of any length needs constant stack.
  void release() const;

 private:
  mutable std::atomic<uint32_t> count_{0};
  mutable const GraphNode* next_doomed_ = nullptr;
};

}  // namespace halfstep
