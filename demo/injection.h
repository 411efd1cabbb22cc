// Faults put into a run on purpose, written KIND@STEP, KIND@FIRST-LAST, with :ARGUMENT and
// =EXPECTED behind: inf-grad@5, nan-grad@5:2.weight, target-spike@7:1e8=skip. The training step
// itself is not changed for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/core/parameter.h"

namespace halfstep::demo {

struct Injection {
  enum class Kind : uint8_t {
    kInfGrad,      ///< inf-grad@5:2.weight: the first element of that gradient becomes Inf
    kNanGrad,      ///< nan-grad@5: of the first gradient, when none is named, NaN
    kTargetSpike,  ///< target-spike@7:1e8: the targets are multiplied by 1e8
    kNanInput,     ///< nan-input@9: the first input element becomes NaN
    kInfLoss,      ///< inf-loss@11: the loss becomes Inf
  };
  enum class Expected : uint8_t { kAnything, kSkip, kStep };

  Kind kind = Kind::kInfGrad;
  int64_t first = 0;           ///< step
  int64_t last = 0;            ///< step; the fault acts at all from first to last
  double factor = 1.0;         ///< of kTargetSpike
  std::string parameter = {};  ///< of kInfGrad and kNanGrad; empty: the first
  Expected expected = Expected::kAnything;

  bool acts_at(int64_t step) const { return first <= step && step <= last; }
  /// As it is written on the command line.
  std::string str() const;
  friend bool operator==(const Injection&, const Injection&) = default;
};

/// UsageError that says what was given and what an injection looks like.
Injection parse_injection(std::string_view text);
/// All values of --inject; `none`, alone, is the empty list.
std::vector<Injection> parse_injections(const std::vector<std::string>& texts);

/// Applies the injections of a run, each at its steps.
class Injector {
 public:
  /// UsageError if an injection names a parameter that the model does not have.
  Injector(std::vector<Injection> injections, const std::vector<Parameter>& parameters);

  /// Whether anything is injected at `step`.
  bool acts_at(int64_t step) const;
  /// The injection whose expectation is not met by a step that was skipped, or not; null if all
  /// are.
  const Injection* unmet(int64_t step, bool skipped) const;

  /// What to train on at `step`: the given tensor, or a spoilt copy.
  Tensor spoil_inputs(int64_t step, const Tensor& inputs) const;
  Tensor spoil_targets(int64_t step, const Tensor& targets) const;
  Tensor spoil_loss(int64_t step, const Tensor& loss) const;
  /// For AmpOptions::after_backward: writes into the gradients.
  void spoil_gradients(int64_t step, const std::vector<Parameter>& parameters) const;

 private:
  bool acts_at(int64_t step, Injection::Kind kind) const;

  std::vector<Injection> injections_;
};

}  // namespace halfstep::demo
