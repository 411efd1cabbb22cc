// Counting steps.
#include "halfstep/demo/counts.h"

namespace halfstep::demo {

void Counts::add(const amp::StepOrSkipLog& log, bool injected) {
  ++steps;
  if (const auto* step = std::get_if<amp::StepLog>(&log)) {
    clipped += step->grad_l2_post_clip < step->grad_l2_pre_clip ? 1 : 0;
    loss_sum += static_cast<double>(step->loss);
    norm_sum += step->grad_l2_pre_clip;
    last_loss = static_cast<double>(step->loss);
  } else {
    ++skips;
    injected_skips += injected ? 1 : 0;
    last_loss = static_cast<double>(std::get<amp::SkipLog>(log).loss);
  }
}

StateDict Counts::state_dict() const {
  return {.tensors = {},
          .numbers = {{"steps", static_cast<double>(steps)},
                      {"skips", static_cast<double>(skips)},
                      {"injected_skips", static_cast<double>(injected_skips)},
                      {"clipped", static_cast<double>(clipped)},
                      {"loss_sum", loss_sum},
                      {"norm_sum", norm_sum},
                      {"last_loss", last_loss}}};
}

TakeOver Counts::prepare_load(const StateDict& state) {
  StateReader reader("amp_demo.resume", state);
  const Counts loaded{.steps = reader.whole_number("steps", 0.0),
                      .skips = reader.whole_number("skips", 0.0),
                      .injected_skips = reader.whole_number("injected_skips", 0.0),
                      .clipped = reader.whole_number("clipped", 0.0),
                      .loss_sum = reader.number("loss_sum"),
                      .norm_sum = reader.number("norm_sum"),
                      .last_loss = reader.number("last_loss")};
  reader.finish();
  return [this, loaded] { *this = loaded; };
}

}  // namespace halfstep::demo
