// What a run of amp_demo is asked to do, checked: the settings table turns text into this.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "halfstep/amp/grad_scaler.h"
#include "halfstep/amp/skip_monitor.h"
#include "halfstep/amp/train_state.h"
#include "halfstep/demo/injection.h"
#include "halfstep/optim/lr_schedule.h"

namespace halfstep::demo {

enum class OptimizerKind : uint8_t { kAdamW, kSgd };

struct DemoOptions {
  // What to train on: synthetic data for so many steps, or a CSV file for so many epochs.
  int64_t steps = 20;
  std::string data_path;      ///< empty: synthetic data
  std::string target_column;  ///< empty: the last one
  int64_t epochs = 40;
  int64_t hidden = 32;

  int64_t batch = 8;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 1e-2;
  double momentum = 0.0;  ///< of SGD
  double weight_decay = 1e-2;
  amp::Clip clip = amp::Clip::kNorm;
  double max_norm = 1.0;  ///< inf never clips
  double clip_value = 1.0;
  uint64_t seed = 0;
  Device device = Device::cpu();
  DType dtype = DType::BF16;  ///< F32 runs without autocast
  bool belts = true;          ///< false: no scaler, no checks, no clipping

  optim::LrDecay decay = optim::LrDecay::kConstant;
  int64_t warmup_steps = 0;
  double min_lr = 0.0;
  bool advance_on_skip = false;

  std::vector<Injection> injections;
  amp::GradScalerOptions scaler;
  amp::SkipMonitorOptions health{.max_skip_rate = 1.0};  // no rate exceeds 1

  std::string config_path;  ///< where the settings came from, if from a file
  std::string csv_path;     ///< empty: no CSV; likewise the paths below
  std::string plot_path;
  std::string run_card_path;
  std::string checkpoint_path;
  int64_t checkpoint_every = 0;  ///< steps; 0: at the end of the run only
  std::string resume_path;
  int64_t log_every = 1;
  bool quiet = false;

  bool has_data() const { return !data_path.empty(); }
};

/// The defaults of a run on synthetic data, or of one on a CSV file.
DemoOptions default_options(bool has_data);

/// UsageError if settings contradict each other, so far as that can be told without the data.
void check_options(const DemoOptions& options);
/// UsageError if an injection lies behind the end of a run of so many steps that cannot be resumed.
void check_injections(const DemoOptions& options, int64_t steps);

}  // namespace halfstep::demo
