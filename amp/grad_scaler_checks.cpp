// GradScaler: what it demands of the gradients before it touches one, and what it says when they
// are not fit: which parameter, which scale, which call is missing.
#include "halfstep/amp/grad_scaler.h"
#include "halfstep/optim/grad_sweep.h"

namespace halfstep::amp {

// The one place that says what each unfit tag means. `wanted` is kScaled before unscaling,
// kUnscaled after it. Looks at every gradient before any is touched.
void GradScaler::check_tags(std::string_view op, const optim::Optimizer& optimizer,
                            GradTag::Kind wanted) const {
  using Kind = GradTag::Kind;
  if constexpr (!kGradTags) return;
  bool reached = false;
  optim::for_each_listed_grad(optimizer.parameters(), [&](const Parameter& parameter,
                                                          const LeafState& leaf) {
    const GradTag tag = leaf.current_tag();
    const auto require = [&](bool holds, std::string_view what, std::string_view advice) {
      HS_CHECK(holds, OrderError, op, "the gradient of ", parameter.name, what, " (its scale is ",
               tag.scale, ", the scaler's ", scale_, ", the optimizer ", optimizer.name(), "); ",
               advice);
    };
    require(
        leaf.grad->dtype != DType::F16, " is f16",
        "keep master weights in float32 and use autocast: an f16 gradient has neither the range "
        "nor the precision to be unscaled in");
    require(tag.kind != Kind::kMixed, " is a sum of gradients with different loss scales",
            "was zero_grad() forgotten, or a backward called after unscale_?");
    require(tag.kind != Kind::kNone, " carries no loss scale",
            "scale() is missing: call scaler.scale(loss).backward(), not loss.backward()");
    if (tag.kind == Kind::kEmpty) {  // zeros are right at any scale, but unscale_ leaves none
      require(wanted == Kind::kScaled, " was zeroed",
              "zero_grad() must not come between unscale_ and step");
      return;
    }
    require(tag.scaler == id_, " was scaled by another GradScaler",
            "use the scaler that scaled the loss");
    require(tag.epoch == epoch_, " was scaled before the last update() of the scaler",
            "update() came between; call it once, after the step of every optimizer");
    require(tag.kind == wanted || wanted == Kind::kUnscaled,
            " has already been unscaled since the last update()",
            "does another optimizer hold this parameter too?");
    require(tag.kind == wanted, " carries a loss scale again after unscale_",
            "was a backward called after it?");
    reached = true;
  });
  HS_CHECK(reached, OrderError, op, "all gradients of ", optimizer.name(),
           " are zeros left by zero_grad(false), and the scaler's scale is ", scale_,
           ": scaler.scale(loss).backward() is missing");
}

void GradScaler::note_non_finite(const optim::Optimizer& optimizer, OptimizerState& state) const {
  if (state.non_finite.outcome == StepResult::Outcome::kSkippedNonFinite) return;
  optim::for_each_grad(optimizer.parameters(),
                       [&](size_t, const Parameter& parameter, const LeafState& leaf) {
                         const SweepRecord& sweep = leaf.record.sweep;
                         if (sweep.first_non_finite < 0 ||
                             state.non_finite.outcome == StepResult::Outcome::kSkippedNonFinite)
                           return;
                         state.non_finite = {StepResult::Outcome::kSkippedNonFinite, parameter.name,
                                             sweep.first_non_finite, sweep.non_finite_value};
                       });
}

}  // namespace halfstep::amp
