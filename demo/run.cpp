// The two training loops.
#include "halfstep/demo/run.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/table.h"
#include "halfstep/demo/tasks.h"

namespace halfstep::demo {
namespace {

void run_synthetic(const DemoOptions& options, Output& output) {
  Generator generator(options.seed);
  nn::Sequential model =
      make_model(SyntheticTask::kFeatures, options.hidden, SyntheticTask::kOutputs, generator);
  const SyntheticTask task(generator);
  Trainer trainer(model, options);

  output.line(describe(options, SyntheticTask::kFeatures, SyntheticTask::kOutputs));
  output.line(step_header());
  for (int64_t step = 0; step < options.steps; ++step) {
    output.line(step_row(trainer.step(task.draw(generator, options.batch))));
  }
  output.line(summary(trainer.run(), trainer.run().last_loss, trainer.scale()));
}

void check_against_data(const DemoOptions& options, int64_t steps) {
  std::error_code ignored;
  if (!options.csv_path.empty() &&
      std::filesystem::equivalent(options.csv_path, options.data_path, ignored)) {
    throw UsageError(cat("--csv ", quote(options.csv_path), " given, which is the file of --data;",
                         " it must be another one, because it is replaced"));
  }
  for (const Injection& injection : options.injections) {
    if (injection.step >= steps) {
      throw UsageError(cat("--inject ", injection.str(), " given, but the run has ", steps,
                           " steps; the step must be from 0 to ", steps - 1));
    }
  }
}

void run_data(const DemoOptions& options, Output& output) {
  Generator generator(options.seed);
  ClassTask task(read_table(options.data_path), generator);
  const int64_t batch = std::min(options.batch, task.train_count());
  const int64_t steps_per_epoch = (task.train_count() + batch - 1) / batch;
  check_against_data(options, options.epochs * steps_per_epoch);
  nn::Sequential model = make_model(task.features(), options.hidden, task.classes(), generator);
  Trainer trainer(model, options);

  output.line(describe(options, task.features(), task.classes()));
  output.line(cat(task.train_count(), " rows to train on, ", task.test_count(), " to test, ",
                  steps_per_epoch, " steps per epoch"));
  output.line(epoch_header());
  double accuracy = 0.0;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    trainer.start_epoch();
    task.shuffle(generator);
    for (int64_t begin = 0; begin < task.train_count(); begin += batch) {
      trainer.step(task.batch(begin, std::min(begin + batch, task.train_count())));
    }
    accuracy = task.test_accuracy(model, options.dtype);
    output.line(epoch_row(epoch, trainer.epoch(), options.lr, trainer.scale(), accuracy));
  }
  const Counts& last = trainer.epoch();
  output.line(
      summary(trainer.run(), last.loss_sum / static_cast<double>(last.taken()), trainer.scale()));
  output.line(cat("test accuracy: ", percent(accuracy)));
}

}  // namespace

void run(const DemoOptions& options, Output& output) {
  if (options.has_data()) {
    run_data(options, output);
  } else {
    run_synthetic(options, output);
  }
}

}  // namespace halfstep::demo
