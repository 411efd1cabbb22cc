// The model, and one step of a run.
#include "halfstep/demo/trainer.h"

namespace halfstep::demo {

nn::Sequential make_model(int64_t features, int64_t hidden, int64_t outputs, Generator& generator) {
  const nn::LinearOptions options{.generator = &generator};
  // One after the other: the order in which arguments are evaluated is the compiler's choice.
  nn::Linear first(features, hidden, options);
  nn::Linear second(hidden, outputs, options);
  return nn::Sequential(std::move(first), nn::GELU(), std::move(second));
}

void Counts::add(const amp::StepOrSkipLog& log, double max_norm, bool injected) {
  ++steps;
  if (const auto* taken_step = std::get_if<amp::StepLog>(&log)) {
    clipped += taken_step->grad_l2_pre_clip > max_norm ? 1 : 0;
    loss_sum += static_cast<double>(taken_step->loss);
    norm_sum += taken_step->grad_l2_pre_clip;
    last_loss = static_cast<double>(taken_step->loss);
  } else {
    ++skips;
    injected_skips += injected ? 1 : 0;
    last_loss = static_cast<double>(std::get<amp::SkipLog>(log).loss);
  }
}

Trainer::Trainer(nn::Module& model, const DemoOptions& options)
    : options_(options),
      injector_(options.injections),
      optimizer_(model.parameters(), {.lr = options.lr}),
      scaler_(options.device, options.scaler),
      state_(model, optimizer_, scaler_,
             {.device = options.device,
              .dtype = options.dtype,
              .max_norm = options.max_norm,
              .loss_fn = {},
              .after_backward = [this](int64_t step, const std::vector<Parameter>& parameters) {
                injector_.spoil_gradients(step, parameters);
              }}) {
  if (!options.csv_path.empty()) csv_.emplace(options.csv_path);
}

amp::StepOrSkipLog Trainer::step(const Batch& batch) {
  const int64_t number = state_.next_step();
  amp::StepOrSkipLog log =
      state_.step(batch.inputs, injector_.spoil_targets(number, batch.targets));
  if (csv_) csv_->append(log);
  const bool injected = injector_.acts_at(number);
  run_.add(log, options_.max_norm, injected);
  epoch_.add(log, options_.max_norm, injected);
  return log;
}

}  // namespace halfstep::demo
