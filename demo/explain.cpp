// Reading a recorded graph, and the machine.
#include "halfstep/demo/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "halfstep/amp/autocast.h"
#include "halfstep/autograd/node.h"
#include "halfstep/backends/cpu/blas.h"
#include "halfstep/backends/cpu/targets.h"
#include "halfstep/core/threads.h"
#include "halfstep/demo/report.h"
#include "halfstep/demo/setting_values.h"

namespace halfstep::demo {
namespace {

/// All nodes below `y`, in the order in which they were recorded.
std::vector<const Node*> nodes_below(const Tensor& y) {
  const auto before = [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); };
  std::set<const Node*, decltype(before)> found(before);
  std::vector<const Node*> open{static_cast<const Node*>(y.impl()->grad_fn.get())};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (!node || !found.insert(node).second) continue;
    for (int i = 0; i < node->input_count(); ++i) open.push_back(node->input(i).node.get());
  }
  return {found.begin(), found.end()};
}

std::string inputs_text(const Node& node, const std::vector<Parameter>& parameters) {
  std::string text;
  for (int i = 0; i < node.input_count(); ++i) {
    const Edge& edge = node.input(i);
    const auto named = std::ranges::find_if(parameters, [&](const Parameter& parameter) {
      return edge.leaf && parameter.value.impl() == edge.leaf.get();
    });
    text += i > 0 ? ", " : "";
    if (named != parameters.end()) text += named->name + " ";
    text += name_of(edge.dtype);
  }
  return text;
}

std::string gradients_text(const Node& node) {
  std::string text;
  for (int i = 0; i < node.input_count(); ++i) {
    text += i > 0 ? ", " : "";
    text += node.wants(i) ? name_of(node.input(i).dtype) : "-";
  }
  return text;
}

std::string ops_table(Session& session) {
  const Tensor loss = session.scaled_loss();
  std::string text = fmt::format("{:<12} {:<38} {:<8} {:<8} {}\n", "op", "inputs", "output", "dy",
                                 "gradients of the inputs");
  for (const Node* node : nodes_below(loss)) {
    const std::string_view dtype = name_of(node->y_dtype());
    text += fmt::format("{:<12} {:<38} {:<8} {:<8} {}\n", node->name(),
                        inputs_text(*node, session.model().parameters()), dtype, dtype,
                        gradients_text(*node));
  }
  return text;
}

std::string scaler_text(const amp::GradScalerOptions& o) {
  if (!o.enabled) return "off: it is needed for fp16 only; the scale is 1\n";
  return fmt::format(
      "init scale {}, growth factor {:g}, backoff factor {:g}, growth interval {}, from {} to {}\n",
      scale_text(o.init_scale), o.growth_factor, o.backoff_factor, o.growth_interval,
      scale_text(o.min_scale), scale_text(o.max_scale));
}

}  // namespace

std::string explain(Session& session) {
  const DemoOptions& o = session.options();
  std::string text = "Autocast: which op runs in what\n\n" + amp::autocast_table();
  text +=
      fmt::format("\nOne step of this model in {}: each op of the forward, and its backward\n\n",
                  name_of_precision(o.dtype));
  text += ops_table(session);
  text += "\nGradient scaler\n\n" + scaler_text(o.scaler);
  text += "\nMachine\n\n";
  const std::vector<int64_t> targets = supported_targets();
  text += fmt::format("SIMD target  {}\n", target_name(targets.front()));
  text += fmt::format("BLAS         OpenBLAS, core {}, 1 thread per call\n", blas_core_name());
  text += fmt::format("threads      {}\n", num_threads());
  text += fmt::format("GPU          {}\n",
                      is_available(Device::cuda()) ? "CUDA" : "none: this build has no CUDA");
  return text;
}

}  // namespace halfstep::demo
