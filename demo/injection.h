// Faults put into a run on purpose: an Inf in a gradient, a batch with wild targets. An injection
// is written `kind@step` or `kind@step:argument`; the training step itself is not changed for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "halfstep/core/parameter.h"

namespace halfstep::demo {

struct Injection {
  enum class Kind : uint8_t {
    kInfGrad,      ///< inf-grad@5: the first element of the first gradient becomes Inf
    kTargetSpike,  ///< target-spike@7:1e8: the targets are multiplied by 1e8
  };
  Kind kind = Kind::kInfGrad;
  int64_t step = 0;
  double factor = 1.0;  ///< of kTargetSpike

  /// As it is written on the command line.
  std::string str() const;
  friend bool operator==(const Injection&, const Injection&) = default;
};

/// UsageError that says what was given and what an injection looks like.
Injection parse_injection(std::string_view text);
/// All values of --inject; `none`, alone, is the empty list.
std::vector<Injection> parse_injections(const std::vector<std::string>& texts);

/// Applies the injections of a run, each at its step.
class Injector {
 public:
  explicit Injector(std::vector<Injection> injections) : injections_(std::move(injections)) {}

  /// Whether anything is injected at `step`.
  bool acts_at(int64_t step) const;
  /// The targets to train on at `step`: the given ones, or a spoilt copy.
  Tensor spoil_targets(int64_t step, const Tensor& targets) const;
  /// For AmpOptions::after_backward: writes into the gradients.
  void spoil_gradients(int64_t step, const std::vector<Parameter>& parameters) const;

 private:
  std::vector<Injection> injections_;
};

}  // namespace halfstep::demo
