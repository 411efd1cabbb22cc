// The synthetic task, and the choice of a task. The task of a table has a file of its own.
#include "halfstep/demo/tasks.h"

#include <cmath>

#include "halfstep/autograd/ops.h"

namespace halfstep::demo {

SyntheticTask::SyntheticTask(Generator& generator, int64_t batch)
    : generator_(generator),
      batch_(batch),
      teacher_(generator.normal({outputs(), features()}, 0.0,
                                1.0 / std::sqrt(static_cast<double>(features())))) {}

Batch SyntheticTask::next_batch() {
  Tensor inputs = generator_.normal({batch_, features()});
  Tensor targets = linear(inputs, teacher_);
  targets.add_(generator_.normal({batch_, outputs()}, 0.0, 0.1));
  return {std::move(inputs), std::move(targets)};
}

StateDict SyntheticTask::state_dict() const {
  StateDict out;
  out.add("generator", generator_.state_dict());
  return out;
}

TakeOver SyntheticTask::prepare_load(const StateDict& state) {
  StateReader reader("amp_demo.resume", state);
  TakeOver load_generator = generator_.prepare_load(reader.part("generator"));
  reader.finish();
  return load_generator;
}

std::unique_ptr<Task> make_task(const DemoOptions& options, Generator& generator) {
  if (!options.has_data()) return std::make_unique<SyntheticTask>(generator, options.batch);
  return std::make_unique<TableTask>(read_table(options.data_path), options.target_column,
                                     options.batch, generator);
}

}  // namespace halfstep::demo
