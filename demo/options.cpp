// From settings to DemoOptions and back, and the checks of settings against each other.
#include "halfstep/demo/options.h"

#include <algorithm>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/plot.h"
#include "halfstep/demo/setting_values.h"
#include "halfstep/demo/settings.h"

namespace halfstep::demo {
namespace {

void check_task(const Setting& setting, bool has_data) {
  if (setting.task == Setting::Task::kData && !has_data) {
    throw UsageError(cat("--", setting.name, " given without --data; it belongs to a data file"));
  }
  if (setting.task == Setting::Task::kSynthetic && has_data) {
    throw UsageError(
        cat("--", setting.name, " given with --data; the length of such a run is --epochs"));
  }
}

}  // namespace

DemoOptions default_options(bool has_data) {
  DemoOptions options;
  if (has_data) {
    options.hidden = 128;
    options.batch = 16;
    options.lr = 3e-3;
  } else {
    options.injections = {{.kind = Injection::Kind::kInfGrad, .first = 5, .last = 5}};
  }
  return options;
}

GivenSettings without_aliases(GivenSettings given) {
  std::string precision;
  for (const std::string_view name : {"precision", "fp32", "bf16", "fp16"}) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    if (!precision.empty()) {
      throw UsageError(cat("--", precision, " and --", name, " given; one of them must go"));
    }
    precision = name;
    if (name == "precision") continue;
    given.erase(found);
    given["precision"] = {precision};
  }
  return given;
}

GivenSettings merged(GivenSettings below, const GivenSettings& above) {
  for (const auto& [name, values] : above) below[name] = values;
  return below;
}

DemoOptions make_options(const GivenSettings& given) {
  const bool has_data = given.contains("data");
  DemoOptions options = default_options(has_data);
  for (const Setting& setting : settings()) {
    const auto found = given.find(setting.name);
    if (found == given.end()) continue;
    const std::vector<std::string>& values = found->second;
    check_task(setting, has_data);
    if (setting.form == Setting::Form::kList) {
      options.injections = parse_injections(values);
      continue;
    }
    if (values.size() != 1) {
      throw UsageError(cat("--", setting.name, " given ", values.size(), " times; once is right"));
    }
    setting.set(options, setting.name, values.front());
  }
  if (options.optimizer == OptimizerKind::kSgd && !given.contains("weight-decay")) {
    options.weight_decay = 0.0;
  }
  options.scaler.enabled = options.dtype == DType::F16 && options.belts;
  check_options(options);
  // The default injection lies behind the end of a very short run; that is nobody's mistake. Nor is
  // it when it comes back from the settings of such a run.
  if (!has_data && options.injections != default_options(has_data).injections) {
    check_injections(options, options.steps);
  }
  return options;
}

GivenSettings given_settings(const DemoOptions& options) {
  GivenSettings given;
  for (const Setting& setting : settings()) {
    using Task = Setting::Task;
    const bool belongs =
        setting.task == Task::kAny || (setting.task == Task::kData) == options.has_data();
    if (!belongs) continue;
    std::vector<std::string> values;
    if (setting.form == Setting::Form::kList) {
      for (const Injection& injection : options.injections) values.push_back(injection.str());
      if (values.empty()) values.emplace_back("none");
    } else if (setting.show) {
      if (const auto value = setting.show(options)) values.push_back(*value);
    }
    if (!values.empty()) given[std::string(setting.name)] = std::move(values);
  }
  return given;
}

void check_options(const DemoOptions& options) {
  const amp::GradScalerOptions& scaler = options.scaler;
  if (!(scaler.min_scale <= scaler.init_scale && scaler.init_scale <= scaler.max_scale)) {
    throw UsageError(cat("--init-scale ", scaler.init_scale, ", --min-scale ", scaler.min_scale,
                         " and --max-scale ", scaler.max_scale,
                         " are in force; they must be min <= init <= max"));
  }
  if (options.optimizer == OptimizerKind::kAdamW && options.momentum != 0.0) {
    throw UsageError("--momentum given with the optimizer adamw; it belongs to --optimizer sgd");
  }
  if (options.min_lr > options.lr) {
    throw UsageError(cat("--min-lr ", options.min_lr, " and --lr ", options.lr,
                         " are in force; they must be min-lr <= lr"));
  }
  if (!options.plot_path.empty() && !can_draw(options.plot_path)) {
    throw UsageError(
        cat("--plot ", quote(options.plot_path), " given; it must end in .svg or .png"));
  }
  if (options.checkpoint_every > 0 && options.checkpoint_path.empty()) {
    throw UsageError("--checkpoint-every given without --checkpoint; a file to write is missing");
  }
}

void check_injections(const DemoOptions& options, int64_t steps) {
  if (!options.checkpoint_path.empty()) return;  // the run can be made longer, by resuming it
  for (const Injection& injection : options.injections) {
    if (injection.last >= steps) {
      throw UsageError(cat("--inject ", injection.str(), " given, but the run has ", steps,
                           " steps; the step must be from 0 to ", steps - 1));
    }
  }
}

}  // namespace halfstep::demo
