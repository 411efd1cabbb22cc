// What the tests of checkpoints share: a small training run of any precision and optimizer, with
// all that a checkpoint holds, and the bits of all of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {

/// All of a state, as text that differs if any bit does.
inline std::string bits(const StateDict& state) {
  std::string out;
  const Safetensors all = to_safetensors(state);
  for (const auto& [key, x] : all.tensors) out += cat(key, " ", x, " ", bits(x), "\n");
  return out;
}

struct RunOptions {
  DType precision = DType::F32;  // of autocast
  bool sgd = false;
  DType parameters = DType::F32;
  uint64_t seed = 1;  // of the initial weights
  double lr = 0.05;   // of the optimizer; the schedule's is always the same
};

inline nn::Sequential make_model(const RunOptions& options) {
  Generator generator(options.seed);
  const nn::LinearOptions linear{.dtype = options.parameters, .generator = &generator};
  return nn::Sequential{nn::Linear(4, 8, linear), nn::GELU(), nn::Linear(8, 2, linear)};
}

inline std::unique_ptr<optim::Optimizer> make_optimizer(const nn::Module& model,
                                                        const RunOptions& options) {
  if (options.sgd) {
    return std::make_unique<optim::SGD>(model.parameters(),
                                        optim::SGDOptions{.lr = options.lr, .momentum = 0.9});
  }
  return std::make_unique<optim::AdamW>(model.parameters(),
                                        optim::AdamWOptions{.lr = options.lr, .amsgrad = true});
}

/// A run whose steps 5 and 12 have an Inf in a gradient. With F16 the loss scale starts too high
/// and grows fast, so that it is found too high again and again.
struct TrainingRun {
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::GradScaler scaler;
  optim::LrSchedule schedule;
  amp::SkipMonitor monitor;
  amp::AmpTrainState state;
  std::vector<std::string> rows = {};

  explicit TrainingRun(const RunOptions& options = {})
      : model(make_model(options)),
        optimizer(make_optimizer(model, options)),
        scaler(Device::cpu(), {.init_scale = 0x1p22,
                               .growth_interval = 2,
                               .enabled = options.precision == DType::F16}),
        schedule(*optimizer, {.lr = 0.05,
                              .decay = optim::LrDecay::kCosine,
                              .warmup_steps = 3,
                              .total_steps = 18,
                              .min_lr = 0.001}),
        state(model, *optimizer, scaler, amp_options(options)) {}

  /// The next step, on a batch of its own.
  void step() {
    Generator generator(static_cast<uint64_t>(1000 + state.next_step()));
    const Tensor x = generator.normal({6, 4}), y = generator.normal({6, 2});
    const amp::StepOrSkipLog log = state.step(x, y);
    monitor.add(log, scaler.get_scale());
    rows.push_back(amp::csv_row(log));
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

  /// Everything that a load may change, but for the monitor.
  std::string all_bits() const {
    return cat(bits(state.state_dict()), "lr ", optimizer->lr(), " skips in a row ",
               scaler.consecutive_skips(), " schedule ", schedule.step_count());
  }

 private:
  amp::AmpOptions amp_options(const RunOptions& options) {
    amp::AmpOptions out;
    out.dtype = options.precision;
    out.schedule = &schedule;
    out.after_backward = [](int64_t step, const std::vector<Parameter>& parameters) {
      if (step == 5 || step == 12) parameters[2].value.grad().fill_(HUGE_VAL);
    };
    return out;
  }
};

}  // namespace halfstep::test
