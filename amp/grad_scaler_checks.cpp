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
  optim::for_each_grad(optimizer.parameters(), [&](size_t, const Parameter& parameter,
                                                   const LeafState& leaf) {
    const GradTag tag = leaf.current_tag();
    const std::string& name = parameter.name;
    HS_CHECK(
        leaf.grad->dtype != DType::F16, OrderError, op, "the gradient of ", name,
        " is f16; keep master weights in float32 and use autocast: an f16 gradient has neither "
        "the range nor the precision to be unscaled in");
    HS_CHECK(tag.kind != Kind::kMixed, OrderError, op, "the gradient of ", name,
             " is a sum of gradients with different loss scales; was zero_grad() forgotten, or a "
             "backward called after unscale_?");
    HS_CHECK(tag.kind != Kind::kNone, OrderError, op, "the gradient of ", name,
             " carries no loss scale (the scaler's is ", scale_,
             "): scale() is missing; call scaler.scale(loss).backward(), not loss.backward()");
    if (tag.kind == Kind::kEmpty) {  // zeros are right at any scale, but unscale_ leaves none
      HS_CHECK(wanted == Kind::kScaled, OrderError, op, "the gradient of ", name,
               " was zeroed; zero_grad() must not come between unscale_ and the step of ",
               optimizer.name());
      return;
    }
    HS_CHECK(tag.scaler == id_, OrderError, op, "the gradient of ", name,
             " was scaled by another GradScaler (scale ", tag.scale,
             "); use the scaler that scaled the loss");
    HS_CHECK(tag.epoch == epoch_, OrderError, op, "the gradient of ", name, " was scaled by ",
             tag.scale, " before the last update() of the scaler (scale now ", scale_,
             "): update() came between; call it once, after the step of every optimizer");
    HS_CHECK(
        tag.kind == wanted, OrderError, op, "the gradient of ", name,
        wanted == Kind::kScaled
            ? " has already been unscaled since the last update(); does another optimizer hold "
              "this parameter too?"
            : " carries a loss scale again after unscale_; was a backward called after it?");
  });
}

// Zeros alone say that zero_grad(false) was called and backward was not.
void GradScaler::check_reached(std::string_view op, const optim::Optimizer& optimizer) const {
  if constexpr (!kGradTags) return;
  bool reached = false;
  optim::for_each_grad(optimizer.parameters(),
                       [&](size_t, const Parameter&, const LeafState& leaf) {
                         reached = reached || leaf.tag.kind == GradTag::Kind::kScaled;
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
