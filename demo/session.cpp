// Building a session, one step of it, and its state.
#include "halfstep/demo/session.h"

#include <cmath>
#include <utility>

#include "halfstep/amp/autocast.h"
#include "halfstep/autograd/ops.h"
#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"
#include "halfstep/optim/adamw.h"
#include "halfstep/optim/sgd.h"

namespace halfstep::demo {
namespace {

/// Linear(features, hidden), GELU, Linear(hidden, outputs).
nn::Sequential make_model(int64_t features, int64_t hidden, int64_t outputs, Generator& generator) {
  const nn::LinearOptions options{.generator = &generator};
  // One after the other: the order in which arguments are evaluated is the compiler's choice.
  nn::Linear first(features, hidden, options);
  nn::Linear second(hidden, outputs, options);
  return nn::Sequential(std::move(first), nn::GELU(), std::move(second));
}

int64_t total_steps_of(const DemoOptions& options, const Task& task) {
  if (!options.has_data()) return options.steps;
  const int64_t steps = options.epochs * task.steps_per_epoch();
  check_injections(options, steps);
  return steps;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const nn::Module& model, const DemoOptions& o) {
  if (o.optimizer == OptimizerKind::kSgd) {
    return std::make_unique<optim::SGD>(
        model.parameters(),
        optim::SGDOptions{.lr = o.lr, .momentum = o.momentum, .weight_decay = o.weight_decay});
  }
  return std::make_unique<optim::AdamW>(
      model.parameters(), optim::AdamWOptions{.lr = o.lr, .weight_decay = o.weight_decay});
}

optim::LrScheduleOptions schedule_options(const DemoOptions& o, int64_t total_steps) {
  if (o.decay != optim::LrDecay::kConstant && o.warmup_steps >= total_steps) {
    throw UsageError(cat("--warmup ", o.warmup_steps, " given for a run of ", total_steps,
                         " steps; a decay needs steps after the warm-up"));
  }
  return {.lr = o.lr,
          .decay = o.decay,
          .warmup_steps = o.warmup_steps,
          .total_steps = total_steps,
          .min_lr = o.min_lr};
}

/// The norm of all gradients, by hand: clipping's would leave a record, and then the optimizer
/// would refuse to step on an Inf.
double norm_without_record(const std::vector<Parameter>& parameters) {
  double squares = 0.0;
  for (const Parameter& parameter : parameters) {
    for (const double x : parameter.value.grad().to_vector<double>()) squares += x * x;
  }
  return std::sqrt(squares);
}

}  // namespace

Session::Session(const DemoOptions& options)
    : options_(options),
      generator_(options.seed),
      task_(make_task(options, generator_)),
      model_(make_model(task_->features(), options.hidden, task_->outputs(), generator_)),
      total_steps_(total_steps_of(options, *task_)),
      injector_(options.injections, model_.parameters()),
      optimizer_(make_optimizer(model_, options)),
      scaler_(options.device, options.scaler),
      schedule_(*optimizer_, schedule_options(options, total_steps_)),
      state_(model_, *optimizer_, scaler_,
             {.device = options.device,
              .dtype = options.dtype,
              .max_norm = options.max_norm,
              .clip = options.clip,
              .clip_value = options.clip_value,
              .loss_fn =
                  [this](const Tensor& prediction, const Tensor& target) {
                    return injector_.spoil_loss(next_step(), nn::mse_loss(prediction, target));
                  },
              .after_backward =
                  [this](int64_t step, const std::vector<Parameter>& parameters) {
                    injector_.spoil_gradients(step, parameters);
                  },
              .schedule = &schedule_,
              .advance_on_skip = options.advance_on_skip}),
      monitor_(options.health) {}

amp::StepOrSkipLog Session::step() {
  const int64_t step = next_step();
  const Batch drawn = task_->next_batch();
  const Batch batch{injector_.spoil_inputs(step, drawn.inputs),
                    injector_.spoil_targets(step, drawn.targets)};
  amp::StepOrSkipLog log =
      options_.belts ? state_.step(batch.inputs, batch.targets) : step_without_belts(batch);
  monitor_.add(log, scale());
  if (!unmet_) {
    unmet_ = injector_.unmet(step, std::holds_alternative<amp::SkipLog>(log));
    unmet_step_ = step;
  }
  const bool injected = injector_.acts_at(step);
  run_.add(log, injected);
  epoch_.add(log, injected);
  return log;
}

// The loop that AmpTrainState exists to replace.
amp::StepOrSkipLog Session::step_without_belts(const Batch& batch) {
  const std::vector<Parameter>& parameters = optimizer_->parameters();
  schedule_.apply();
  optimizer_->zero_grad();
  Tensor loss;
  {
    const amp::Autocast autocast(options_.device, options_.dtype, options_.dtype != DType::F32);
    loss = injector_.spoil_loss(next_step(), nn::mse_loss(model_(batch.inputs), batch.targets));
  }
  loss.backward();
  injector_.spoil_gradients(next_step(), parameters);
  const double norm = norm_without_record(parameters);
  const amp::StepLog log{.step = next_step(),
                         .lr = lr(),
                         .grad_l2_pre_clip = norm,
                         .grad_l2_post_clip = norm,
                         .loss = static_cast<float>(loss.item()),
                         .scaler_scale = 1.0};
  optimizer_->step();
  schedule_.step();
  return log;
}

Tensor Session::scaled_loss() {
  const Batch batch = task_->next_batch();
  const amp::Autocast autocast(options_.device, options_.dtype, options_.dtype != DType::F32);
  return scaler_.scale(nn::mse_loss(model_(batch.inputs), batch.targets));
}

void Session::end_epoch() {
  if (epoch_.skips > worst_epoch_.skips || worst_epoch_.steps == 0) {
    worst_epoch_ = epoch_;
    worst_epoch_number_ = next_step() / steps_per_epoch() - 1;
  }
  last_epoch_ = std::exchange(epoch_, {});
  score_ = task_->test(model_, options_.dtype);
}

StateDict Session::state_dict() const {
  StateDict out;
  out.add("train", state_.state_dict());
  out.add("task", task_->state_dict());
  out.add("monitor", monitor_.state_dict());
  out.add("run", run_.state_dict());
  out.add("epoch", epoch_.state_dict());
  out.add("last_epoch", last_epoch_.state_dict());
  out.add("worst_epoch", worst_epoch_.state_dict());
  out.numbers["worst_epoch_number"] = static_cast<double>(worst_epoch_number_);
  out.numbers["score"] = score_;
  out.numbers["unmet_step"] = unmet_ ? static_cast<double>(unmet_step_) : -1.0;
  return out;
}

TakeOver Session::prepare_load(const StateDict& state) {
  StateReader reader("amp_demo.resume", state);
  const std::vector<TakeOver> parts{
      state_.prepare_load(reader.part("train")),
      task_->prepare_load(reader.part("task")),
      monitor_.prepare_load(reader.part("monitor")),
      run_.prepare_load(reader.part("run")),
      epoch_.prepare_load(reader.part("epoch")),
      last_epoch_.prepare_load(reader.part("last_epoch")),
      worst_epoch_.prepare_load(reader.part("worst_epoch")),
  };
  const int64_t worst_epoch_number = reader.whole_number("worst_epoch_number", 0.0);
  const double score = reader.number("score");
  const int64_t unmet_step = reader.whole_number("unmet_step", -1.0);
  // Where a step had another effect than expected, the injection is the one that says otherwise.
  const Injection* unmet = injector_.unmet(unmet_step, false);
  if (!unmet) unmet = injector_.unmet(unmet_step, true);
  reader.finish();
  return [this, parts, worst_epoch_number, score, unmet, unmet_step] {
    for (const TakeOver& take_over : parts) take_over();
    worst_epoch_number_ = worst_epoch_number;
    score_ = score;
    unmet_ = unmet_step >= 0 ? unmet : nullptr;
    unmet_step_ = unmet_step;
  };
}

}  // namespace halfstep::demo
