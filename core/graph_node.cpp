// GraphNode: destruction without recursion.
#include "halfstep/core/graph_node.h"

namespace halfstep {
namespace {

struct Doomed {
  const GraphNode* head = nullptr;
  bool draining = false;
};
thread_local Doomed doomed;

}  // namespace

void GraphNode::release() const {
  if (count_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  next_doomed_ = doomed.head;
  doomed.head = this;
  if (doomed.draining) return;
  doomed.draining = true;
  while (const GraphNode* node = doomed.head) {
    doomed.head = node->next_doomed_;
    delete node;
  }
  doomed.draining = false;
}

}  // namespace halfstep
